"""Read settings from a model configuration, and replace them with others."""

from __future__ import annotations

from collections.abc import Mapping

from tritonclient.grpc.model_config_pb2 import ModelConfig

from tollgate.errors import RepositoryError
from tollgate.repository.lint.product_rules import REGATHER_US, delay_us
from tollgate.repository.product_models import Product
from tollgate.repository.serving_form import QUEUE_DELAY_PARAMETER, queue_delay_us
from tollgate.repository.slo import Form
from tollgate.tuning.space import KNOBS, Candidate, Space

THREADS = "intra_op_thread_count"
_ONNX_BACKEND = "onnxruntime"

Configs = Mapping[str, ModelConfig]  # each step and the ensemble -> its configuration


class Roles:
    """Maps the steps of a product to their roles: feature, model and decision step."""

    def __init__(self, models: Product) -> None:
        self.product = models.name
        self.model = models.model_step
        self.instances = {
            "features_instances": models.features_step,
            "model_instances": models.model_step,
            "decision_instances": models.decision_step,
        }

    def read(self, configs: Configs, *, form: Form = "ensemble") -> Candidate:
        """
        Read the settings of a product.

        Args:
            form: Form in which it is served; no configuration has it.

        Raises:
            RepositoryError: The model step prefers several batch sizes, which no
                candidate can express.
        """
        model = configs[self.model]
        # Triton reports max_batch_size where none is preferred.
        sizes = {*model.dynamic_batching.preferred_batch_size}
        preferred = [*sizes - {model.max_batch_size}]
        if len(preferred) > 1:
            problem = f"has {len(preferred)} sizes; tune goes from one or none"
            raise RepositoryError(self.model, problem, where="preferred_batch_size")
        threads = model.parameters[THREADS].string_value if _has(model) else ""
        return Candidate(
            delay_us=sum(map(delay_us, configs.values())),
            preferred=preferred[0] if preferred else 0,
            threads=int(threads) if threads.isdecimal() else 1,
            form=form,
            fused_queue_delay_us=queue_delay_us(
                configs[self.product], source=self.product
            ),
            **{
                knob: max(1, sum(one.count for one in configs[step].instance_group))
                for knob, step in self.instances.items()
            },
        )

    def possible(self, space: Space, configs: Configs) -> Space:
        """
        Leave out the values that these configurations cannot take.

        Threads are a parameter of the onnxruntime backend; the number of instances of
        each of several groups is left to a person.
        """
        fixed = {
            knob
            for knob, step in self.instances.items()
            if len(configs[step].instance_group) != 1
        }
        if configs[self.model].backend != _ONNX_BACKEND:
            fixed.add("threads")
        return {knob: space[knob] for knob in KNOBS if knob in {*space} - fixed}

    def written(self, configs: Configs, candidate: Candidate) -> dict[str, ModelConfig]:
        """
        Put settings into configurations of the steps and the ensemble, new messages.

        Only fields that differ are changed, so settings that were absent stay absent;
        for a fused product, its queue delay is always named.
        """
        was = self.read(configs)
        changed = {step: _copy(config) for step, config in configs.items()}
        model = changed[self.model]
        for step, us in self._delays(configs, candidate.delay_us).items():
            batching = changed[step].dynamic_batching
            if us != batching.max_queue_delay_microseconds:
                batching.ClearField("max_queue_delay_microseconds")
                if us:
                    batching.max_queue_delay_microseconds = us
        if candidate.preferred != was.preferred:
            sizes = [candidate.preferred] if candidate.preferred else []
            model.dynamic_batching.preferred_batch_size[:] = sizes
        if candidate.threads != was.threads:
            model.parameters[THREADS].string_value = str(candidate.threads)
        for knob, step in self.instances.items():
            count = getattr(candidate, knob)
            if count != getattr(was, knob):
                changed[step].instance_group[0].count = count
        if candidate.form == "fused":
            delay = changed[self.product].parameters[QUEUE_DELAY_PARAMETER]
            delay.string_value = str(candidate.fused_queue_delay_us)
        return changed

    def _delays(self, configs: Configs, total_us: int) -> dict[str, int]:
        """
        Divide a delay among the steps in the present proportion.

        If no step has a delay, the model step gets all of it. Each step but the one
        with the longest delay gets at most the time that a batch needs to form again.
        """
        were = {step: delay_us(one) for step, one in configs.items()}
        whole_us = sum(were.values())
        if not whole_us:
            return {self.model: total_us}
        delays = {
            step: min(REGATHER_US, us * total_us // whole_us)
            for step, us in were.items()
        }
        longest = max(were, key=lambda step: were[step])
        delays[longest] += total_us - sum(delays.values())
        return delays


def _has(model: ModelConfig) -> bool:
    # Indexing a protobuf map inserts missing keys.
    return THREADS in model.parameters


def _copy(config: ModelConfig) -> ModelConfig:
    copied = ModelConfig()
    copied.CopyFrom(config)
    return copied

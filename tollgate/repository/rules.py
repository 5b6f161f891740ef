"""
Check a config.pbtxt against our rules for batches, queues, versions and warm-up.

Each rule prevents a failure that was observed; its sentence names the failure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tritonclient.grpc.model_config_pb2 import ModelConfig

from tollgate import schema
from tollgate.errors import RepositoryError
from tollgate.repository.findings import Finding
from tollgate.repository.product import Product
from tollgate.repository.release import Release

PYTHON_BACKEND = "python"
_TIMEOUT_FIELDS = (
    "timeout_action",
    "default_timeout_microseconds",
    "allow_timeout_override",
)
DELAY = "dynamic_batching.max_queue_delay_microseconds"
# A batch's requests reach the next step one after the other. A step after the one that
# batches requests may wait this long for the last of them.
REGATHER_US = 500

_STALLS = (
    "switches off prefetching, and Triton's batcher then stalls for 500 ms and more; "
    "callers' deadlines bound the queue"
)

# Code of the rule, field, problem.
Break = tuple[str, str, str]


def rule_findings(product: Product, *, release: Release | None) -> list[Finding]:
    """
    Check every configuration of a product against our rules.

    Args:
        product: The configurations.
        release: The release; None if it cannot be read.
    """
    try:
        model_step = product.model_step
    except RepositoryError:
        model_step = ""  # an undefined role is a finding of another rule
    findings: list[Finding] = []
    for name, config in [*product.steps.items(), (product.name, product.ensemble)]:
        file = str(product.config_path(name))
        broken = list(_general_breaks(config))
        if name == product.name:
            findings += _pin_findings(config, file=file, release=release)
        else:
            broken += _step_breaks(config, is_model=name == model_step)
            broken += second_delay(name, config, steps=product.steps)
        findings += [
            Finding(code=code, file=file, where=where, problem=problem, at=where)
            for code, where, problem in broken
        ]
    return findings


def _general_breaks(config: ModelConfig) -> Iterator[Break]:
    """Yield violations of the rules for ensemble and steps alike."""
    if config.max_batch_size != schema.MAX_BATCH_ROWS:
        problem = f"{config.max_batch_size} must be {schema.MAX_BATCH_ROWS}"
        yield "TG206", "max_batch_size", problem
    policy = config.version_policy.WhichOneof("policy_choice")
    if policy in ("latest", "all"):
        yield (
            "TG301",
            "version_policy",
            f'"{policy}" unloads or mixes versions when one is dropped in; leave it '
            "out, the release pins versions",
        )
    if config.response_cache.enable and config.HasField("ensemble_scheduling"):
        problem = "would answer with decisions on old features; remove it"
        yield "TG402", "response_cache", problem


def _pin_findings(
    config: ModelConfig, *, file: str, release: Release | None
) -> Iterator[Finding]:
    """Yield pins of the ensemble that contradict the release."""
    for step in config.ensemble_scheduling.step:
        pinned = release.versions.get(step.model_name) if release else None
        if step.model_version not in (-1, pinned):
            yield Finding(
                code="TG303",
                file=file,
                where=f"{step.model_name}: model_version",
                problem=f"{step.model_version} must be -1: the release pins versions",
                at=f"ensemble_scheduling.step[{step.model_name}].model_version",
            )


def _step_breaks(config: ModelConfig, *, is_model: bool) -> Iterator[Break]:
    """Yield violations of the rules for one step."""
    if not config.HasField("dynamic_batching"):
        problem = "is missing: requests would run one at a time"
        yield "TG207", "dynamic_batching", problem
    else:
        yield from queue_breaks(config)
    if config.model_warmup and config.backend == PYTHON_BACKEND:
        problem = "runs a Python step on made-up requests; only the model step has it"
        yield "TG401", "model_warmup", problem
    if config.response_cache.enable and not is_model:
        yield "TG402", "response_cache", "would answer with old features; remove it"


def second_delay(
    name: str, config: ModelConfig, *, steps: Mapping[str, ModelConfig]
) -> Iterator[Break]:
    """Yield a delay next to a longer one, unless it only lets a batch come together."""
    delays = {step: delay_us(one) for step, one in steps.items()}
    longest = max(delays, key=lambda step: delays[step])
    own_us = delay_us(config)
    if name != longest and own_us > REGATHER_US:
        yield (
            "TG203",
            DELAY,
            f"{own_us} must be at most {REGATHER_US}: {longest} has {delays[longest]}, "
            "and a lone request pays both",
        )


def delay_us(config: ModelConfig) -> int:
    """Read the queue delay of a step, µs."""
    return int(config.dynamic_batching.max_queue_delay_microseconds)


def queue_breaks(config: ModelConfig) -> Iterator[Break]:
    """Yield limits and timeouts of queues: either stalls Triton's batcher."""
    batching = config.dynamic_batching
    if batching.priority_levels:
        yield "TG202", "dynamic_batching.priority_levels", _STALLS
    policies = {"default_queue_policy": batching.default_queue_policy} | {
        f"priority_queue_policy[{level}].value": policy
        for level, policy in batching.priority_queue_policy.items()
    }
    for name, policy in policies.items():
        where = f"dynamic_batching.{name}"
        if policy.max_queue_size:
            yield "TG202", f"{where}.max_queue_size", _STALLS
        for field in _TIMEOUT_FIELDS:
            if getattr(policy, field):
                yield (
                    "TG201",
                    f"{where}.{field}",
                    "queue timeouts can leave a model refusing every request; "
                    "deadlines belong to the caller",
                )

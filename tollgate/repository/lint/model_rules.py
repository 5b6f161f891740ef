"""Rules for the models of any repository: files, wires, queues, versions, execution."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import structs
from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelInstanceGroup

from tollgate.errors import InputError, RepositoryError
from tollgate.repository.configs import add_canary, merge
from tollgate.repository.findings import Finding
from tollgate.repository.lint.lint_rule import DOCS, ISSUES, Rule, Severity
from tollgate.repository.lint.product_rules import (
    DELAY,
    STEP_FILE,
    delay_us,
    queue_breaks,
    second_delay,
)
from tollgate.repository.lint.view import ONNX_BACKEND, Model, View
from tollgate.repository.models.model_files import MODEL_FILE, parse_onnx
from tollgate.repository.models.targets import TARGETS, Target
from tollgate.repository.releases.release_file import Release
from tollgate.repository.releases.serving_plan import (
    ServingPlan,
    canary_of,
    plan_serving,
)
from tollgate.repository.slo import Layers
from tollgate.repository.wires import Break, Ends, Wires

# Rules TG0xx: check that the files that Triton needs exist and can be read.

_LAYOUT_RULES = (
    Rule(
        code="TG001",
        title="a configuration cannot be read",
        severity=Severity.ERROR,
        why="Triton refuses the model, and every ensemble that names it.",
        source=DOCS + "user_guide/model_configuration.html",
        mend="Correct the line; the fields are those of model_config.proto.",
    ),
    Rule(
        code="TG002",
        title="a model has no version",
        severity=Severity.ERROR,
        why="Triton loads versions, not models; an ensemble needs one too, empty.",
        source=DOCS + "user_guide/model_repository.html",
        mend="Make a directory 1. Git keeps no empty one: put a file in it.",
    ),
    Rule(
        code="TG003",
        title="a Python step has no code",
        severity=Severity.ERROR,
        why="The Python backend looks for the file in each version and fails the load.",
        source=DOCS + "python_backend/README.html",
        mend="Add model.py to the version, or name the file in default_model_filename.",
    ),
    Rule(
        code="TG004",
        title="a step's model is not in the repository",
        severity=Severity.ERROR,
        why="The ensemble does not load without all its steps.",
        source=DOCS + "user_guide/ensemble_models.html",
        mend="Correct model_name, or check the folder that holds all models: a server "
        "with several repositories reads them as one.",
    ),
)


def _layout_findings(view: View) -> Iterator[Finding]:
    """Find versions, code and steps that are missing."""
    for model, config in view.configured():
        if not model.versions:
            problem = "has no version: Triton needs a directory 1, for ensembles too"
            file = str(model.directory)
            yield Finding(code="TG002", file=file, where="", problem=problem)
        code = config.default_model_filename or STEP_FILE
        # For a product's step, only the versions of the release matter.
        is_free = model.is_python and model.name not in view.in_products
        for version in model.versions if is_free else ():
            path = model.directory / str(version) / code
            if not path.is_file():
                problem = "is missing: the step's code"
                yield Finding(code="TG003", file=str(path), where="", problem=problem)
    for model, config in view.ensembles():
        if model.name in view.products:
            continue  # the product's own check reads them
        for step in config.ensemble_scheduling.step:
            if step.model_name not in view.models:
                yield Finding(
                    code="TG004",
                    file=model.file,
                    where=f"step {step.model_name}",
                    problem="is not in the repository",
                    at=f"ensemble_scheduling.step[{step.model_name}].model_name",
                )


# Rules TG1xx: check that the tensors of every ensemble connect.

_ENSEMBLES = "tried on 2.51; " + DOCS + "user_guide/ensemble_models.html"
_UTILS = "tried on 2.51; ensemble_utils.cc of github.com/triton-inference-server/core"

_WIRE_RULES = (
    Rule(
        code="TG101",
        title="an input of a step is not mapped",
        severity=Severity.ERROR,
        why="Triton refuses the ensemble: the step would run without it.",
        source=_UTILS,
        mend="Add an input_map, or make the input optional in the step.",
    ),
    Rule(
        code="TG102",
        title="a map names a tensor that the step does not have",
        severity=Severity.ERROR,
        why="Triton refuses the ensemble.",
        source=_UTILS,
        mend="The key of a map is the step's own name of the tensor.",
    ),
    Rule(
        code="TG103",
        title="a step reads what nobody makes",
        severity=Severity.ERROR,
        why="The step would wait for ever; Triton refuses the ensemble.",
        source=_ENSEMBLES,
        mend="The value of an input_map is an input of the ensemble, or the value of "
        "an output_map of another step. In a product, of an earlier one.",
    ),
    Rule(
        code="TG104",
        title="the two ends of a wire differ in type or shape",
        severity=Severity.ERROR,
        why="Triton refuses the ensemble, or with -1 the first request.",
        source=_UTILS,
        mend="Make data_type and dims agree.",
    ),
    Rule(
        code="TG105",
        title="an optional input leads to one that is not",
        severity=Severity.ERROR,
        why="Requests without it fail, although the ensemble says that they may.",
        source="measured here: docs/features.md, Fields",
        mend="Declare it optional in the step too, or in neither.",
    ),
    Rule(
        code="TG106",
        title="two steps write one tensor",
        severity=Severity.ERROR,
        why="Triton refuses the ensemble. When the other one is an input of it, it "
        "loads, and it is undefined which of the two a later step reads.",
        source=_ENSEMBLES,
        mend="Give each output a name of its own in the output_map.",
    ),
    Rule(
        code="TG107",
        title="no step reads an input of the ensemble",
        severity=Severity.ERROR,
        why="Triton refuses the ensemble: mostly a map was forgotten.",
        source=_ENSEMBLES,
        mend="Map it, or take it out.",
    ),
    Rule(
        code="TG108",
        title="no step makes an output of the ensemble",
        severity=Severity.ERROR,
        why="Triton refuses the ensemble: the answer could never be complete.",
        source=_ENSEMBLES,
        mend="Map it in the output_map of the step that makes it, or take it out.",
    ),
    Rule(
        code="TG109",
        title="a step takes smaller batches than its ensemble",
        severity=Severity.ERROR,
        why="Triton refuses the ensemble: larger requests would fail in the middle.",
        source=_UTILS,
        mend="Raise max_batch_size of the step, or lower that of the ensemble.",
    ),
)


def _wire_findings(view: View) -> Iterator[Finding]:
    """Follow the tensors of every ensemble that is not a product with its own check."""
    for model, config in view.ensembles():
        if model.name in view.products:
            continue
        yield from _batch_findings(view, config, file=model.file)
        wires = Wires(_ends(config, name=model.name))
        steps = config.ensemble_scheduling.step
        ends = {step.model_name: Ends() for step in steps}
        ends |= {
            step.name: _ends(own, name=step.name) for step, own in view.steps(config)
        }
        for code, where, problem, at in wires.follow(in_data_order(config), ends):
            yield Finding(
                code=code, file=model.file, where=where, problem=problem, at=at
            )


def _ends(config: ModelConfig, *, name: str) -> Ends:
    """Read a model's tensors; None for those that Triton is to complete."""
    declared = Ends.of(config, name=name)
    return Ends(inputs=declared.inputs or None, outputs=declared.outputs or None)


def _batch_findings(view: View, config: ModelConfig, *, file: str) -> Iterator[Finding]:
    for step, own in view.steps(config):
        if 0 < own.max_batch_size < config.max_batch_size:
            yield Finding(
                code="TG109",
                file=file,
                where="max_batch_size",
                problem=f"{config.max_batch_size}, but {step.name} takes batches of "
                f"{own.max_batch_size} only",
                at="max_batch_size",
            )


def in_data_order(config: ModelConfig) -> Sequence[Any]:
    """
    Put the steps of an ensemble in the order in which data flows.

    Triton does not require this order in the file. Steps that wait for a tensor that no
    step produces come last, in the order of the file.
    """
    waiting = list(config.ensemble_scheduling.step)
    made = {name for step in waiting for name in step.output_map.values()}
    read = {name for step in waiting for name in step.input_map.values()}
    available = {tensor.name for tensor in config.input} or read - made
    ordered: list[Any] = []
    while ready := [
        step for step in waiting if set(step.input_map.values()) <= available
    ]:
        ordered += ready
        waiting = [step for step in waiting if step not in ready]
        available |= {name for step in ready for name in step.output_map.values()}
    return [*ordered, *waiting]


# Rules TG2xx: check batches and the queues before them.

_BOUNDS = "measured here: docs/performance-log.md, no bound on any queue"
_LAYERS = Layers()
_DECIDED = "measured here: docs/adr/0001-batching-without-delay.md"
_GATHER = "measured here: docs/adr/0011-requests-gather-at-the-first-step.md"

_QUEUE_RULES = (
    Rule(
        code="TG201",
        title="a queue timeout with dynamic batching",
        severity=Severity.WARNING,
        in_product=Severity.ERROR,
        why="One request that times out can leave the model refusing every later one, "
        "while it says READY, until it is loaded again.",
        source=ISSUES + "8870, 7512, 5783, 6796; " + _DECIDED,
        mend="Take the timeout out; let callers send a deadline and give up by it.",
    ),
    Rule(
        code="TG202",
        title="a bounded queue, or priorities",
        severity=Severity.WARNING,
        in_product=Severity.ERROR,
        why="max_queue_size and priorities switch off the prefetching of Triton's "
        "batcher, which then looks every 500 ms only when it misses a wake-up: p99 of "
        "5 to 12 s with a bound, 0.3 to 0.5 s without, under the same load.",
        source=_BOUNDS,
        mend="Take it out; bound the load where it comes from (TG205).",
    ),
    Rule(
        code="TG203",
        title="two steps of an ensemble delay for long",
        severity=Severity.WARNING,
        in_product=Severity.ERROR,
        why="A request that comes alone pays every delay in full: 7 ms through one "
        "step with a delay of 5 ms, and as much again for the next.",
        source=_GATHER,
        mend="Let requests gather at one step, the first; leave the others at most 0.5 "
        "ms, for the requests of a batch to come together.",
    ),
    Rule(
        code="TG204",
        title="the queue delay uses up the time of the answer",
        severity=Severity.WARNING,
        why="At low load nearly every request waits that long before anything runs.",
        source="tollgate/repository/models/speed.py: 20 of 50 ms are the model's",
        mend="Lower max_queue_delay_microseconds. The objective is the one "
        "that the check is given, or latency_objective_ms in slo.yaml.",
    ),
    Rule(
        code="TG205",
        title="nothing here bounds the queue",
        severity=Severity.ADVICE,
        why="Overload is not refused at the door: requests wait until they are served. "
        "A bound in config.pbtxt would stall the batcher (TG202), so the load is "
        "bounded by callers that give up, or by a proxy that limits them.",
        source=_BOUNDS,
        mend="Make sure that every caller sends a deadline, or that something before "
        "the server limits the requests in flight.",
    ),
    Rule(
        code="TG206",
        title="max_batch_size is not the contract's",
        severity=Severity.ERROR,
        why="Callers send up to 32 rows; a smaller step fails their requests.",
        source="docs/contract.md, Request",
        mend="max_batch_size: 32 in the ensemble and in every step.",
    ),
    Rule(
        code="TG207",
        title="a step of a product does not batch",
        severity=Severity.ERROR,
        why="Requests run one at a time: 110 instead of 27 ms at the 99th percentile, "
        "and a third of the throughput.",
        source="measured here: docs/performance-log.md, batching on the Python steps",
        mend="dynamic_batching { } without a delay.",
    ),
    Rule(
        code="TG208",
        title="a preferred batch is larger than batches may be",
        severity=Severity.ERROR,
        why="Triton refuses the model.",
        source="tried on 2.51",
        mend="Lower preferred_batch_size, or raise max_batch_size.",
    ),
)


def _queue_findings(view: View) -> Iterator[Finding]:
    """Check every queue and every delay."""
    for model, config in view.configured():
        yield from _large_batches(model, config)
        if model.name not in view.in_products:
            for code, where, problem in queue_breaks(config):
                yield Finding(
                    code=code, file=model.file, where=where, problem=problem, at=where
                )
    inner = {
        step.name for _, config in view.ensembles() for step, _ in view.steps(config)
    }
    for model, config in view.configured():
        if model.name in inner:
            continue  # checked with its ensemble
        batching = _batching(view, model, config)
        delays = [(step, us) for step, own in batching if (us := delay_us(own))]
        if model.name not in view.products and batching:
            yield from _second_delays(batching)
        yield from _long_delays(delays, objective_ms=view.objectives_ms.get(model.name))
        yield from _open_queue(model, batching)


Batching = list[tuple[Model, ModelConfig]]
Delays = list[tuple[Model, int]]


def _batching(view: View, model: Model, config: ModelConfig) -> Batching:
    """List the models that batch dynamically between a caller and the answer."""
    path = view.steps(config) if model.is_ensemble else [(model, config)]
    return [(step, own) for step, own in path if own.HasField("dynamic_batching")]


def _large_batches(model: Model, config: ModelConfig) -> Iterator[Finding]:
    most = config.max_batch_size
    large = [one for one in config.dynamic_batching.preferred_batch_size if one > most]
    if most and large:
        yield Finding(
            code="TG208",
            file=model.file,
            where="dynamic_batching.preferred_batch_size",
            problem=f"{large[0]} is over max_batch_size, {most}",
            at="dynamic_batching.preferred_batch_size",
        )


def _longest(delays: Delays) -> tuple[Model, int]:
    return max(delays, key=lambda one: one[1])


def _second_delays(batching: Batching) -> Iterator[Finding]:
    """Yield every delay, except the longest one, that is more than a batch needs."""
    steps = {step.name: own for step, own in batching}
    for step, own in batching:
        for code, where, problem in second_delay(step.name, own, steps=steps):
            yield Finding(
                code=code, file=step.file, where=where, problem=problem, at=where
            )


def _long_delays(delays: Delays, *, objective_ms: float | None) -> Iterator[Finding]:
    """Compare the sum of the delays with their share of the objective."""
    if objective_ms is None or not delays:
        return
    total_us = sum(delay_us for _, delay_us in delays)
    share_us = objective_ms * 1000 * _LAYERS.model / _LAYERS.total_ms
    if total_us > share_us:
        yield Finding(
            code="TG204",
            file=_longest(delays)[0].file,
            where=DELAY,
            problem=f"{total_us / 1000:g} ms of delay, for an answer within "
            f"{objective_ms:g} ms; at most {share_us / 1000:g} leaves time for "
            "the work",
            at=DELAY,
        )


def _open_queue(model: Model, batching: Batching) -> Iterator[Finding]:
    """Yield one advice for each model that callers reach."""
    if any(list(queue_breaks(config)) for _, config in batching) or not batching:
        return
    names = ", ".join(step.name for step, _ in batching)
    yield Finding(
        code="TG205",
        file=model.file,
        where="",
        problem=f"the queue of {names} grows as long as callers wait",
        at="dynamic_batching",
    )


# Rules TG301 and TG302: compare loaded versions with those an ensemble names.

_VERSION_RULES = (
    Rule(
        code="TG301",
        title="a pinned step loads its latest versions, or all",
        severity=Severity.WARNING,
        in_product=Severity.ERROR,
        why="With latest (which is also what is done when the policy is left out) the "
        "next load after a version was dropped in unloads the pinned one, the ensemble "
        "becomes UNAVAILABLE, and loading the step again does not bring it back.",
        source="measured on 2.51: docs/contract.md, Releases; "
        + DOCS
        + "user_guide/model_configuration.html",
        mend="version_policy { specific { versions: [ N ] } } on the step. In a "
        "product leave the policy out: the release adds it.",
    ),
    Rule(
        code="TG302",
        title="an ensemble asks for a version that is not loaded",
        severity=Severity.ERROR,
        why="Triton refuses the ensemble: the required version is not loaded.",
        source="tried on 2.51; " + DOCS + "user_guide/ensemble_models.html",
        mend="Name a version that has a directory and that version_policy keeps.",
    ),
)
_LATEST = -1  # model_version of a step that takes the newest


def _version_findings(view: View) -> Iterator[Finding]:
    """Compare the pins of every ensemble with the versions that its steps load."""
    for model, config in view.ensembles():
        for step in config.ensemble_scheduling.step:
            own = view.models.get(step.model_name)
            if step.model_version == _LATEST or own is None:
                continue
            if model.name in view.in_products:
                continue  # its release pins and loads versions
            if problem := _not_loaded(own, step.model_version):
                yield Finding(
                    code="TG302",
                    file=model.file,
                    where=f"{step.model_name}: model_version",
                    problem=problem,
                    at=f"ensemble_scheduling.step[{step.model_name}].model_version",
                )
            elif own.config is not None:
                yield from _version_policy_findings(
                    own, own.config, step=step, by=model.name
                )


def _not_loaded(own: Model, version: int) -> str:
    """Explain why a version is not loaded; empty if it is."""
    if version not in own.versions:
        return f"{version} has no directory in {own.name}"
    loaded = _loaded_versions(own)
    if version not in loaded:
        names = ", ".join(map(str, loaded))
        return f"{version} is not loaded: version_policy of {own.name} keeps {names}"
    return ""


def _loaded_versions(own: Model) -> Sequence[int]:
    """List the versions of a model that its policy loads."""
    if own.config is None:
        return own.versions[-1:]
    policy = own.config.version_policy
    match policy.WhichOneof("policy_choice"):
        case "specific":
            return sorted(policy.specific.versions)
        case "all":
            return own.versions
        case _:
            return own.versions[-max(policy.latest.num_versions, 1) :]


def _version_policy_findings(
    own: Model, config: ModelConfig, *, step: Any, by: str
) -> Iterator[Finding]:
    policy = config.version_policy.WhichOneof("policy_choice")
    if policy == "specific":
        return
    stated = f'"{policy}"' if policy else "left out, which means latest,"
    yield Finding(
        code="TG301",
        file=own.file,
        where="version_policy",
        problem=f"{stated} while {by} asks for version {step.model_version}",
        at="version_policy",
    )


# Rule TG320: check that a canary's challenger can be wired into its product.

_TRIAL_RULES = (
    Rule(
        code="TG320",
        title="the challenger does not fit the release",
        severity=Severity.ERROR,
        why="A canary is a second model between the features and the decision of the "
        "release, in the configuration that is merged when it is loaded; what does "
        "not fit there is not served.",
        source="docs/contract.md, Releases",
        mend="Give the decision step the optional input, or try the challenger as a "
        "shadow.",
    ),
)
# The other model's output always exists, whether the step needs it or not.
_ALLOWED = "TG121"


def _trial_findings(view: View) -> Iterator[Finding]:
    """Merge every product with its challenger and follow the wires."""
    for product in view.products:
        try:
            release = view.snapshot.release(product)
            if canary_of(release) is None:
                continue
            plan_serving(view.snapshot, structs.replace(release, challenger=None))
        except InputError:
            continue  # a finding of another rule
        yield from _canary_findings(view, release)


def _canary_findings(view: View, release: Release) -> Iterator[Finding]:
    try:
        plan = plan_serving(view.snapshot, release)
    except RepositoryError as exc:
        yield Finding(
            code="TG320", file=exc.source, where=exc.where, problem=exc.problem
        )
        return
    file = view.models[release.product].file
    for code, where, problem, at in _wires(plan):
        if code != _ALLOWED:
            yield Finding(code="TG320", file=file, where=where, problem=problem, at=at)


def _wires(plan: ServingPlan) -> Iterator[Break]:
    """Follow the wires of the ensemble with both models in it."""
    merged = merge(plan.ensemble, pins=plan.release.versions)
    if plan.canary is not None:
        add_canary(merged, step=plan.canary.step, version=plan.canary.version)
    ends = {name: Ends.of(config, name=name) for name, config in plan.configs.items()}
    wires = Wires(Ends.of(merged, name=merged.name))
    yield from wires.follow(in_data_order(merged), ends)


# Rules TG4xx except TG405: check warm-up, caches, threads and histograms.

# Triton's default, ms: docs/user_guide/metrics of triton-inference-server/server.
DEFAULT_MS = (100.0, 500.0, 2000.0, 5000.0)
_NEAR = 0.1  # of the objective: a closer boundary gives the same share


def blind(buckets_ms: Sequence[float], objective_ms: float) -> bool:
    """Return whether no boundary lies within a tenth of the objective."""
    return not any(
        abs(bucket - objective_ms) <= _NEAR * objective_ms for bucket in buckets_ms
    )


_EXECUTION_RULES = (
    Rule(
        code="TG401",
        title="warm-up of a Python step",
        severity=Severity.WARNING,
        in_product=Severity.ERROR,
        why="Triton calls the step with made-up requests and without parameters: what "
        "it writes is written, and an error that it answers fails the load.",
        source="measured on 2.51: docs/contract.md, House rules of a config.pbtxt",
        mend="Take model_warmup out; warm the step in its initialize.",
    ),
    Rule(
        code="TG402",
        title="a response cache on features, or behind them",
        severity=Severity.WARNING,
        in_product=Severity.ERROR,
        why="The key is model and inputs, and nothing expires: what the step reads "
        "elsewhere (a store, a clock, a list) has no part in it, so old answers are "
        "given for ever. Only a pure model may be cached.",
        source=DOCS + "user_guide/response_cache.html; measured on 2.51",
        mend="Take response_cache out of the ensemble and of its Python steps.",
    ),
    Rule(
        code="TG403",
        title="more threads than cores",
        severity=Severity.WARNING,
        why="Each instance has a pool of its own; pools that share cores wait for one "
        "another, and the latency of the slowest is that of the batch.",
        source="github.com/triton-inference-server/onnxruntime_backend/issues/245",
        mend="Lower the pool (1 is right for small models) or the count of instances; "
        "state the number of cores if the server runs on another machine.",
    ),
    Rule(
        code="TG404",
        title="several instances, each with a pool as large as the machine",
        severity=Severity.ADVICE,
        why="onnxruntime makes a pool of one thread per core for every instance when "
        "the configuration sets none.",
        source="onnxruntime.ai/docs/performance/tune-performance/threading.html",
        mend='parameters { key: "intra_op_thread_count" value { string_value: "1" } }',
    ),
    Rule(
        code="TG406",
        title="a latency histogram is blind to the objective",
        severity=Severity.WARNING,
        why="The share of answers within the objective can only be read off at a "
        "boundary; Triton's own are 100, 500, 2000 and 5000 ms.",
        source=DOCS + "user_guide/metrics.html",
        mend="Give the model a boundary at the objective, in model_metrics.",
    ),
    Rule(
        code="TG407",
        title="an ensemble has warm-up or instances",
        severity=Severity.ERROR,
        why="Triton refuses the ensemble: it runs nothing itself.",
        source="tried on 2.51",
        mend="Give them to its steps. The whole path is warmed by requests.",
    ),
    Rule(
        code="TG408",
        title="a response cache on a decoupled model",
        severity=Severity.ERROR,
        why="Triton refuses the model: one request may have many answers.",
        source="tried on 2.51; " + DOCS + "user_guide/response_cache.html",
        mend="Take response_cache out.",
    ),
)
_NOT_OF_ENSEMBLES = ("model_warmup", "instance_group")

# Parameter that sets the size of a backend's pool within one instance.
_POOLS = {
    ONNX_BACKEND: "intra_op_thread_count",
    "pytorch": "INTRA_OP_THREAD_COUNT",
    "tensorflow": "TF_NUM_INTRA_THREADS",
}


def _execution_findings(view: View) -> Iterator[Finding]:
    """Check warm-up, caches, threads and histograms."""
    for model, config in view.configured():
        yield from _pool_findings(view, model, config)
        yield from _histogram_findings(view, model, config)
        yield from _refused(model, config)
        if model.name in view.in_products:
            continue  # the rules for products check it
        if config.model_warmup and model.is_python:
            problem = "runs the step on made-up requests, without parameters"
            yield _finding("TG401", model, "model_warmup", problem)
    yield from _cache_findings(view)


def _finding(code: str, model: Model, at: str, problem: str) -> Finding:
    return Finding(code=code, file=model.file, where=at, problem=problem, at=at)


def _refused(model: Model, config: ModelConfig) -> Iterator[Finding]:
    """Yield settings with which Triton does not load a model."""
    for field in _NOT_OF_ENSEMBLES if model.is_ensemble else ():
        if getattr(config, field):
            problem = "is of models that run something; an ensemble has none"
            yield _finding("TG407", model, field, problem)
    if config.response_cache.enable and config.model_transaction_policy.decoupled:
        problem = "is not possible for a decoupled model"
        yield _finding("TG408", model, "response_cache", problem)


def _cache_findings(view: View) -> Iterator[Finding]:
    """Check for caches on ensembles with a Python step, and on these steps."""
    for model, config in view.ensembles():
        if model.name in view.in_products:
            continue
        python = [(step, own) for step, own in view.steps(config) if step.is_python]
        if config.response_cache.enable and python:
            names = ", ".join(step.name for step, _ in python)
            problem = f"answers of {names} would be repeated, whatever they read"
            yield _finding("TG402", model, "response_cache", problem)
        for step, own in python:
            if own.response_cache.enable:
                problem = f"a Python step of {model.name}: what it reads has no part"
                yield _finding("TG402", step, "response_cache", problem)


def _pool_findings(view: View, model: Model, config: ModelConfig) -> Iterator[Finding]:
    """Multiply instances on the CPU by the threads of each."""
    parameter = _POOLS.get(model.backend)
    instances = sum(
        max(group.count, 1)
        for group in config.instance_group
        if group.kind == ModelInstanceGroup.KIND_CPU
    )
    if parameter is None or not instances:
        return
    parameters = {key: one.string_value for key, one in config.parameters.items()}
    text = parameters.get(parameter, "")
    threads = int(text) if text.isdecimal() else 0
    if threads * instances > view.cores:
        yield Finding(
            code="TG403",
            file=model.file,
            where=f"parameters {parameter}",
            problem=f"{threads} threads in each of {instances} instances, "
            f"for {view.cores} cores",
            at=f"parameters[{parameter}]",
        )
    if not threads and instances > 1 and model.backend == ONNX_BACKEND:
        problem = f"{instances} instances, and no {parameter}: a pool per core in each"
        yield _finding("TG404", model, "instance_group", problem)


def _histogram_findings(
    view: View, model: Model, config: ModelConfig
) -> Iterator[Finding]:
    """Compare the boundaries that a model declares with the objective."""
    objective_ms = view.objectives_ms.get(model.name)
    if objective_ms is None:
        return
    for place, control in enumerate(config.model_metrics.metric_control):
        family = control.metric_identifier.family
        buckets = tuple(control.histogram_options.buckets)
        if family.endswith("_ms") and blind(buckets, objective_ms):
            known = ", ".join(f"{bucket:g}" for bucket in buckets)
            problem = (
                f"{family} has {known} ms and none at the objective, "
                f"{objective_ms:g} ms"
            )
            at = f"model_metrics.metric_control[#{place}].histogram_options.buckets"
            yield _finding("TG406", model, at, problem)


# Rule TG405: check that the server's onnxruntime reads the models.

_GRAPH_RULES = (
    Rule(
        code="TG405",
        title="a model is newer than the server's onnxruntime reads",
        severity=Severity.ERROR,
        why="onnxruntime refuses operator sets and file formats newer than it knows, "
        "so the model does not load.",
        source="tried for each release: tollgate/repository/models/targets.py",
        mend="Convert it for this server (`tollgate convert --target RELEASE`), or "
        "serve with a newer one.",
    ),
)


class Header(msgspec.Struct, frozen=True):
    """
    The header of an ONNX file.

    Attributes:
        ir: Version of its format.
        opsets: Operator set by domain; the default domain is the empty name.
    """

    ir: int
    opsets: dict[str, int]


def graph_findings(view: View, *, release: str) -> Iterator[Finding]:
    """
    Compare every version's model with the formats that a release reads.

    Args:
        view: The repository.
        release: Release of Triton, year and month; one between two known ones is
            assumed to read what the newer of them reads, so that no readable model is
            reported.
    """
    target = _target_of(release)
    if target is None:
        return
    for model, config in view.configured():
        if model.backend != ONNX_BACKEND:
            continue
        for version in model.versions:
            name = config.default_model_filename or MODEL_FILE
            path = model.directory / str(version) / name
            if path.is_file():
                yield from _format_findings(path, target=target, release=release)


def _target_of(release: str) -> Target | None:
    """Look up a release, or the next newer one that is known."""
    newer = [name for name in sorted(TARGETS) if name >= release]
    return TARGETS[newer[0]] if newer else None


def _format_findings(path: Path, *, target: Target, release: str) -> Iterator[Finding]:
    header = read_header(path)
    if header is None:
        problems = ["cannot be read as an ONNX model"]
    else:
        problems = [
            f"operator set {domain or 'ai.onnx'} {version}: Triton {release} reads "
            f"up to {target.newest[domain]}"
            for domain, version in sorted(header.opsets.items())
            if version > target.newest.get(domain, version)
        ]
        if header.ir > target.ir:
            problems.append(
                f"IR version {header.ir}: Triton {release} reads up to {target.ir}"
            )
    for problem in problems:
        yield Finding(code="TG405", file=str(path), where="", problem=problem)


def read_header(path: Path) -> Header | None:
    """
    Read format and operator sets of an ONNX file.

    Returns:
        The header; None if the file cannot be read, or is no ONNX model.
    """
    try:
        model = parse_onnx(path)
    except RepositoryError:
        return None
    opsets = {
        "" if one.domain == "ai.onnx" else one.domain: one.version
        for one in model.opset_import
    }
    ir = model.ir_version
    return Header(ir=ir, opsets=opsets) if ir and opsets else None


RULES = (
    *_LAYOUT_RULES,
    *_WIRE_RULES,
    *_QUEUE_RULES,
    *_VERSION_RULES,
    *_TRIAL_RULES,
    *_EXECUTION_RULES,
    *_GRAPH_RULES,
)


def findings(view: View) -> Iterator[Finding]:
    """Check by all rules that need no more than the repository."""
    yield from _layout_findings(view)
    yield from _wire_findings(view)
    yield from _queue_findings(view)
    yield from _version_findings(view)
    yield from _trial_findings(view)
    yield from _execution_findings(view)

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


def _finding(
    code: str, model: Model, where: str, problem: str, *, at: str = ""
) -> Finding:
    """Make a finding in the configuration of a model."""
    return Finding(code=code, file=model.file, where=where, problem=problem, at=at)


# Rules TG0xx: check that the files that Triton needs exist and can be read.


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
                where = f"step {step.model_name}"
                at = f"ensemble_scheduling.step[{step.model_name}].model_name"
                problem = "is not in the repository"
                yield _finding("TG004", model, where, problem, at=at)


# Rules TG1xx: check that the tensors of every ensemble connect.


def _wire_findings(view: View) -> Iterator[Finding]:
    """Follow the tensors of every ensemble that is not a product with its own check."""
    for model, config in view.ensembles():
        if model.name in view.products:
            continue
        yield from _batch_findings(view, model, config)
        wires = Wires(_ends(config, name=model.name))
        steps = config.ensemble_scheduling.step
        ends = {step.model_name: Ends() for step in steps}
        ends |= {
            step.name: _ends(own, name=step.name) for step, own in view.steps(config)
        }
        for code, where, problem, at in wires.follow(in_data_order(config), ends):
            yield _finding(code, model, where, problem, at=at)


def _ends(config: ModelConfig, *, name: str) -> Ends:
    """Read a model's tensors; None for those that Triton is to complete."""
    declared = Ends.of(config, name=name)
    return Ends(inputs=declared.inputs or None, outputs=declared.outputs or None)


def _batch_findings(view: View, model: Model, config: ModelConfig) -> Iterator[Finding]:
    most = config.max_batch_size
    for step, own in view.steps(config):
        if 0 < own.max_batch_size < most:
            problem = f"{most}, but {step.name} takes batches of {own.max_batch_size}"
            yield _finding("TG109", model, "max_batch_size", f"{problem} only")


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

_LAYERS = Layers()


def _queue_findings(view: View) -> Iterator[Finding]:
    """Check every queue and every delay."""
    for model, config in view.configured():
        yield from _large_batches(model, config)
        if model.name not in view.in_products:
            for code, where, problem in queue_breaks(config):
                yield _finding(code, model, where, problem)
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
        problem = f"{large[0]} is over max_batch_size, {most}"
        where = "dynamic_batching.preferred_batch_size"
        yield _finding("TG208", model, where, problem)


def _second_delays(batching: Batching) -> Iterator[Finding]:
    """Yield every delay, except the longest one, that is more than a batch needs."""
    steps = {step.name: own for step, own in batching}
    for step, own in batching:
        for code, where, problem in second_delay(step.name, own, steps=steps):
            yield _finding(code, step, where, problem)


def _long_delays(delays: Delays, *, objective_ms: float | None) -> Iterator[Finding]:
    """Compare the sum of the delays with their share of the objective."""
    if objective_ms is None or not delays:
        return
    total_us = sum(delay_us for _, delay_us in delays)
    share_us = objective_ms * 1000 * _LAYERS.model / _LAYERS.total_ms
    if total_us > share_us:
        longest, _ = max(delays, key=lambda one: one[1])
        problem = (
            f"{total_us / 1000:g} ms of delay, for an answer within {objective_ms:g} "
            f"ms; at most {share_us / 1000:g} leaves time for the work"
        )
        yield _finding("TG204", longest, DELAY, problem)


def _open_queue(model: Model, batching: Batching) -> Iterator[Finding]:
    """Yield one advice for each model that callers reach."""
    if any(list(queue_breaks(config)) for _, config in batching) or not batching:
        return
    names = ", ".join(step.name for step, _ in batching)
    problem = f"the queue of {names} grows as long as callers wait"
    yield _finding("TG205", model, "", problem, at="dynamic_batching")


# Rules TG301 and TG302: compare loaded versions with those an ensemble names.

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
                where = f"{step.model_name}: model_version"
                at = f"ensemble_scheduling.step[{step.model_name}].model_version"
                yield _finding("TG302", model, where, problem, at=at)
            elif own.config is not None:
                policy = own.config.version_policy.WhichOneof("policy_choice")
                if policy == "specific":
                    continue
                stated = f'"{policy}"' if policy else "left out, which means latest,"
                asks = f"while {model.name} asks for version {step.model_version}"
                yield _finding("TG301", own, "version_policy", f"{stated} {asks}")


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


# Rule TG320: check that a canary's challenger can be wired into its product.

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
        problem = (
            f"{threads} threads in each of {instances} instances, for {view.cores} "
            "cores"
        )
        where, at = f"parameters {parameter}", f"parameters[{parameter}]"
        yield _finding("TG403", model, where, problem, at=at)
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


class Header(msgspec.Struct, frozen=True):
    """An ONNX file's format version, and operator set by domain ("": the default)."""

    ir: int
    opsets: dict[str, int]


def graph_findings(view: View, *, release: str) -> Iterator[Finding]:
    """
    Compare every version's model with the formats that a release reads.

    Args:
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
    """Read format and operator sets of an ONNX file; None if it is none."""
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


def findings(view: View) -> Iterator[Finding]:
    """Check by all rules that need no more than the repository."""
    yield from _layout_findings(view)
    yield from _wire_findings(view)
    yield from _queue_findings(view)
    yield from _version_findings(view)
    yield from _trial_findings(view)
    yield from _execution_findings(view)

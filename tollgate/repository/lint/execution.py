"""Rules TG4xx except TG405: check warm-up, caches, threads and histograms."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelInstanceGroup

from tollgate.repository.findings import Finding
from tollgate.repository.lint.lint_rule import DOCS, Rule, Severity
from tollgate.repository.lint.view import ONNX_BACKEND, Model, View

# Triton's default, ms: docs/user_guide/metrics of triton-inference-server/server.
DEFAULT_MS = (100.0, 500.0, 2000.0, 5000.0)
_NEAR = 0.1  # of the objective: a closer boundary gives the same share


def blind(buckets_ms: Sequence[float], objective_ms: float) -> bool:
    """Return whether no boundary lies within a tenth of the objective."""
    return not any(
        abs(bucket - objective_ms) <= _NEAR * objective_ms for bucket in buckets_ms
    )


RULES = (
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


def findings(view: View) -> Iterator[Finding]:
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

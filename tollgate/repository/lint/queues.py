"""Rules TG2xx: check batches and the queues before them."""

from __future__ import annotations

from collections.abc import Iterator

from tritonclient.grpc.model_config_pb2 import ModelConfig

from tollgate.repository.findings import Finding
from tollgate.repository.lint.lint_rule import ISSUES, Rule, Severity
from tollgate.repository.lint.product_rules import (
    DELAY,
    delay_us,
    queue_breaks,
    second_delay,
)
from tollgate.repository.lint.view import Model, View
from tollgate.repository.slo import Layers

_BOUNDS = "measured here: docs/performance-log.md, no bound on any queue"
_FIELD = Layers()
_DECIDED = "measured here: docs/adr/0001-batching-without-delay.md"
_GATHER = "measured here: docs/adr/0011-requests-gather-at-the-first-step.md"

RULES = (
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


def findings(view: View) -> Iterator[Finding]:
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
    share_us = objective_ms * 1000 * _FIELD.model / _FIELD.total_ms
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

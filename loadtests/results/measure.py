"""Measure one run: requests, answers, latency, processor time and memory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from loadtests.requests.bodies import bodies_of
from loadtests.requests.generator import (
    TAIL_S,
    Generator,
    GeneratorRun,
    Scenario,
    run_h2load,
)
from loadtests.requests.recorded_answers import Tally, tally
from loadtests.results.percentiles import Latency, latency_of
from tollgate.errors import ServerError
from tollgate.load.process_usage import Use, use_of
from tollgate.load.traffic import Traffic
from tollgate.server.serving.embedded import Embedded
from tollgate.server.triton import control


class Work(msgspec.Struct, frozen=True):
    """
    Counts of the server, warm-up and tail included.

    Attributes:
        answered: Requests that the ensemble answered.
        failed: Requests that failed, by the ensemble; it counts those cut off by the
            end of a run, some of them twice.
        purchases: Rows that reached the feature step.
        feature_batches: Number of calls of the feature step.
        model_batches: Number of calls of the model.
        writes: Values written to the store: of entities, and decisions.
        cpu_s: Processor time of all processes of the server, s.
    """

    answered: int
    failed: int
    purchases: int
    feature_batches: int
    model_batches: int
    writes: int
    cpu_s: float


class Run(msgspec.Struct, frozen=True):
    """
    Results of one run.

    Attributes:
        measured_s: Duration without warm-up and tail, s.
        requests_per_s: Answered requests per second.
        decisions_per_s: Rows answered with a decision, per second.
        latency: Latency of the requests that ended inside the measured time.
        tally: Counts of their answers.
        new_share: Share of the sent bodies that were sent for the first time.
        writes_per_purchase: Values written. 3 when every purchase is applied to both
            its entities and its decision is stored; a customer who occurs twice in one
            batch is written once, and a store that does not answer in time may or may
            not have written.
        continued_bodies: Bodies that flow control cut; see vary.c.
        use: Memory at the end of the run.
        generator_cpu_s: Processor time of h2load, s.
    """

    measured_s: float
    requests_per_s: float
    decisions_per_s: float
    latency: Latency
    tally: Tally
    new_share: float
    writes_per_purchase: float
    continued_bodies: int
    work: Work
    use: Use
    generator_cpu_s: float


class LimitBench(msgspec.Struct, frozen=True):
    """State that all runs share."""

    server: Embedded
    generator: Generator
    traffic: Traffic
    folder: Path


def measure(
    bench: LimitBench,
    scenario: Scenario,
    *,
    first: int,
    warm_up_s: float,
    measured_s: float,
) -> tuple[Run, int]:
    """
    Measure one run.

    Args:
        first: Index of the first purchase of the traffic that was not sent yet.
        warm_up_s: Time before the measurement, s.
        measured_s: Measured time, s.

    Returns:
        The run, and the next purchase that was not sent yet.

    Raises:
        ServerError: The server died, or h2load failed.
    """
    run_s = warm_up_s + measured_s + TAIL_S
    count = int(scenario.most_requests_per_s * run_s)
    columns = bench.traffic.columns(first, count * scenario.rows)
    bodies = bodies_of(columns, rows=scenario.rows)
    before = work_of(bench.server)
    try:
        generated = run_h2load(
            bench.generator,
            scenario,
            bodies=bodies,
            grpc_url=bench.server.grpc_url,
            run_s=run_s,
            folder=bench.folder,
        )
    finally:
        _require_alive(bench.server)  # its error says more than h2load's
    work = work_since(before, work_of(bench.server))
    run = summarize(
        generated,
        work=work,
        use=use_now(bench.server),
        bodies=count,
        warm_up_s=warm_up_s,
        measured_s=measured_s,
    )
    return run, first + min(generated.recorded.offered, count) * scenario.rows


def summarize(
    generated: GeneratorRun,
    *,
    work: Work,
    use: Use,
    bodies: int,
    warm_up_s: float,
    measured_s: float,
) -> Run:
    """
    Compute the figures of one run of h2load.

    Args:
        generated: Result of h2load.
        use: Memory of the server's processes.
        bodies: Number of different bodies.
        warm_up_s: Time from the first request that is left out, s.
        measured_s: Measured time after that, s: requests that end in it count.
    """
    log, recorded = generated.log, generated.recorded
    from_us = int(log.start_us.min()) + int(warm_up_s * 1e6)
    until_us = from_us + int(measured_s * 1e6)
    end_us = log.start_us + log.took_us
    inside = (end_us >= from_us) & (end_us < until_us) & (log.status == 200)
    counts = tally(
        one for one in recorded.answers if from_us <= one.ended_us < until_us
    )
    return Run(
        measured_s=measured_s,
        requests_per_s=counts.requests / measured_s,
        decisions_per_s=counts.rows / measured_s,
        latency=latency_of(np.asarray(log.took_us[inside])),
        tally=counts,
        new_share=min(bodies, recorded.offered) / recorded.offered,
        writes_per_purchase=work.writes / max(1, work.purchases),
        continued_bodies=recorded.continued,
        work=work,
        use=use,
        generator_cpu_s=generated.cpu_s,
    )


def _require_alive(server: Embedded) -> None:
    if not server.triton.alive():
        raise ServerError(
            "tritonserver", "died under the load", log=server.triton.useful_log()
        )


def use_now(server: Embedded) -> Use:
    """Read memory and processor time of the server's processes and its store."""
    return use_of([server.triton.pid, *([server.redis.pid] if server.redis else [])])


def work_of(server: Embedded) -> Work:
    """Read the server's counters."""
    import redis

    models = control.statistics(server.triton)
    with redis.Redis.from_url(server.store_url) as store:
        commands: Mapping[str, Any] = store.info("commandstats")
    ensemble = models["fraud"]["inference_stats"]
    # A product that is served fused is one model.
    features = models.get("fraud_features", models["fraud"])
    model = models.get("fraud_model", models["fraud"])
    return Work(
        answered=_count(ensemble, "success"),
        failed=_count(ensemble, "fail"),
        purchases=int(features.get("inference_count", 0)),
        feature_batches=int(features.get("execution_count", 0)),
        model_batches=int(model.get("execution_count", 0)),
        writes=sum(
            int(commands.get(f"cmdstat_{name}", {}).get("calls", 0))
            for name in ("set", "append")  # whole, and in place
        ),
        cpu_s=use_now(server).cpu_s,
    )


def _count(statistics: Mapping[str, Any], name: str) -> int:
    return int(statistics.get(name, {}).get("count", 0))


def work_since(before: Work, after: Work) -> Work:
    """Return the difference of two readings."""
    return Work(
        **{
            name: getattr(after, name) - getattr(before, name)
            for name in Work.__struct_fields__
        }
    )

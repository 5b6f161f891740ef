"""Run one turn of one stage: load it, and read its throughput, latency and cost."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from loadtests.baseline.json_bodies import json_bodies
from loadtests.journey.stages import Stage
from loadtests.requests.bodies import bodies_of
from loadtests.requests.generator import (
    SCENARIOS,
    TAIL_S,
    Generator,
    GeneratorRun,
    Scenario,
    command_line,
    http_command_line,
    run_h2load,
)
from loadtests.requests.recorded_answers import tally
from loadtests.results.percentiles import Latency, latency_of
from tollgate.errors import ServerError
from tollgate.load.process_usage import Use, use_of
from tollgate.load.traffic import Traffic

# Four connections are four replicas of a caller over gRPC; HTTP/1.1 has one request
# in flight on each.
CLOSED = SCENARIOS
_MOST_PER_S = {"naive": 1_000}  # more than it answers
_OK = 200


class Turn(msgspec.Struct, frozen=True):
    """
    Results of one turn.

    Attributes:
        requests_per_s: Requests answered within the measured time, per second.
        decisions_per_s: Rows in them, per second.
        latency: Percentiles of their latency.
        failed: Requests without an answer or with an error, those of the warm-up
            included.
        degraded_share: Share of Tollgate's rows with any degraded bit; the others have
            no such answers.
        batch_rows: Mean rows of Tollgate's batches; 0 where unknown.
        cpu_ms: Processor time of service and store per decision.
        service_mb: Memory of the service (PSS) at the end.
        store_mb: Memory of its Redis at the end.
        generator_cpu: Share of one core that h2load used.
        failures: Failed requests by reason.
    """

    stage: str
    scenario: str
    requests_per_s: float
    decisions_per_s: float
    latency: Latency
    failed: int
    degraded_share: float
    batch_rows: float
    cpu_ms: float
    service_mb: float
    store_mb: float
    generator_cpu: float
    failures: dict[str, int] = {}


class Plan(msgspec.Struct, frozen=True):
    """Parameters that all turns share."""

    generator: Generator
    traffic: Traffic
    folder: Path
    warm_up_s: float
    measured_s: float


def in_flight(scenario: Scenario, stage: Stage) -> Scenario:
    """Adapt a scenario to the stage's protocol: as many requests in flight."""
    if stage.grpc:
        return scenario
    return msgspec.structs.replace(scenario, connections=scenario.in_flight, streams=1)


def run_turn(
    plan: Plan, stage: Stage, scenario: Scenario, *, first: int
) -> tuple[Turn, int]:
    """
    Load one stage.

    Args:
        first: Index of the first purchase that it was not sent yet.

    Returns:
        The turn, and the next purchase that it was not sent yet.

    Raises:
        ServerError: It died, or h2load failed.
    """
    run_s = plan.warm_up_s + plan.measured_s + TAIL_S
    most = min(scenario.most_requests_per_s, _MOST_PER_S.get(stage.name, 10**9))
    count = int(most * run_s)
    columns = plan.traffic.columns(first, count * scenario.rows)
    write = bodies_of if stage.grpc else json_bodies
    path = "/decide" if scenario.rows == 1 else stage.batch_path
    before, worked = _used(stage), stage.batches()
    before_without = stage.without_server()
    generated = run_h2load(
        plan.generator,
        in_flight(scenario, stage),
        bodies=write(columns, rows=scenario.rows),
        grpc_url=stage.url,
        run_s=run_s,
        folder=plan.folder,
        write_command=(
            command_line if stage.grpc else partial(http_command_line, path=path)
        ),
    )
    stage.require_alive()
    after = _used(stage)
    if generated.recorded.offered > count:
        raise ServerError(stage.name, f"answered more than {most} requests a second")
    turn = summarize(
        plan,
        stage,
        scenario,
        generated=generated,
        use=(before, after),
        batches=(worked, stage.batches()),
    )
    if without := stage.without_server() - before_without:
        failures = {**turn.failures, "a row answered without the server": without}
        turn = msgspec.structs.replace(
            turn, failed=sum(failures.values()), failures=failures
        )
    return turn, first + generated.recorded.offered * scenario.rows


def summarize(
    plan: Plan,
    stage: Stage,
    scenario: Scenario,
    *,
    generated: GeneratorRun,
    use: tuple[tuple[Use, Use], tuple[Use, Use]],
    batches: tuple[tuple[int, int], tuple[int, int]],
) -> Turn:
    """
    Compute the figures of one turn.

    Args:
        generated: Result of h2load.
        use: Memory and processor time of service and store, before and after.
        batches: Rows and batches that the stage worked on, before and after.
    """
    log = generated.log
    from_us = int(log.start_us.min()) + int(plan.warm_up_s * 1e6)
    until_us = from_us + int(plan.measured_s * 1e6)
    end_us = log.start_us + log.took_us
    good = log.status == _OK
    inside = (end_us >= from_us) & (end_us < until_us) & good
    failures, degraded_share = _statuses(log.status[~good]), 0.0
    if stage.grpc:
        counts = tally(generated.recorded.answers)
        failures = dict(counts.failures)
        if counts.refused_rows:
            failures["a row with an error"] = counts.refused_rows
        degraded_share = counts.degraded_rows / max(1, counts.rows)
    answered = max(1, int(good.sum()))
    before, after = use
    cpu_s = sum(one.cpu_s for one in after) - sum(one.cpu_s for one in before)
    rows, count = np.subtract(batches[1], batches[0]).tolist()
    return Turn(
        stage=stage.name,
        scenario=scenario.name,
        requests_per_s=int(inside.sum()) / plan.measured_s,
        decisions_per_s=int(inside.sum()) * scenario.rows / plan.measured_s,
        latency=latency_of(np.asarray(log.took_us[inside])),
        failed=sum(failures.values()),
        degraded_share=degraded_share,
        batch_rows=rows / max(1, count),
        cpu_ms=cpu_s * 1e3 / (answered * scenario.rows),
        service_mb=after[0].pss_mb,
        store_mb=after[1].pss_mb,
        generator_cpu=generated.cpu_s / (plan.warm_up_s + plan.measured_s + TAIL_S),
        failures=failures,
    )


def _statuses(found: npt.NDArray[np.int64]) -> dict[str, int]:
    """Count the HTTP statuses of requests that failed."""
    statuses, counts = np.unique(found, return_counts=True)
    pairs = zip(statuses.tolist(), counts.tolist(), strict=True)
    return {
        f"HTTP status {status}" if status > 0 else "no answer": count
        for status, count in pairs
    }


def _used(stage: Stage) -> tuple[Use, Use]:
    """Read memory and processor time of a stage's service, and of its store."""
    return use_of(stage.pids), use_of([stage.store_pid])

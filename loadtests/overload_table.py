"""Write the results of an overload test as a table."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from loadtests.paced.calls import ANSWERED, Results
from loadtests.paced.raw import Server

WARM_UP_S = 1.0
REFUSED = "UNAVAILABLE"
PATHS = ("direct", "gate")  # of single streams
_HEAD = (
    "| | requests/s | answered/s | of the best | p50 ms | p99 ms | refused/s "
    "| p50 ms | p99 ms | other/s | worked on "
    "| CPU µs per request: server | gate | sender |\n"
    "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|"
)


class Flow(msgspec.Struct, frozen=True):
    """
    A stream of requests.

    Attributes:
        caller: Name of the caller that sends it.
        rate: Mean requests per second.
        rows: Rows in each request.
        bulk: True if they are bulk requests.
    """

    caller: str
    rate: float
    rows: int
    bulk: bool = False


class PartRun(msgspec.Struct, frozen=True, eq=False):
    """
    One run of a part.

    Attributes:
        part: Name of the part.
        flows: Streams with the results of their requests; the judged stream is first.
        server: Counts of the server; None where it was not queried.
        gate_cpu_s: Processor time of nginx.
        sender_cpu_s: Processor time of all senders.
    """

    part: str
    flows: list[tuple[Flow, Results]]
    server: Server | None
    gate_cpu_s: float
    sender_cpu_s: float


class Line(msgspec.Struct, frozen=True):
    """
    One stream of one run, after the warm-up.

    Attributes:
        name: Name of the part, and of the stream where there are several.
        due_per_s, answered_per_s, refused_per_s, other_per_s: Requests per second.
        answered_ms, refused_ms: p50 and p99 of their latency; NaN without any.
    """

    name: str
    due_per_s: float
    answered_per_s: float
    refused_per_s: float
    other_per_s: float
    answered_ms: tuple[float, float]
    refused_ms: tuple[float, float]


def line_of(name: str, results: Results, *, seconds: float) -> Line:
    """Compute the figures of one stream; `seconds` is without the warm-up."""
    calls = results.calls[results.calls["due_us"] >= WARM_UP_S * 1e6]
    kinds = np.array(results.kinds)[calls["kind"]] if len(calls) else np.array([], str)
    answered, refused = kinds == ANSWERED, kinds == REFUSED
    took_ms = calls["took_us"] / 1e3
    return Line(
        name=name,
        due_per_s=len(calls) / seconds,
        answered_per_s=float(answered.sum() / seconds),
        refused_per_s=float(refused.sum() / seconds),
        other_per_s=float((~answered & ~refused).sum() / seconds),
        answered_ms=_middle_and_late(took_ms[answered]),
        refused_ms=_middle_and_late(took_ms[refused]),
    )


def table(
    found: Sequence[PartRun], *, measured: str, command: str, seconds: float
) -> str:
    """
    Write all runs unchanged; nothing is averaged.

    "of the best" is the answered rate as a share of the highest answered rate in any
    run on the same path, of single streams.
    """
    lines = [
        [_named(one, flow, results, seconds) for flow, results in one.flows]
        for one in found
    ]
    best: dict[str, float] = {}
    for one, (first, *_) in zip(found, lines, strict=True):
        path = one.part.split()[0]
        best[path] = max(best.get(path, 0.0), first.answered_per_s)
    rows = []
    for one, several in zip(found, lines, strict=True):
        path = one.part.split()[0]
        for number, line in enumerate(several):
            share = line.answered_per_s / best[path] if path in PATHS else None
            rows.append(_row(line, share=share, cpu=None if number else _cpu(one)))
    return "\n".join([f"Measured {measured}.", "", f"`{command}`", "", _HEAD, *rows])


def _named(one: PartRun, flow: Flow, results: Results, seconds: float) -> Line:
    name = one.part
    if len(one.flows) > 1:
        name += f": {'bulk' if flow.bulk else flow.caller}"
    return line_of(name, results, seconds=seconds)


def _cpu(one: PartRun) -> tuple[str, ...]:
    """
    Format the share of rows that reached the feature step, and the CPU per request.
    """
    calls = sum(len(results.calls) for _, results in one.flows)
    rows = sum(len(results.calls) * flow.rows for flow, results in one.flows)
    server = one.server
    worked = f"{server.purchases / rows:.0%}" if server else ""
    used_s = (server.cpu_s if server else 0.0, one.gate_cpu_s, one.sender_cpu_s)
    return (worked, *(f"{1e6 * used / calls:,.0f}" for used in used_s))


def _row(line: Line, *, share: float | None, cpu: tuple[str, ...] | None) -> str:
    cells = [
        line.name,
        f"{line.due_per_s:,.0f}",
        f"{line.answered_per_s:,.0f}",
        "" if share is None else f"{share:.0%}",
        *map(_ms, line.answered_ms),
        f"{line.refused_per_s:,.0f}",
        *map(_ms, line.refused_ms),
        f"{line.other_per_s:,.0f}",
        *(cpu or ("", "", "", "")),
    ]
    return f"| {' | '.join(cells)} |"


def _ms(value: float) -> str:
    return "" if np.isnan(value) else f"{value:,.1f}"


def _middle_and_late(took_ms: npt.NDArray[np.float64]) -> tuple[float, float]:
    if not len(took_ms):
        return float("nan"), float("nan")
    p50, p99 = np.percentile(took_ms, [50, 99], method="inverted_cdf")
    return float(p50), float(p99)

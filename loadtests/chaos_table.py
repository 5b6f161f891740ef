"""Figures and table of the results that callers of a client see under faults."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from loadtests.chaos_kinds import ServerFault
from loadtests.latency import percentile

GRACE_S = 0.005
SOURCES = ("model", "cached", "fallback")


class Calls(msgspec.Struct, frozen=True, eq=False):
    """
    Results of N calls.

    Attributes:
        latency_s: Time from the call to its answer; infinite without one; float64 [N].
        source: Index in SOURCES; -1 without an answer; int8 [N].
        fault_start: Number of the first call after the fault began.
        fault_end: Number of the first call after the fault ended.
        load: Load average of the machine in the last minute.
    """

    latency_s: npt.NDArray[np.float64]
    source: npt.NDArray[np.int8]
    fault_start: int
    fault_end: int
    load: float


def to_markdown(
    rows: Sequence[tuple[ServerFault, Calls]], description: str, *, deadline_s: float
) -> str:
    """Write the table, and under it a description of the measurement."""
    head = (
        *("fault", "calls", "answered", f"within {deadline_s * 1e3:g} + 5 ms"),
        *("p50 ms", "p99 ms", "p99.9 ms", "maximum ms"),
        *("model", "cached", "fallback", "of these during the fault: model"),
        "load average",
    )
    lines = ["| " + " | ".join(head) + " |", "|---|" + "---:|" * (len(head) - 1)]
    lines += [
        "| " + " | ".join(_cells(fault, calls, deadline_s=deadline_s)) + " |"
        for fault, calls in rows
    ]
    return "\n".join([*lines, "", description, ""])


def _cells(fault: ServerFault, calls: Calls, *, deadline_s: float) -> list[str]:
    count = len(calls.source)
    inside = calls.latency_s <= deadline_s + GRACE_S
    us = np.sort(np.minimum(calls.latency_s * 1e6, 2.0**53).astype(np.int64))
    during = calls.source[calls.fault_start : calls.fault_end]
    return [
        fault.words,
        str(count),
        _share(calls.source >= 0),
        _share(inside),
        *(f"{percentile(us, part) / 1e3:.1f}" for part in (50, 99, 99.9, 100)),
        *(_share(calls.source == number) for number in range(len(SOURCES))),
        _share(during == 0) if len(during) else "none",
        f"{calls.load:.1f}",
    ]


def _share(chosen: npt.NDArray[np.bool_]) -> str:
    """Format a share in per cent; 100 % only for all."""
    if not len(chosen):
        return "none"
    hundredths = int(chosen.sum() * 10_000 // len(chosen))
    return f"{hundredths / 100:g} %"

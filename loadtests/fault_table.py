"""Figures and table of the cost of a fault."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from loadtests.latency import percentile
from loadtests.paced.calls import Results
from loadtests.repaired import StoreComparison
from tollgate.schema import Degraded

# So many complete answers one after the other are no accident.
WHOLE_IN_A_ROW = 20


class StoreFault(msgspec.Struct, frozen=True):
    """
    A fault of the store.

    Attributes:
        name: Name of the fault in `--only`.
        words: Description for the table.
        behind_proxy: True if the store is reached through the proxy.
    """

    name: str
    words: str
    behind_proxy: bool


class Outcome(msgspec.Struct, frozen=True):
    """
    Results that callers saw.

    Attributes:
        fault: The fault.
        sent: Requests that were due while it lasted.
        answered: Those of them with a decision.
        last_known: Answers with LAST_KNOWN_VECTOR, and no default.
        defaulted: Answers with STORE_UNAVAILABLE.
        degraded: Answers with any degraded bit.
        failed: Requests without a decision.
        p50_ms: Median latency of the decision, from the scheduled time.
        p99_ms: 99th percentile of it.
        recovered_s: Time from the fault's end to the first of many complete answers, s;
            None when there was none.
        late_after: Degraded answers after that.
        comparison: Comparison of the store with one that had no fault, at the end.
    """

    fault: StoreFault
    sent: int
    answered: int
    last_known: int
    defaulted: int
    degraded: int
    failed: int
    p50_ms: float
    p99_ms: float
    recovered_s: float | None
    late_after: int
    comparison: StoreComparison


def outcome_of(
    fault: StoreFault,
    sent: Results,
    *,
    edges: tuple[float, float],
    comparison: StoreComparison,
) -> Outcome:
    """
    Compute the outcome of a run.

    Args:
        fault: The fault.
        sent: All requests of the run.
        edges: Times at which the fault began and ended, on the clock of `sent`.
        comparison: Comparison of the stores at the end.
    """
    begun_s, ended_s = edges
    during = (sent.due_s >= begun_s) & (sent.due_s < ended_s)
    bits, answered = sent.degraded[during], sent.answered[during]
    latency_us = np.sort(_microseconds(sent.latency_s[during]))
    defaulted = (bits & Degraded.STORE_UNAVAILABLE) != 0
    known = (bits & Degraded.LAST_KNOWN_VECTOR) != 0
    whole = sent.answered & (sent.degraded == 0)
    after = np.flatnonzero(sent.due_s >= ended_s)
    first = _first_of_many(whole[after])
    recovered_s, late_after = None, 0
    if first is not None:
        row = after[first]
        recovered_s = float(sent.due_s[row] + sent.latency_s[row] - ended_s)
        late_after = int((~whole[after[first:]]).sum())
    return Outcome(
        fault=fault,
        sent=int(during.sum()),
        answered=int(answered.sum()),
        last_known=int((known & ~defaulted).sum()),
        defaulted=int(defaulted.sum()),
        degraded=int((bits != 0).sum()),
        failed=int((~answered).sum()),
        p50_ms=percentile(latency_us, 50) / 1e3,
        p99_ms=percentile(latency_us, 99) / 1e3,
        recovered_s=recovered_s,
        late_after=late_after,
        comparison=comparison,
    )


def _microseconds(seconds: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    return np.minimum(seconds * 1e6, 2.0**53).astype(np.int64)


def _first_of_many(whole: npt.NDArray[np.bool_]) -> int | None:
    """Return the index of the first run of complete answers that is long enough."""
    in_a_row = 0
    for place, one in enumerate(whole.tolist()):
        in_a_row = in_a_row + 1 if one else 0
        if in_a_row == WHOLE_IN_A_ROW:
            return place - WHOLE_IN_A_ROW + 1
    return None


def to_markdown(outcomes: Sequence[Outcome], description: str) -> str:
    """Write the table, and under it a description of the measurement."""
    head = (
        *("fault", "sent", "answered", "degraded", "of these last known, defaults"),
        *("failed", "p50 ms", "p99 ms", "s to recover", "degraded after that"),
        "features equal after repair",
    )
    lines = ["| " + " | ".join(head) + " |", "|---|" + "---:|" * (len(head) - 1)]
    for one in outcomes:
        recovered = "never" if one.recovered_s is None else f"{one.recovered_s:.2f}"
        cells = (
            *(one.fault.words, one.sent, one.answered, one.degraded),
            f"{one.last_known}, {one.defaulted}",
            *(one.failed, f"{one.p50_ms:.1f}", f"{one.p99_ms:.1f}", recovered),
            *(one.late_after, one.comparison.words),
        )
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join([*lines, "", description, ""])

"""Compute rates, latencies and shares of some calls of a run."""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt

from loadtests.paced.raw import Raw
from loadtests.results.percentiles import Latency, latency_of
from tollgate.load.results import ANSWERED, NO_ANSWER

# Their callers have waited: they count among the latencies, with that time.
IN_VAIN = (NO_ANSWER, "DEADLINE_EXCEEDED")

Calls = npt.NDArray[np.void]
Bool = npt.NDArray[np.bool_]


class Rates(msgspec.Struct, frozen=True):
    """Requests and rows per second that were due, and that were answered."""

    requests_due: float
    decisions_due: float
    requests: float
    decisions: float


def between(at_us: npt.NDArray[np.int64], from_s: float, until_s: float) -> Bool:
    """Return a mask of the moments in a span of the run, its end excluded."""
    return (at_us >= from_s * 1e6) & (at_us < until_s * 1e6)


def waited(calls: Calls, raw: Raw) -> Bool:
    """Return a mask of the calls that have a latency: answered, or timed out."""
    kinds = raw.about.kinds
    counted = [
        place for place, kind in enumerate(kinds) if kind in (ANSWERED, *IN_VAIN)
    ]
    return np.isin(calls["kind"], counted)


def latency_in(calls: Calls, raw: Raw) -> Latency | None:
    """Compute the percentiles of the calls' latencies; None when no call has one."""
    took_us = calls["took_us"][waited(calls, raw)].astype(np.int64)
    return latency_of(took_us) if len(took_us) else None


def rates_in(raw: Raw, from_s: float, until_s: float) -> Rates:
    """Compute the rates of due requests and of answers in a span of the run."""
    calls, seconds = raw.calls, until_s - from_s
    due = between(calls["due_us"], from_s, until_s)
    came = between(calls["due_us"] + calls["took_us"], from_s, until_s)
    came &= calls["kind"] == 0
    return Rates(
        requests_due=int(due.sum()) / seconds,
        decisions_due=int(calls["rows"][due].sum()) / seconds,
        requests=int(came.sum()) / seconds,
        decisions=int(calls["decided"][came].sum()) / seconds,
    )


def share_in(calls: Calls, column: str) -> float:
    """Return the share of the decided rows that a column counts."""
    return int(calls[column].sum()) / max(1, int(calls["decided"].sum()))

"""Cut a run into parts: at its marks, and where the rate changes."""

from __future__ import annotations

import msgspec
import numpy as np

from loadtests.paced.raw import Raw
from loadtests.pages.measures import Rates, between, latency_in, rates_in, share_in
from loadtests.results.percentiles import Latency

_SLICES = 6  # slices of a phase whose rate changes


class Part(msgspec.Struct, frozen=True):
    """
    A part of a run.

    Attributes:
        words: Description of the part.
        from_s: Its beginning, s.
        until_s: Its end, s.
        rates: Rates of the requests due in it.
        latency: Latency of these; None when all failed at once.
        failed: Requests without an answer.
        degraded: Share of the decided rows that are degraded.
        reviewed: Share of the decided rows with the decision review.
        declined: Share of the decided rows with the decision decline.
    """

    words: str
    from_s: float
    until_s: float
    rates: Rates
    latency: Latency | None
    failed: int
    degraded: float
    reviewed: float
    declined: float


def parts_of(raw: Raw) -> tuple[Part, ...]:
    """Cut a run at its marks, and a changing rate into slices."""
    scenario, marks = raw.about.scenario, raw.about.marks
    edges = {mark.at_s for mark in marks} | {scenario.warm_up_s, scenario.seconds}
    at_s = 0.0
    for phase in scenario.phases:
        if phase.to is not None:
            edges |= set(np.linspace(at_s, at_s + phase.seconds, _SLICES + 1).tolist())
        at_s += phase.seconds
    # Round to the microsecond: sums of the same lengths may differ in their last bits.
    rounded = sorted({round(edge, 6) for edge in edges})
    measured = [one for one in rounded if scenario.warm_up_s <= one <= round(at_s, 6)]
    return tuple(
        _part(raw, measured[place], measured[place + 1])
        for place in range(len(measured) - 1)
    )


def _part(raw: Raw, from_s: float, until_s: float) -> Part:
    before = [mark for mark in raw.about.marks if round(mark.at_s, 6) <= from_s]
    due = raw.calls[between(raw.calls["due_us"], from_s, until_s)]
    return Part(
        words=before[-1].words if before else "",
        from_s=from_s,
        until_s=until_s,
        rates=rates_in(raw, from_s, until_s),
        latency=latency_in(due, raw),
        failed=int((due["kind"] != 0).sum()),
        degraded=share_in(due, "degraded"),
        reviewed=share_in(due, "reviewed"),
        declined=share_in(due, "declined"),
    )

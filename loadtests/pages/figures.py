"""Compute the figures of one run from its raw results; nothing here is an average."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from loadtests.paced.raw import STEPS, Raw
from loadtests.results.percentiles import Latency, latency_of, percentile
from tollgate.errors import InputError
from tollgate.latency_budget.busy_share import StepOverlap, at_once
from tollgate.load.results import ANSWERED, NO_ANSWER
from tollgate.schema import Degraded

_INVALID = "INVALID_ARGUMENT"  # status of a request with only bad rows


class Kind(msgspec.Struct, frozen=True):
    """
    Requests without an answer that ended in the same way.

    Attributes:
        name: Name of the way.
        latency: Time until their callers learned of the failure.
        example: Message of one of them.
    """

    name: str
    count: int
    latency: Latency
    example: str


class Poison(msgspec.Struct, frozen=True):
    """Numbers of rows: bad ones, refused ones of these, refused good ones."""

    bad: int
    bad_refused: int
    good_refused: int


class Figures(msgspec.Struct, frozen=True):
    """
    Figures of one run.

    Attributes:
        name: Name of its file.
        requests: Requests that were due in the measured time.
        measured_s: Duration without the warm-up, s.
        rates: Rates in the measured time; answers count when they came.
        latency: Latency from when a request was due to its answer, timeouts included.
        late: Delay of the sender: from when a request was due until it was sent.
        failed: Share of the requests without an answer.
        errors: Requests without an answer, by kind.
        refused: Share of the rows that were answered with an error.
        degraded: Share of the decided rows that are degraded.
        reasons: Degraded bit -> requests.
        poison: Results of bad rows.
        attempts: Attempts per request.
        layers: Layer -> p50, p99, ms, of the requests that the steps reported.
        layer_requests: Number of these requests.
        at_once: Share of the measured time in which steps were busy; None when batches
            were not recorded.
        parts: Parts of the measured time.
    """

    raw: Raw
    name: str
    requests: int
    measured_s: float
    rates: Rates
    latency: Latency
    late: Latency
    failed: float
    errors: tuple[Kind, ...]
    refused: float
    degraded: float
    reasons: dict[str, int]
    poison: Poison
    attempts: float
    layers: dict[str, tuple[float, float]]
    layer_requests: int
    at_once: StepOverlap | None
    parts: tuple[Part, ...]


def figures_of(raw: Raw, *, name: str) -> Figures:
    """
    Compute the figures of a run.

    Args:
        name: Name of its file.

    Raises:
        InputError: Every request of the measured time failed at once.
    """
    scenario = raw.about.scenario
    calls, (from_s, until_s) = raw.calls, (scenario.warm_up_s, scenario.seconds)
    due = calls[between(calls["due_us"], from_s, until_s)]
    latency = latency_in(due, raw)
    if latency is None:
        raise InputError(name, "no request of the measured time has a latency")
    rows = int(due["rows"].sum())
    sent = due["late_us"][due["late_us"] >= 0].astype(np.int64)
    late = latency_of(sent) if len(sent) else latency
    layers = raw.layers_ms
    return Figures(
        raw=raw,
        name=name,
        requests=len(due),
        measured_s=until_s - from_s,
        rates=rates_in(raw, from_s, until_s),
        latency=latency,
        late=late,
        failed=float(np.mean(due["kind"] != 0)),
        errors=_errors(due, raw),
        refused=int(due["refused"].sum()) / max(1, rows),
        degraded=share_in(due, "degraded"),
        reasons=_reasons(due),
        poison=_poison(due, raw),
        attempts=float(np.mean(due["attempts"])),
        layers={layer: _two(spent_ms) for layer, spent_ms in layers.items()},
        layer_requests=max((len(spent_ms) for spent_ms in layers.values()), default=0),
        at_once=_at_once(raw, from_s, until_s),
        parts=parts_of(raw),
    )


def _errors(calls: Calls, raw: Raw) -> tuple[Kind, ...]:
    found = []
    for place, name in enumerate(raw.about.kinds):
        took_us = calls["took_us"][calls["kind"] == place].astype(np.int64)
        if place and len(took_us):
            example = raw.about.examples.get(name, "")
            found.append(Kind(name, len(took_us), latency_of(took_us), example))
    return tuple(sorted(found, key=lambda one: -one.count))


def _reasons(calls: Calls) -> dict[str, int]:
    counts = {
        str(bit.name): int(((calls["bits"] & int(bit)) != 0).sum()) for bit in Degraded
    }
    return {name: count for name, count in counts.items() if count}


def _poison(calls: Calls, raw: Raw) -> Poison:
    kinds = raw.about.kinds
    refused = calls["refused"].astype(np.int64)
    if _INVALID in kinds:
        whole = calls["kind"] == kinds.index(_INVALID)
        refused = np.where(whole, calls["rows"], refused)
    bad = calls["poisoned"].astype(np.int64)
    return Poison(
        bad=int(bad.sum()),
        bad_refused=int(np.minimum(bad, refused).sum()),
        good_refused=int(np.maximum(refused - bad, 0).sum()),
    )


def _at_once(raw: Raw, from_s: float, until_s: float) -> StepOverlap | None:
    if not len(raw.batches):
        return None
    spans = {}
    for place, step in enumerate(STEPS):
        of = raw.batches[raw.batches["step"] == place]
        spans[step] = (of["start_us"], of["start_us"] + of["took_us"])
    return at_once(spans, from_us=round(from_s * 1e6), until_us=round(until_s * 1e6))


def _two(spent_ms: npt.NDArray[np.float64]) -> tuple[float, float]:
    ordered = np.sort(np.rint(spent_ms * 1e3).astype(np.int64))
    return percentile(ordered, 50) / 1e3, percentile(ordered, 99) / 1e3


class Group(msgspec.Struct, frozen=True):
    """
    Runs of the same scenario, size and label.

    Attributes:
        title: Description of the runs.
        runs: Runs in the order of their files.
    """

    title: str
    runs: tuple[Figures, ...]


def groups_of(runs: Sequence[Figures]) -> tuple[Group, ...]:
    """Group runs of one label and one scenario of one size."""
    found: dict[tuple[str, bytes], list[Figures]] = {}
    for one in runs:
        about = one.raw.about
        key = (about.label, msgspec.json.encode((about.name, about.scenario)))
        found.setdefault(key, []).append(one)
    return tuple(Group(_title(same[0]), tuple(same)) for same in found.values())


def _title(one: Figures) -> str:
    about = one.raw.about
    scenario = about.scenario
    rate = f"{scenario.peak_rate:,.0f}/s"
    rows = f" of {scenario.rows} rows" if scenario.rows > 1 else ""
    label = f"{about.label}: " if about.label else ""
    return f"{label}{about.name} {rate}{rows}"


# Cut a run into parts: at its marks, and where the rate changes.


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


# Compute rates, latencies and shares of some calls of a run.


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

"""Compute the figures of one run from its raw results; nothing here is an average."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from loadtests.paced.raw import STEPS, Raw
from loadtests.pages.measures import (
    Calls,
    Rates,
    between,
    latency_in,
    rates_in,
    share_in,
)
from loadtests.pages.parts import Part, parts_of
from loadtests.results.percentiles import Latency, latency_of, percentile
from tollgate.errors import InputError
from tollgate.latency_budget.busy_share import StepOverlap, at_once
from tollgate.schema import Degraded

_INVALID = "INVALID_ARGUMENT"  # status of a request with only bad rows


class Kind(msgspec.Struct, frozen=True):
    """
    Requests without an answer that ended in the same way.

    Attributes:
        name: Name of the way.
        count: Number of requests.
        latency: Time until their callers learned of the failure.
        example: Message of one of them.
    """

    name: str
    count: int
    latency: Latency
    example: str


class Poison(msgspec.Struct, frozen=True):
    """
    Numbers of rows: rows that break a rule, refused ones of these, refused good ones.
    """

    bad: int
    bad_refused: int
    good_refused: int


class Figures(msgspec.Struct, frozen=True):
    """
    Figures of one run.

    Attributes:
        raw: Raw results of the run.
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
        raw: Raw results of the run.
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

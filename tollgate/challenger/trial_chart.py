"""Draw the report of a trial."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tollgate.challenger.bins import score_edges
from tollgate.challenger.decision_counts import ALL, Group
from tollgate.challenger.intervals import Interval
from tollgate.challenger.stored_counts import TrialState
from tollgate.challenger.trial_report import TrialReport

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MANY = 100  # groups with fewer rows do not scale the axis
_FARTHEST = 10  # multiple of a limit at which the axis ends
_COLORS = {
    "holds": "tab:green",
    "unsure": "tab:orange",
    "broken": "tab:red",
    "waits": "tab:gray",
}


def draw(report: TrialReport, state: TrialState, path: Path) -> None:
    """Write a PNG: flips by group, score distributions, differences, gates."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    tall = max(len(report.parts), 6)
    figure = Figure(figsize=(13, 5 + 0.45 * tall), dpi=100, layout="constrained")
    FigureCanvasAgg(figure)
    (flips, scores), (apart, gates) = figure.subplots(2, 2)
    _draw_flips(report, flips)
    _draw_scores(report, state, scores)
    _draw_differences(report, apart)
    _draw_gates(report, gates)
    trial = report.trial
    figure.suptitle(
        f"{trial.mode}: {trial.challenger} against {trial.champion}, since "
        f"{trial.began}; {report.rows:,} rows decided by both, intervals at 95 %"
    )
    figure.savefig(path)


def _draw_flips(report: TrialReport, axes: Axes) -> None:
    for place, part in enumerate(report.parts):
        for shift, found, color in (
            (-0.15, part.flips, "tab:blue"),
            (0.15, part.money, "tab:purple"),
        ):
            _whisker(axes, found, place + shift, color=color, by=100)
    axes.set_yticks(
        range(len(report.parts)), [f"{one.name} ({one.rows:,})" for one in report.parts]
    )
    axes.invert_yaxis()
    axes.plot([], [], "o", color="tab:blue", label="rows")
    axes.plot([], [], "o", color="tab:purple", label="money")
    axes.set(xlabel="decided differently, %", title="flips")
    # A group of a few rows may have any value: it must not compress the others.
    known = [
        found.high
        for part in report.parts
        for found in (part.flips, part.money)
        if part.rows >= _MANY
    ]
    axes.set_xlim(0, 120 * max(known, default=1.0))
    axes.legend()


def _draw_scores(report: TrialReport, state: TrialState, axes: Axes) -> None:
    pairs = state.groups.get(ALL, Group()).pairs
    edges = np.concatenate(([0.0], score_edges(), [1.0]))
    # The outermost bins are unbounded on this scale.
    odds = np.log(np.clip(edges, 1e-6, 1 - 1e-6) / (1 - np.clip(edges, 1e-6, 1 - 1e-6)))
    for counts, name, color in (
        (pairs.one_scores, report.trial.champion, "tab:gray"),
        (pairs.other_scores, report.trial.challenger, "tab:blue"),
    ):
        shares = np.cumsum(counts) / max(1, sum(counts))
        axes.step(odds[1:], shares, where="post", color=color, label=name)
    ticks = [0.0001, 0.01, 0.5, 0.99, 0.9999]
    axes.set_xticks([math.log(p / (1 - p)) for p in ticks], [f"{p:g}" for p in ticks])
    axes.set(xlabel="score", ylabel="share of rows below")
    axes.set_title(f"scores: PSI {report.psi.value:.3f}, KS {report.ks.value:.3f}")
    axes.legend()


def _draw_differences(report: TrialReport, axes: Axes) -> None:
    names = list(report.differences)
    for place, name in enumerate(names):
        _whisker(axes, report.differences[name], place, color="tab:blue", by=100)
    axes.axvline(0, color="tab:gray", linewidth=0.5)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set(xlabel="percentage points", title="challenger's share less champion's")


def _draw_gates(report: TrialReport, axes: Axes) -> None:
    farthest = 2.0
    for place, one in enumerate(report.verdicts):
        by = 1 / (one.limit or 1)
        _whisker(axes, one.found, place, color=_COLORS[one.state], by=by)
        axes.annotate(one.state, (1.02, place - 0.1), fontsize="small")
        if not math.isnan(one.found.value):
            farthest = max(farthest, min(one.found.value * by * 1.2, _FARTHEST))
    axes.axvline(1, color="tab:red", linewidth=1)
    axes.set_yticks(range(len(report.verdicts)), [one.gate for one in report.verdicts])
    axes.set_ylim(max(1, len(report.verdicts)) - 0.5, -0.5)
    axes.set_xlim(-0.1, farthest)
    axes.set(xlabel="as a multiple of the limit", title="gates")


def _whisker(
    axes: Axes, found: Interval, place: float, *, color: str, by: float
) -> None:
    """Draw a value and its interval; nothing if the value is unknown."""
    if math.isnan(found.value):
        return
    far = 1e9
    low, high = max(found.low, -far) * by, min(found.high, far) * by
    axes.plot([low, high], [place, place], color=color)
    axes.plot([found.value * by], [place], "o", color=color)

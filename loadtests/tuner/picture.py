"""Draw the settings that were tried, and how the winner compares."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from loadtests.tuner.compare import Comparison
from loadtests.tuner.front import Point
from loadtests.tuner.seen import Limits
from loadtests.tuner.story import ratio_words
from loadtests.tuner.tuning import TuningResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw(
    tuned: TuningResult,
    points: Sequence[Point],
    path: Path,
    *,
    limits: Limits | None,
    unit: str,
) -> None:
    """
    Write a PNG: p99 against throughput, and the turns of the comparison.

    Args:
        tuned: Result of the tuning.
        points: Settings at rates that they sustain.
        path: Path of the file.
        limits: Limits that a rate has to meet; None where requests came one by one.
        unit: Unit of the merit.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(15, 6), dpi=100, layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    _draw_front(tuned, points, left, limits=limits)
    if tuned.compared is None:
        right.set_axis_off()
        right.text(0.5, 0.5, "nothing better was found", ha="center")
    else:
        _draw_turns(tuned.compared, right, unit=unit)
    figure.savefig(path)


def _draw_front(
    tuned: TuningResult, points: Sequence[Point], axes: Axes, *, limits: Limits | None
) -> None:
    across = np.array([one.seen.answered_per_s for one in points])
    up = np.array([one.seen.p99_ms for one in points])
    shown = axes.scatter(
        across,
        up,
        c=[one.seen.cpu_s for one in points],
        s=[70 if one.on_front else 22 for one in points],
        cmap="viridis",
        zorder=2,
    )
    axes.figure.colorbar(shown, ax=axes, label="processor time, s per 1,000 rows")
    best = tuned.compared.candidate if tuned.compared else None
    for candidate, mark, words in (
        (tuned.base, "s", "as it was"),
        (best, "o", "best found"),
    ):
        ours = [n for n, one in enumerate(points) if one.candidate == candidate]
        label = f"{words}: {candidate}" if candidate else ""
        if ours:
            axes.plot(
                across[ours],
                up[ours],
                mark,
                label=label,
                ls="",
                mfc="none",
                color="tab:red",
                ms=14,
            )
    if limits is not None:
        axes.axhline(limits.p99_ms, color="tab:gray", ls="--", label="p99 to keep")
    axes.scatter([], [], s=70, color="tab:gray", label="large: nothing beats it in all")
    axes.set(xlabel="throughput, requests decided in a second", ylabel="p99, ms")
    axes.set_title("runs that met the SLO" if limits else "one after the other")
    axes.set_ylim(0, None)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.12), fontsize=9)


def _draw_turns(compared: Comparison, axes: Axes, *, unit: str) -> None:
    places = np.arange(1, len(compared.turns) + 1)
    for shift, side, words, color in (
        (-0.2, 1, "as it was", "tab:gray"),
        (0.2, 0, "best found", "tab:blue"),
    ):
        merits = [turn[side].merit for turn in compared.turns]
        axes.bar(places + shift, merits, width=0.38, color=color, label=words)
    axes.set_title(f"{ratio_words(compared)}:\n{compared.verdict}")
    axes.set(xlabel="turn", ylabel=unit, xticks=places)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=2)

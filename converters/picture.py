"""Plot a proof: the differences between the scores, and one score against the other."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from converters.parity import Comparison

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SMALLEST = 1e-10  # smaller differences are drawn here: a logarithm has no zero


def draw(comparisons: Sequence[Comparison], path: Path) -> None:
    """
    Write a PNG with a row per runtime: a histogram of |Δp|, and score against score.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    count = len(comparisons)
    figure = Figure(figsize=(9, 4 * count), dpi=100, layout="constrained")
    FigureCanvasAgg(figure)
    for comparison, (left, right) in zip(
        comparisons, figure.subplots(count, 2, squeeze=False), strict=True
    ):
        _draw_one(comparison, left, right)
    figure.savefig(path)


def _draw_one(comparison: Comparison, left: Axes, right: Axes) -> None:
    report = comparison.report
    delta = np.clip(comparison.delta, _SMALLEST, 1)
    left.hist(delta, bins=np.geomspace(_SMALLEST, 1, 61).tolist(), color="tab:blue")
    left.axvline(
        report.tolerance, color="tab:red", label=f"allowed {report.tolerance:g}"
    )
    left.set(xscale="log", yscale="log", xlabel="|Δp|", ylabel="rows")
    left.set_title(f"max {report.max_delta:.2g}, {report.flips} flips")
    left.legend()
    right.plot(comparison.source[:, -1], comparison.converted[:, -1], ".", markersize=3)
    for threshold in report.thresholds:
        right.axvline(threshold, color="tab:gray", linewidth=0.5)
    right.set(xlabel="score by the source", ylabel="score converted")
    right.set_title(f"{report.rows:,} rows, {report.runtime}")

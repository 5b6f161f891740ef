"""Draw a proof: how far the scores are apart, and one against the other."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from converters.parity import Comparison

_SMALLEST = 1e-10  # differences below are drawn here: a logarithm has no zero


def draw(comparison: Comparison, path: Path) -> None:
    """Write a PNG: a histogram of |Δp|, and score against score."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    report = comparison.report
    figure = Figure(figsize=(9, 4), dpi=100, layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    delta = np.clip(comparison.delta, _SMALLEST, 1)
    left.hist(delta, bins=np.geomspace(_SMALLEST, 1, 61), color="tab:blue")
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
    figure.savefig(path)

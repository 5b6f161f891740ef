"""Show a pruning sweep as a table, and as a plot of quality against time."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from converters.compression.prune_sweep import Sweep
from tollgate.schema import MAX_BATCH_ROWS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from rich.table import Table

PICTURE_FILE = "prune.png"
_TICKS = [digit * 10.0**power for power in range(-2, 5) for digit in (1, 2, 3, 5)]


def sweep_table(sweep: Sweep) -> Table:
    """Build a table of the candidates, fastest first."""
    from rich.table import Table

    table = Table(title="pruned, fastest first", caption=sweep.note or None)
    table.add_column("")
    names = ("trees", "depth", "AUC", "AP", f"µs/row at {MAX_BATCH_ROWS}")
    for name in (*names, "µs/row at 1", "flips", "bytes"):
        table.add_column(name, justify="right")
    for number, point in enumerate(sweep.points):
        after = point.trade.after
        mark = "chosen" if number == sweep.chosen else "front" if point.best else ""
        table.add_row(
            mark,
            f"{point.trees:,}",
            "" if point.depth is None else f"{point.depth}",
            f"{point.auc:.4f}",
            f"{after.average_precision or 0:.4f}",
            f"{point.us:.2f}",
            f"{after.us_per_row[1]:.2f}",
            f"{point.trade.flips:,}",
            f"{after.size_bytes:,}",
            style="bold" if number == sweep.chosen else None,
        )
    return table


def draw_sweep(sweep: Sweep, path: Path) -> None:
    """Write a PNG: AUC and average precision against µs per row."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 4.8), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    _quality(left, sweep, [point.auc for point in sweep.points], name="AUC ROC")
    precision = [p.trade.after.average_precision or 0 for p in sweep.points]
    _quality(right, sweep, precision, name="average precision")
    figure.legend(*left.get_legend_handles_labels(), loc="outside right center")
    chosen = sweep.points[sweep.chosen]
    figure.suptitle(
        f"{chosen.trade.detail}: AUC {chosen.trade.before.auc or 0:.4f} → "
        f"{chosen.auc:.4f}, {chosen.trade.flips:,} of {chosen.trade.rows:,} "
        "decisions change"
    )
    figure.savefig(path)


def _quality(axes: Axes, sweep: Sweep, values: list[float], *, name: str) -> None:
    """
    Draw one measure: a line per depth, the Pareto front filled, the choice ringed.
    """
    points = sweep.points
    depths = sorted({point.depth for point in points}, key=lambda one: -(one or 1e9))
    best = [value > max(values[:at], default=-1) for at, value in enumerate(values)]
    for order, depth in enumerate(depths):
        line = [n for n, point in enumerate(points) if point.depth == depth]
        line.sort(key=lambda n: points[n].trees)
        across, up = [points[n].us for n in line], [values[n] for n in line]
        label = "depth as trained" if depth is None else f"depth {depth}"
        color = f"C{order}"
        axes.plot(across, up, "-", color=color, linewidth=0.8, label=label)
        for n in line:
            filled = color if best[n] else "white"
            axes.plot(points[n].us, values[n], "o", color=color, mfc=filled)
        for n in line if depth is None else ():
            axes.annotate(
                f"{points[n].trees}",
                (points[n].us, values[n]),
                xytext=(0, 7),
                textcoords="offset points",
                ha="center",
                fontsize=8,
            )
    axes.plot([], [], "o", color="black", label="filled: nothing better\nis as fast")
    chosen = points[sweep.chosen]
    axes.plot(
        chosen.us,
        values[sweep.chosen],
        "o",
        color="black",
        markersize=15,
        mfc="none",
        label="chosen",
    )
    axes.plot([], [], " ", label="numbers: trees of\ndepth as trained")
    axes.set(xscale="log", ylabel=name)
    axes.set_xlabel(f"µs per row, batches of {MAX_BATCH_ROWS}")
    least = min(point.us for point in points) / 1.1
    most = max(point.us for point in points) * 1.1
    ticks = [one for one in _TICKS if least <= one <= most]
    axes.set_xticks(ticks, [f"{one:g}" for one in ticks])
    axes.minorticks_off()
    axes.margins(0.08, 0.1)

"""Try many prunings of a model, choose the fastest that loses little, and show them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import onnx
from onnx import helper

from converters.compression.compression_cost import (
    Answers,
    Judge,
    answers,
    compared,
    figures,
    timed,
)
from converters.model import Pruning, TrainedModel
from tollgate.errors import ConversionError, TradeError
from tollgate.repository.models.artifact_file import Figures, Gate, Trade
from tollgate.schema import MAX_BATCH_ROWS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from rich.table import Table


AUTO = "auto"
ARGUMENT = "prune"
SHARES_OF_TREES = (1.0, 0.7, 0.5, 0.35, 0.25, 0.15)
SHARES_OF_DEPTH = (1.0, 0.85, 0.67, 0.5, 0.34)
_TURN_S = 0.05  # for two dozen models, three turns each


class Point(msgspec.Struct, frozen=True):
    """
    One candidate of a sweep.

    Attributes:
        depth: Maximum number of splits on a path; None for as trained.
        trade: Cost compared with the complete model.
        best: True if no other candidate is as good by AUC and faster, or better and as
            fast (Pareto front).
    """

    trees: int
    depth: int | None
    trade: Trade
    best: bool = False

    @property
    def us(self) -> float:
        """Return the time of one row of a full batch, µs."""
        return self.trade.after.us_per_row[MAX_BATCH_ROWS]

    @property
    def auc(self) -> float:
        """Return the area under its ROC curve; a sweep has labels."""
        return self.trade.after.auc or 0.0


class Sweep(msgspec.Struct, frozen=True):
    """
    Candidates, fastest first, and the chosen one.

    Attributes:
        chosen: Position of the chosen candidate.
        note: Reason why there is no shallower candidate; empty otherwise.
    """

    points: tuple[Point, ...]
    chosen: int
    note: str = ""


def sweep(
    model: TrainedModel,
    *,
    requested: Pruning | None,
    judge: Judge,
    gate: Gate,
) -> Sweep:
    """
    Try shares of the trees with shares of the depth, and the requested pruning.

    Args and errors are those of `prune`; `requested` is None for `auto`.
    """
    whole = model.convert()
    trees, depth = model.facts.trees, depth_of(whole)
    tried = _candidates(trees, depth)
    first = Pruning(trees, None) if requested is None else requested
    note = ""
    measured_models: dict[tuple[int, int | None], tuple[bytes, Answers, str]] = {}
    for one in dict.fromkeys([first, *tried]):
        try:
            smaller = model.pruned(trees=one.trees, depth=one.depth)
        except ConversionError as error:
            if one == requested:
                raise
            note = str(error)
            continue
        key = (smaller.facts.trees, _binding(one.depth, depth))
        if key not in measured_models:
            graph = smaller.convert()
            detail = detail_of(model, smaller, key[1])
            measured_models[key] = (graph, answers(graph, judge), detail)
    points = _points(measured_models, whole=(trees, None), judge=judge)
    chosen_key = None if requested is None else next(iter(measured_models))
    return Sweep(
        points=points, chosen=choose(points, requested=chosen_key, gate=gate), note=note
    )


def depth_of(graph: bytes) -> int:
    """
    Return the maximum number of splits on a path of a converted model; 0 for none.

    A set of categories counts as one split, though the graph tests each category.
    """
    deepest = 0
    for node in onnx.load_from_string(graph).graph.node:
        if not node.op_type.startswith("TreeEnsemble"):
            continue
        found = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        tree = np.asarray(found["nodes_treeids"])
        number = np.asarray(found["nodes_nodeids"])
        split = np.asarray([mode != b"LEAF" for mode in found["nodes_modes"]])
        width = int(number.max()) + 1
        level = set((tree[number == 0] * width).tolist())
        children = {
            int(at): (int(yes), int(no))
            for at, yes, no in zip(
                (tree * width + number)[split],
                (tree * width + found["nodes_truenodeids"])[split],
                (tree * width + found["nodes_falsenodeids"])[split],
                strict=True,
            )
        }
        _join_sets(children)
        depth = -1
        while level:
            depth += 1
            level = {child for at in level if at in children for child in children[at]}
        deepest = max(deepest, depth)
    return deepest


def _join_sets(children: dict[int, tuple[int, int]]) -> None:
    """Let the first test of a set lead to where the last one leads, in place."""
    for at in reversed(list(children)):  # from the end of a set: one step for each test
        yes, no = children[at]
        while no in children and children[no][0] == yes:
            no = children[no][1]
        children[at] = (yes, no)


def _candidates(trees: int, depth: int) -> list[Pruning]:
    counts = dict.fromkeys(max(1, round(trees * share)) for share in SHARES_OF_TREES)
    depths = dict.fromkeys(
        _binding(max(1, round(depth * share)), depth) for share in SHARES_OF_DEPTH
    )
    return [Pruning(count, limit) for limit in depths for count in counts]


def _binding(limit: int | None, depth: int) -> int | None:
    """Return a limit that removes something, or None."""
    return None if limit is None or limit >= depth else limit


def _points(
    measured_models: dict[tuple[int, int | None], tuple[bytes, Answers, str]],
    *,
    whole: tuple[int, int | None],
    judge: Judge,
) -> tuple[Point, ...]:
    """Time candidates alternately, compare each with the original; fastest first."""
    times = timed([graph for graph, _, _ in measured_models.values()], turn_s=_TURN_S)
    measured: dict[tuple[int, int | None], tuple[Answers, Figures]] = {
        key: (found, figures(graph, found, us=us, judge=judge))
        for (key, (graph, found, _)), us in zip(
            measured_models.items(), times, strict=True
        )
    }
    points = [
        Point(
            trees=trees,
            depth=depth,
            trade=compared(
                measured[whole],
                measured[trees, depth],
                kind="prune",
                detail=measured_models[trees, depth][2],
                judge=judge,
            ),
        )
        for trees, depth in measured_models
    ]
    points.sort(key=lambda point: (point.us, -point.auc))
    best_auc, marked = -1.0, []
    for point in points:
        marked.append(msgspec.structs.replace(point, best=point.auc > best_auc))
        best_auc = max(best_auc, point.auc)
    return tuple(marked)


def choose(
    points: tuple[Point, ...], *, requested: tuple[int, int | None] | None, gate: Gate
) -> int:
    """
    Find the requested pruning, or the fastest candidate within the gate.

    Args:
        points: Candidates, fastest first; the complete model is one of them.
        requested: Requested trees and depth; None for the fastest.
        gate: Allowed loss of the fastest candidate, which is no slower than the
            complete model.

    Raises:
        TradeError: There is no such candidate.
    """
    whole = (max(point.trees for point in points), None)
    for number, point in enumerate(points):
        key = (point.trees, point.depth)
        if key == requested:
            return number
        if requested is None and key == whole:
            break
        if requested is None and not gate.problems(point.trade):
            return number
    raise TradeError(
        f"{ARGUMENT} {AUTO}: no candidate is faster and keeps the AUC within "
        f"{gate.auc_loss:g}, the average precision within {gate.ap_loss:g} and "
        f"{1 - gate.flips:.2%} of the decisions; allow more"
    )


def detail_of(whole: TrainedModel, smaller: TrainedModel, depth: int | None) -> str:
    """Describe the remaining trees and depth of a model."""
    limit = "" if depth is None else f", depth at most {depth}"
    return f"{smaller.facts.trees:,} of {whole.facts.trees:,} trees{limit}"


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
    """Draw a measure: a line per depth, the Pareto front filled, the choice ringed."""
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

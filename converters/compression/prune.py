"""
Reduce the number or the depth of a model's trees, and measure the cost.

The trained model is pruned in its own framework, so conversion, proof and explanation
work as for any other model. The best of two dozen candidates looks better on the rows
that chose it than it really is. Where there are enough rows, `auto` therefore chooses
on one half of them and evaluates on the other.
"""

from __future__ import annotations

import re

import msgspec
import numpy as np
import numpy.typing as npt

from converters.compression.compression_cost import Judge, weigh
from converters.compression.prune_sweep import ARGUMENT, AUTO, Sweep, detail_of, sweep
from converters.model import Pruning, TrainedModel
from converters.trees.tree_ensemble import Tree
from tollgate.errors import ArgumentError
from tollgate.repository.models.artifact_file import Gate, Trade

SEED = 0  # seed of the halves
LEAST_OF_A_CLASS = 100  # in each half; an AUC of 0.9 is then known to about ±0.04


class Pruned(msgspec.Struct, frozen=True, eq=False):
    """A pruned model, its cost, and the other candidates."""

    model: TrainedModel
    trade: Trade
    sweep: Sweep | None


def read_pruning(text: str) -> Pruning | None:
    """
    Parse `50` (trees), `50x4` (trees x depth), `x4` (depth) or `auto`, which is None.

    Raises:
        InputError: The text has another form.
    """
    if text == AUTO:
        return None
    found = re.fullmatch(r"([1-9]\d*)?(?:x([1-9]\d*))?", text)
    if not found or not text:
        raise ArgumentError(
            ARGUMENT,
            f"is {text!r}; 50 (trees), 50x4 (trees, depth), x4 (depth) or {AUTO}",
        )
    trees, depth = (None if part is None else int(part) for part in found.groups())
    return Pruning(trees=trees, depth=depth)


def prune(
    model: TrainedModel,
    wanted: str,
    *,
    judge: Judge,
    gate: Gate,
) -> Pruned:
    """
    Prune a model as requested; with labels, compare it with other prunings.

    Args:
        wanted: Text that `read_pruning` parses. `auto` takes the fastest candidate that
            loses no more than the gate allows; its trade says on which rows it was
            chosen and evaluated.
        judge: Rows to measure on; a sweep needs their labels, of two classes.
        gate: Loss that `auto` may cause. A pruning requested by number is not checked
            against it here: see `trade.require`.

    Raises:
        InputError: `wanted` is no pruning, or `auto` without labels.
        ConversionError: The model cannot be pruned in this way.
        TradeError: `auto` finds no candidate within the gate.
    """
    pruning = read_pruning(wanted)
    if len(model.facts.classes) != 2 or judge.label is None:
        if pruning is None:
            raise ArgumentError(
                ARGUMENT,
                f"{AUTO} compares AUCs: it needs a sample with labels, 0 and 1",
            )
        smaller = model.pruned(trees=pruning.trees, depth=pruning.depth)
        trade = weigh(
            model.convert(),
            smaller.convert(),
            kind="prune",
            detail=detail_of(model, smaller, pruning.depth),
            judge=judge,
        )
        return Pruned(model=smaller, trade=trade, sweep=None)
    halves = halved(judge) if pruning is None else None
    chooser = judge if halves is None else halves[0]
    swept = sweep(model, requested=pruning, judge=chooser, gate=gate)
    point = swept.points[swept.chosen]
    smaller = model.pruned(trees=point.trees, depth=point.depth)
    trade = point.trade
    if halves is not None:
        trade = weigh(
            model.convert(),
            smaller.convert(),
            kind="prune",
            detail=f"{trade.detail}; chosen on {trade.rows:,} other rows, seed {SEED}",
            judge=halves[1],
        )
    elif pruning is None:
        same = f"{trade.detail}; chosen on the same rows"
        trade = msgspec.structs.replace(trade, detail=same)
    return Pruned(model=smaller, trade=trade, sweep=swept)


def halved(judge: Judge) -> tuple[Judge, Judge] | None:
    """
    Divide labelled rows at random: one half to choose on, one to evaluate on.

    Each class is divided separately. Returns None if a half would have fewer than 100
    rows of a class, or if there are no labels.
    """
    if judge.label is None:
        return None
    label = np.asarray(judge.label)
    random = np.random.default_rng(SEED)
    first = np.zeros(len(label), dtype=bool)
    for value in (0, 1):
        at = random.permutation(np.flatnonzero(label == value))
        if len(at) < 2 * LEAST_OF_A_CLASS:
            return None
        first[at[: len(at) // 2]] = True
    return _part(judge, first), _part(judge, ~first)


def _part(judge: Judge, rows: npt.NDArray[np.bool_]) -> Judge:
    assert judge.label is not None
    return Judge(
        rows=judge.rows[rows],
        label=np.asarray(judge.label)[rows],
        thresholds=judge.thresholds,
    )


# Cut a tree off below a depth, whatever framework trained it.


class Cut(msgspec.Struct, frozen=True):
    """
    The remaining nodes of a tree.

    Attributes:
        nodes: Numbers of the nodes that stay, breadth first, the root first.
        left: Left child of each, as a position in `nodes`; -1 for a leaf.
        right: Right child of each.
        ended: Positions of the leaves that were splits before.
    """

    nodes: list[int]
    left: list[int]
    right: list[int]
    ended: list[int]


def cut_below(tree: Tree, *, depth: int) -> Cut:
    """
    Turn every split at a depth into a leaf; the root has depth 0.

    Args:
        depth: Maximum number of splits on a path, 1 or more.
    """
    left, right = tree.left.tolist(), tree.right.tolist()
    nodes, depths = [0], [0]
    new_left: list[int] = []
    new_right: list[int] = []
    ended = []
    for at, node in enumerate(nodes):  # grows during the loop
        if left[node] < 0 or depths[at] == depth:
            if left[node] >= 0:
                ended.append(at)
            new_left.append(-1)
            new_right.append(-1)
            continue
        new_left.append(len(nodes))
        new_right.append(len(nodes) + 1)
        nodes += [left[node], right[node]]
        depths += [depths[at] + 1] * 2
    return Cut(nodes=nodes, left=new_left, right=new_right, ended=ended)

"""
Make trees fewer or shallower, and measure what that costs.

It is done to the trained model, in its own framework, so that conversion, proof and
explanation follow as for any other. Of two dozen candidates the best looks better on
the rows it was chosen on than it is: where there are enough, `auto` chooses on one half
of them and judges on the other.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import msgspec
import numpy as np
import numpy.typing as npt

from converters.model import Pruning, TrainedModel
from converters.prune_sweep import AUTO, FLAG, Sweep, detail_of, sweep
from converters.trade import Gate, Judge, Trade
from converters.weighing import weigh
from tollgate.errors import InputError

SEED = 0  # of the halves
LEAST_OF_A_CLASS = 100  # in each half; an AUC of 0.9 is then known to about ±0.04


class Pruned(msgspec.Struct, frozen=True, eq=False):
    """A pruned model, what it costs, and what else it could have been."""

    model: TrainedModel
    trade: Trade
    sweep: Sweep | None


def read_pruning(text: str) -> Pruning | None:
    """
    Read `50` (trees), `50x4` (trees x depth), `x4` (depth) or `auto`, which is None.

    Raises:
        InputError: It is something else.
    """
    if text == AUTO:
        return None
    found = re.fullmatch(r"([1-9]\d*)?(?:x([1-9]\d*))?", text)
    if not found or not text:
        raise InputError(
            FLAG,
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
    progress: Callable[[int, int], None] | None = None,
) -> Pruned:
    """
    Prune a model as asked; with labels, beside other ways of doing it.

    Args:
        model: Of trees.
        wanted: As `read_pruning` reads it. `auto` takes the fastest candidate that
            loses no more than the gate allows; its trade says on which rows it was
            chosen and judged.
        judge: Rows to measure on; a sweep needs their labels, of two classes.
        gate: What `auto` may lose. What was asked for by number is not held against
            it here: see `trade.require`.
        progress: Called with (done, in all).

    Raises:
        InputError: `wanted` is no pruning, or `auto` without labels.
        ConversionError: The model cannot be pruned so.
        TradeError: `auto` finds none that stays inside the gate.
    """
    asked = read_pruning(wanted)
    if len(model.facts.classes) != 2 or judge.label is None:
        if asked is None:
            raise InputError(
                FLAG, f"{AUTO} compares AUCs: it needs a sample with labels, 0 and 1"
            )
        smaller = model.pruned(trees=asked.trees, depth=asked.depth)
        trade = weigh(
            model.convert(),
            smaller.convert(),
            kind="prune",
            detail=detail_of(model, smaller, asked.depth),
            judge=judge,
        )
        return Pruned(model=smaller, trade=trade, sweep=None)
    halves = halved(judge) if asked is None else None
    chooser = judge if halves is None else halves[0]
    swept = sweep(model, asked=asked, judge=chooser, gate=gate, progress=progress)
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
    elif asked is None:
        same = f"{trade.detail}; chosen on the same rows"
        trade = msgspec.structs.replace(trade, detail=same)
    return Pruned(model=smaller, trade=trade, sweep=swept)


def halved(judge: Judge) -> tuple[Judge, Judge] | None:
    """
    Divide labelled rows at random: one half to choose on, one to judge on.

    Each class is divided by itself. None where a half would have fewer than 100 rows of
    a class, or there are no labels.
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

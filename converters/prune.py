"""
Make trees fewer or shallower, and measure what that costs.

It is done to the trained model, in its own framework, so that conversion, proof and
explanation follow as for any other. Choosing and judging happen on the same rows: of
two dozen candidates the best looks a little better there than it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import msgspec

from converters.model import Pruning, TrainedModel
from converters.prune_sweep import AUTO, FLAG, Sweep, detail_of, sweep
from converters.trade import Gate, Judge, Trade
from converters.weighing import weigh
from tollgate.errors import InputError


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
            loses no more than the gate allows.
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
    swept = sweep(model, asked=asked, judge=judge, gate=gate, progress=progress)
    point = swept.points[swept.chosen]
    return Pruned(
        model=model.pruned(trees=point.trees, depth=point.depth),
        trade=point.trade,
        sweep=swept,
    )

"""Compute the share of time that each step is busy, and that several are at once."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np

from tollgate.latency_budget.step_batches import I64


class StepOverlap(msgspec.Struct, frozen=True):
    """
    Shares of a time span; a step is busy while it has a batch in progress.

    Attributes:
        busy: Step -> share of the time in which it was busy.
        together: Index n: share of the time in which exactly n steps were busy.
    """

    busy: Mapping[str, float]
    together: tuple[float, ...]


def at_once(
    spans: Mapping[str, tuple[I64, I64]], *, from_us: int, until_us: int
) -> StepOverlap:
    """
    Compute the shares of busy time.

    Args:
        spans: Step -> begin and end of its batches, µs; those of several instances may
            overlap, and count once.
        from_us: Begin of the time span.
        until_us: End of the time span.
    """
    whole_us = until_us - from_us
    edges = [np.array([from_us, until_us])]
    moves = [np.zeros(2, np.int64)]
    busy = {}
    for step, (start_us, end_us) in spans.items():
        begin, end = _merged(
            np.clip(start_us, from_us, until_us), np.clip(end_us, from_us, until_us)
        )
        busy[step] = float((end - begin).sum()) / whole_us
        edges += [begin, end]
        moves += [np.ones_like(begin), -np.ones_like(end)]
    at_us, move = np.concatenate(edges), np.concatenate(moves)
    order = np.argsort(at_us, kind="stable")
    number = np.cumsum(move[order])[:-1]
    lasting_us = np.diff(at_us[order])
    together = np.bincount(number, weights=lasting_us, minlength=len(spans) + 1)
    return StepOverlap(busy, tuple((together / whole_us).tolist()))


def _merged(start: I64, end: I64) -> tuple[I64, I64]:
    """Join spans that overlap or touch each other; ascending."""
    if not len(start):
        return start, end
    order = np.argsort(start, kind="stable")
    start, end = start[order], np.maximum.accumulate(end[order])
    begins = np.append(True, start[1:] > end[:-1])
    ends = np.append(begins[1:], True)
    return start[begins], end[ends]

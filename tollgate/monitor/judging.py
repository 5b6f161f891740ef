"""
Judge a window of decisions against training: how far apart, and how sure is that.

docs/monitor.md says in words what is done here.
"""

from __future__ import annotations

from typing import Literal

import msgspec
import numpy as np

from tollgate.monitor.distances import (
    I64,
    Compared,
    Distance,
    alike_rows,
    chance_of,
    compare,
    compare_share,
    slack,
)
from tollgate.monitor.tallies import Tally
from tollgate.monitor.training import Column, Reference

State = Literal["holds", "unsure", "drift", "untold"]


class Limits(msgspec.Struct, frozen=True):
    """
    What is not accepted, and how seldom chance may say so.

    Attributes:
        psi: Population stability index; the customary 0.25 is a shift by half a
            standard deviation.
        ks: Largest distance of the distributions; 0.2 is as much.
        false_alarms: Chance that a release that did not change is ever accused, over
            all its windows, days and columns.
    """

    psi: float = 0.25
    ks: float = 0.2
    false_alarms: float = 0.01


class Bins(msgspec.Struct, frozen=True):
    """
    Shares of rows by value.

    Attributes:
        cuts: Values between the bins; one that is there twice is a bin of its own.
        seen, trained: Share of the rows in each, one more than cuts.
    """

    cuts: tuple[float, ...]
    seen: tuple[float, ...]
    trained: tuple[float, ...]


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """
    One column in one window.

    Attributes:
        kind, name: Of the column.
        state: "drift" when even the least that it can be is beyond a limit; "unsure"
            when the estimate is; "untold" when it cannot be judged here.
        found: How far it is from training.
        least: How far at least, but for the allowed chance.
        sigmas: By how many standard deviations it moved, were training normal; signed.
        missing, missing_trained: Share of rows without a value, now and in training.
        alike: How many rows count as one, because customers are alike (at least 1).
        bins: Where PSI counts; None where no value was seen.
    """

    kind: str
    name: str
    state: State
    found: Distance
    least: Distance
    sigmas: float
    missing: float
    missing_trained: float
    alike: float
    bins: Bins | None


def judge(
    tally: Tally, reference: Reference, *, limits: Limits, look: int
) -> list[Verdict]:
    """
    Judge every column of a window.

    Args:
        tally: The window.
        reference: What it is compared with.
        limits: What is not accepted.
        look: Which window of its kind this is, from 1 on.
    """
    # Values and missing ones of each column, each with served and training rows.
    events = 4 * len(reference.columns)
    chance = chance_of(limits.false_alarms, look=look, events=events)
    return [
        _Judging(tally, at, column, reference.rows, limits, chance).verdict()
        for at, column in enumerate(reference.columns)
    ]


class _Judging(msgspec.Struct, frozen=True, eq=False):
    """One column of one window, and with what it is judged."""

    tally: Tally
    at: int
    column: Column
    trained: int
    limits: Limits
    chance: float

    def verdict(self) -> Verdict:
        """Compare the missing values, then the others; the farther counts."""
        rows, column = self.tally.rows, self.column
        missing = self.tally.missing[self.at]
        gone = float(missing.sum() / max(rows.sum(), 1))
        compared = compare_share(gone, column.missing)
        found, least, alike = self._judged(
            compared, upto=missing[:, None], rows=rows, trained=self.trained
        )
        told, sigmas = self._bins(), 0.0
        cells = self.tally.cells[self.at]
        if told is not None:
            more, more_least, more_alike = self._judged(
                told,
                upto=np.cumsum(cells, axis=1)[:, :-1],
                rows=cells.sum(axis=1),
                trained=self.trained * (1 - column.missing),
            )
            found, least = found.or_more(more), least.or_more(more_least)
            alike = max(alike, more_alike)
            sigmas = told.shift(int(cells.sum()))
        return Verdict(
            kind=column.kind,
            name=column.name,
            state=self._state(found, least),
            found=found,
            least=least,
            sigmas=sigmas,
            missing=gone,
            missing_trained=column.missing,
            alike=alike,
            bins=self._drawn(told),
        )

    def _bins(self) -> Compared | None:
        cells = self.tally.cells[self.at]
        if self.column.marks is None or not cells.sum():
            return None
        return compare(cells.sum(axis=0), self.column.marks)

    def _judged(
        self, compared: Compared, *, upto: I64, rows: I64, trained: float
    ) -> tuple[Distance, Distance, float]:
        alike = alike_rows(upto, rows)
        by = slack(int(rows.sum()), trained=trained, alike=alike, chance=self.chance)
        return compared.distance(), compared.nearer(by).distance(), alike

    def _state(self, found: Distance, least: Distance) -> State:
        # What only turns with the calendar is told when that has come round.
        if not len(self.tally) or self.tally.event_span_s < self.column.round_s:
            return "untold"
        limits = self.limits
        if least.psi > limits.psi or least.ks > limits.ks:
            return "drift"
        beyond = found.psi > limits.psi or found.ks > limits.ks
        return "unsure" if beyond else "holds"

    def _drawn(self, compared: Compared | None) -> Bins | None:
        if compared is None or self.column.marks is None:
            return None
        seen, trained = compared.bins()
        values = np.repeat(self.column.marks.values, 2)[compared.cuts]
        return Bins(
            cuts=tuple(values.tolist()),
            seen=tuple(seen.tolist()),
            trained=tuple(trained.tolist()),
        )

"""
Judge a window of decisions against training: how far apart, and how certain.

docs/monitor.md explains the method.
"""

from __future__ import annotations

from typing import Literal

import msgspec
import numpy as np

from tollgate.monitor.distances import (
    I64,
    ComparedDistributions,
    Distance,
    chance_of,
    compare,
    compare_share,
    design_effect,
    slack,
)
from tollgate.monitor.tallies import ColumnCounts
from tollgate.monitor.training_baseline import Reference, ReferenceColumn

ColumnState = Literal["holds", "unsure", "drift", "untold"]


class DriftLimits(msgspec.Struct, frozen=True):
    """
    Limits of the accepted drift, and of false alarms.

    Attributes:
        psi: Population stability index; the customary 0.25 is a shift by half a
            standard deviation.
        ks: Largest distance of the distributions; 0.2 is the same shift.
        false_alarms: Chance that a release that did not change ever raises an alarm,
            over all its windows, days and columns.
    """

    psi: float = 0.25
    ks: float = 0.2
    false_alarms: float = 0.01


class Bins(msgspec.Struct, frozen=True):
    """
    Shares of rows by value.

    Attributes:
        cuts: Values between the bins; a value that occurs twice is a bin itself.
        seen, trained: Share of the rows in each bin; one more than cuts.
    """

    cuts: tuple[float, ...]
    seen: tuple[float, ...]
    trained: tuple[float, ...]


class ColumnResult(msgspec.Struct, frozen=True, kw_only=True):
    """
    Result of one column in one window.

    Attributes:
        kind, name: Kind and name of the column.
        state: "drift" if even the least distance exceeds a limit; "unsure" if only the
            estimate does; "untold" if it cannot be judged here.
        found: Estimated distance from training.
        least: Lower bound of the distance, apart from the allowed chance.
        sigmas: Shift in standard deviations, signed, assuming that training is normal.
        missing, missing_trained: Share of rows without a value, now and in training.
        alike: Number of rows that count as one, because customers are alike (at least
            1).
        bins: Bins of PSI; None if no value was seen.
    """

    kind: str
    name: str
    state: ColumnState
    found: Distance
    least: Distance
    sigmas: float
    missing: float
    missing_trained: float
    alike: float
    bins: Bins | None


def judge(
    tally: ColumnCounts, reference: Reference, *, limits: DriftLimits, look: int
) -> list[ColumnResult]:
    """
    Judge every column of a window.

    Args:
        tally: Counts of the window.
        reference: Training distribution to compare with.
        limits: Limits of the accepted drift.
        look: Number of this window among those of its kind, from 1 on.
    """
    # Per column: values and missing values, each compared in served and training rows.
    events = 4 * len(reference.columns)
    chance = chance_of(limits.false_alarms, look=look, events=events)
    return [
        _ColumnJudge(tally, at, column, reference.rows, limits, chance).verdict()
        for at, column in enumerate(reference.columns)
    ]


class _ColumnJudge(msgspec.Struct, frozen=True, eq=False):
    """One column of one window, with the values needed to judge it."""

    tally: ColumnCounts
    at: int
    column: ReferenceColumn
    trained: int
    limits: DriftLimits
    chance: float

    def verdict(self) -> ColumnResult:
        """
        Compare the missing values, then the present ones; the larger distance counts.
        """
        rows, column = self.tally.rows, self.column
        missing = self.tally.missing[self.at]
        gone = float(missing.sum() / max(rows.sum(), 1))
        compared = compare_share(gone, column.missing)
        found, least, alike = self._judged(
            compared, upto=missing[:, None], rows=rows, trained=self.trained
        )
        present, sigmas = self._bins(), 0.0
        cells = self.tally.cells[self.at]
        if present is not None:
            more, more_least, more_alike = self._judged(
                present,
                upto=np.cumsum(cells, axis=1)[:, :-1],
                rows=cells.sum(axis=1),
                trained=self.trained * (1 - column.missing),
            )
            found, least = found.or_more(more), least.or_more(more_least)
            alike = max(alike, more_alike)
            sigmas = present.shift(int(cells.sum()))
        return ColumnResult(
            kind=column.kind,
            name=column.name,
            state=self._state(found, least),
            found=found,
            least=least,
            sigmas=sigmas,
            missing=gone,
            missing_trained=column.missing,
            alike=alike,
            bins=self._drawn(present),
        )

    def _bins(self) -> ComparedDistributions | None:
        cells = self.tally.cells[self.at]
        if self.column.marks is None or not cells.sum():
            return None
        return compare(cells.sum(axis=0), self.column.marks)

    def _judged(
        self, compared: ComparedDistributions, *, upto: I64, rows: I64, trained: float
    ) -> tuple[Distance, Distance, float]:
        alike = design_effect(upto, rows)
        by = slack(int(rows.sum()), trained=trained, alike=alike, chance=self.chance)
        return compared.distance(), compared.nearer(by).distance(), alike

    def _state(self, found: Distance, least: Distance) -> ColumnState:
        # A calendar feature is judged once the window covers its whole period.
        if not len(self.tally) or self.tally.event_span_s < self.column.round_s:
            return "untold"
        limits = self.limits
        if least.psi > limits.psi or least.ks > limits.ks:
            return "drift"
        beyond = found.psi > limits.psi or found.ks > limits.ks
        return "unsure" if beyond else "holds"

    def _drawn(self, compared: ComparedDistributions | None) -> Bins | None:
        if compared is None or self.column.marks is None:
            return None
        seen, trained = compared.bins()
        values = np.repeat(self.column.marks.values, 2)[compared.cuts]
        return Bins(
            cuts=tuple(values.tolist()),
            seen=tuple(seen.tolist()),
            trained=tuple(trained.tolist()),
        )

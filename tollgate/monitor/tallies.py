"""Counts of decisions that can be added up and never hold a row."""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt

from tollgate.monitor.training_baseline import Reference, ReferenceColumn
from tollgate.schema import Decision, Degraded

# Number of customer clusters. Rows of one customer are alike: the variance of a share
# between clusters shows how many rows count as one (as in the challenger's counts).
CLUSTERS = 64
UNSURE = 0.8  # the model is unsure of a row if no probability reaches this

I64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]

_BITS = tuple(Degraded)


class MonitoredRows(msgspec.Struct, frozen=True, eq=False):
    """
    Decisions of one release, in order of time.

    Attributes:
        values: Values of the reference's columns, NaN for none; float32 [N, C].
        cluster: Cluster of each row's customer; int64 [N].
        valid: True if the row is valid for comparison: it has consent, the reference's
            features, and no degraded bit of `reading.APART`.
        decision: Decision, as its level; uint8 [N].
        degraded: Degraded bits.
        withheld: Rows whose vector was not stored, for lack of consent.
        foreign: Rows with other features than the reference's.
        confidence: Largest probability; NaN for none.
        decided_us, event_us: Times of decision and purchase; event_us is 0 where it was
            not stored.
        lists: Of `shown_lists.LIST`; None for a product that decides.
    """

    values: npt.NDArray[np.float32]
    cluster: I64
    valid: Bool
    decision: npt.NDArray[np.uint8]
    degraded: npt.NDArray[np.uint32]
    withheld: Bool
    foreign: Bool
    confidence: npt.NDArray[np.float32]
    decided_us: I64
    event_us: I64
    lists: npt.NDArray[np.void] | None = None

    def __len__(self) -> int:
        return len(self.decision)

    def take(self, rows: slice | Bool) -> MonitoredRows:
        """Return the selected rows."""
        columns = {name: getattr(self, name) for name in self.__struct_fields__}
        return MonitoredRows(
            **{name: one[rows] for name, one in columns.items() if one is not None}
        )


class DecisionMix:
    """Counts of decisions over all rows, valid or not."""

    def __init__(self) -> None:
        self.rows = 0
        self.withheld = 0
        self.apart = 0
        self.foreign = 0
        self.decisions = np.zeros(len(Decision), np.int64)
        self.bits = np.zeros(len(_BITS), np.int64)
        self.confident = 0
        self.unsure = 0
        self.confidence_sum = 0.0
        self.first_us = 0
        self.last_us = 0

    def add(self, rows: MonitoredRows) -> None:
        """Count rows."""
        if not len(rows):
            return
        self.rows += len(rows)
        self.withheld += int(rows.withheld.sum())
        self.foreign += int(rows.foreign.sum())
        self.apart += int((~rows.valid & ~rows.withheld & ~rows.foreign).sum())
        self.decisions += np.bincount(rows.decision, minlength=len(Decision))
        for at, bit in enumerate(_BITS):
            self.bits[at] += int(((rows.degraded & np.uint32(bit)) != 0).sum())
        known = rows.confidence[np.isfinite(rows.confidence)]
        self.confident += len(known)
        self.unsure += int((known < UNSURE).sum())
        self.confidence_sum += float(known.sum(dtype=np.float64))
        first, last = int(rows.decided_us.min()), int(rows.decided_us.max())
        self.first_us = min(self.first_us or first, first)
        self.last_us = max(self.last_us, last)

    def share(self, decision: int) -> float:
        """Return the share of the decisions of a level; NaN without rows."""
        return float(self.decisions[decision] / self.rows) if self.rows else np.nan

    @property
    def confidence(self) -> float:
        """Return the mean of the largest probability; NaN without one."""
        return self.confidence_sum / self.confident if self.confident else np.nan

    @property
    def unsure_share(self) -> float:
        """Return the share of rows that the model is unsure of; NaN without one."""
        return self.unsure / self.confident if self.confident else np.nan

    def degraded(self) -> dict[str, int]:
        """Count rows by degraded bit; bits that did not occur are left out."""
        return {
            bit.name or "": int(count)
            for bit, count in zip(_BITS, self.bits, strict=True)
            if count
        }


class ColumnCounts:
    """
    Counts of valid rows by their position among a reference's marks.

    Attributes:
        rows: Number of rows by cluster; [CLUSTERS].
        cells: Per column, counts by cluster and cell; [CLUSTERS, 2M + 1]. Cells are
            < v1, = v1, between v1 and v2, = v2, …, > vM.
        missing: Per column, missing values by cluster; [C, CLUSTERS].
    """

    def __init__(self, reference: Reference) -> None:
        self._columns = reference.columns
        self.rows = np.zeros(CLUSTERS, np.int64)
        self.cells = [
            np.zeros((CLUSTERS, _cells(column)), np.int64) for column in self._columns
        ]
        self.missing = np.zeros((len(self._columns), CLUSTERS), np.int64)
        self.event_first_us = 0
        self.event_last_us = 0

    def __len__(self) -> int:
        return int(self.rows.sum())

    @property
    def event_span_s(self) -> float:
        """Return the seconds from the first purchase to the last."""
        return (self.event_last_us - self.event_first_us) / 1e6

    def add(self, rows: MonitoredRows) -> None:
        """Count rows, which must all be valid."""
        if not len(rows):
            return
        self.rows += np.bincount(rows.cluster, minlength=CLUSTERS)
        for at, column in enumerate(self._columns):
            there = np.isfinite(rows.values[:, at])
            cluster = rows.cluster
            if not there.all():
                # A valid row without a score was decided before the model.
                if column.kind != "score":
                    self.missing[at] += np.bincount(cluster[~there], minlength=CLUSTERS)
                cluster = cluster[there]
            if column.marks is not None:
                values = rows.values[there, at].astype(np.float64)
                marks = column.marks.values
                cell = np.searchsorted(marks, values, side="left")
                cell += np.searchsorted(marks, values, side="right")
                width = _cells(column)
                self.cells[at] += np.bincount(
                    cluster * width + cell, minlength=CLUSTERS * width
                ).reshape(CLUSTERS, width)
        first, last = int(rows.event_us.min()), int(rows.event_us.max())
        self.event_first_us = min(self.event_first_us or first, first)
        self.event_last_us = max(self.event_last_us, last)


def _cells(column: ReferenceColumn) -> int:
    return 2 * len(column.marks.values) + 1 if column.marks is not None else 1

"""
How right releases were, of decisions that are all judged at the same age.

A label takes its time: of yesterday's frauds few are known, of last month's most. So
days are only compared at one age, the label lag: decisions that are younger wait, and
a label that took longer does not count for anybody, however old the decision is now.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timezone

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from tollgate.audit.labels import REVISION
from tollgate.audit.rows import EVENT
from tollgate.audit.subjects import TRANSACTION
from tollgate.challenger.intervals import Interval, share
from tollgate.features.document import LABEL, LABEL_TIME
from tollgate.monitor.tallies import DECISIONS

I64 = npt.NDArray[np.int64]

COLUMNS = (TRANSACTION, "release", "decision", EVENT)
# What counts as flagged: reviews and declines together, and declines alone.
LEVELS = {"review": 1, "decline": 2}


class Rule(msgspec.Struct, frozen=True):
    """
    What a label has to be to count.

    Attributes:
        as_of_us: Now, on the clock of the purchases.
        lag_us: The age at which every decision is judged.
        legitimate: Whether a decision without a label by then was legitimate: where
            only frauds are reported. Else it is left out.
    """

    as_of_us: int
    lag_us: int
    legitimate: bool


class Counts:
    """
    Decisions by what became of them.

    Attributes:
        young: Decisions that are not old enough.
        old: Decisions that are.
        known: Of those, by decision and what they were; [3, 2].
        late: Labels of old decisions that took longer than the lag.
    """

    def __init__(self) -> None:
        self.young = 0
        self.old = 0
        self.late = 0
        self.known: I64 = np.zeros((len(DECISIONS), 2), np.int64)

    def add(self, other: Counts) -> None:
        """Add others."""
        self.young += other.young
        self.old += other.old
        self.late += other.late
        self.known += other.known

    @property
    def labelled(self) -> int:
        """Decisions of which it is known, or taken as known, what they were."""
        return int(self.known.sum())

    @property
    def frauds(self) -> int:
        """Those that were fraud."""
        return int(self.known[:, 1].sum())

    def precision(self, level: int) -> Interval:
        """Tell the share of those decided so, or harder, that were fraud."""
        return share(self.known[level:, 1].sum(), self.known[level:].sum())

    def recall(self, level: int) -> Interval:
        """Tell the share of the frauds that was decided so, or harder."""
        return share(self.known[level:, 1].sum(), self.known[:, 1].sum())


class Accuracy:
    """
    What is known of each release by day of purchase.

    Attributes:
        rule: What counted.
        days: By release and day (days since the epoch).
        in_time: Share of labels that came within the lag, of decisions twice as old,
            of which the slower ones had time to come, too; NaN without one.
    """

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self.days: dict[str, dict[int, Counts]] = {}
        self._settled = 0
        self._settled_in_time = 0

    @property
    def in_time(self) -> float:
        """Share of labels that came within the lag; NaN where none had twice that."""
        return self._settled_in_time / self._settled if self._settled else np.nan

    def add(self, segment: pl.DataFrame, labels: pl.DataFrame) -> None:
        """
        Count the decisions of a segment.

        Args:
            segment: With COLUMNS.
            labels: Transaction, label, label_time and revision, all there are.
        """
        rows = segment.filter(pl.col(TRANSACTION).is_not_null())
        rows = rows.unique(TRANSACTION, keep="first", maintain_order=True)
        rows = rows.with_columns(pl.col(EVENT).dt.epoch("us").alias("event_us"))
        joined = rows.join(labels, on=TRANSACTION, how="inner").with_columns(
            (pl.col(LABEL_TIME).dt.epoch("us") - pl.col("event_us")).alias("took_us")
        )
        self._note_lags(joined)
        counted = joined.filter(pl.col("took_us") <= self.rule.lag_us)
        last = counted.sort(REVISION, LABEL_TIME, maintain_order=True).unique(
            TRANSACTION, keep="last", maintain_order=True
        )
        late = (
            joined.select(TRANSACTION).unique().join(last, on=TRANSACTION, how="anti")
        )
        rows = rows.join(last.select(TRANSACTION, LABEL), on=TRANSACTION, how="left")
        rows = rows.with_columns(
            pl.col(TRANSACTION).is_in(late[TRANSACTION].implode()).alias("late"),
            (pl.col("event_us") // 86_400_000_000).alias("day"),
        )
        for (release, day), own in rows.group_by("release", "day", maintain_order=True):
            found = self._counted(own)
            days = self.days.setdefault(str(release), {})
            days.setdefault(int(str(day)), Counts()).add(found)

    def total(self, release: str) -> Counts:
        """Add up all days of a release."""
        whole = Counts()
        for one in self.days.get(release, {}).values():
            whole.add(one)
        return whole

    def newest(self, release: str) -> Counts | None:
        """Tell of the newest day that is old enough as a whole; None without one."""
        days = self.days.get(release, {})
        whole = [day for day, one in days.items() if one.old and not one.young]
        return days[max(whole)] if whole else None

    def _note_lags(self, joined: pl.DataFrame) -> None:
        first = joined.sort("took_us").unique(TRANSACTION, keep="first")
        settled = first.filter(
            pl.col("event_us") <= self.rule.as_of_us - 2 * self.rule.lag_us
        )
        self._settled += len(settled)
        self._settled_in_time += int((settled["took_us"] <= self.rule.lag_us).sum())

    def _counted(self, own: pl.DataFrame) -> Counts:
        found = Counts()
        old = own.filter(pl.col("event_us") <= self.rule.as_of_us - self.rule.lag_us)
        found.old, found.young = len(old), len(own) - len(old)
        found.late = int(old["late"].sum())
        label = old[LABEL].fill_null(0) if self.rule.legitimate else old[LABEL]
        for at, name in enumerate(DECISIONS):
            its = label.filter(old["decision"] == name)
            found.known[at] = [(its == 0).sum(), (its == 1).sum()]
        return found


def known_by(labels: pl.DataFrame, as_of_us: int) -> pl.DataFrame:
    """Leave out labels that nobody knew then."""
    return labels.filter(pl.col(LABEL_TIME).dt.epoch("us") <= as_of_us)


def day_text(day: int) -> str:
    """Write a day since the epoch as 2026-11-22."""
    return datetime.fromtimestamp(day * 86_400, timezone.utc).strftime("%Y-%m-%d")


def default_lag_us(delays_us: Iterable[int]) -> int:
    """Take what features.yaml waits for labels; 30 days where it says nothing."""
    longest = max(delays_us, default=0)
    return longest or 30 * 86_400_000_000

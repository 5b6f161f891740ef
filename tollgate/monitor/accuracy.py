"""
Measure the accuracy of releases on decisions that are all judged at the same age.

Labels take time: few of yesterday's frauds are known, and most of last month's. So days
are compared at one age, the label lag. Younger decisions are left out until they reach
that age, and a label that took longer never counts, however old the decision is now.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime, timezone

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from tollgate.audit.releases.record_rows import EVENT, levels_of
from tollgate.audit.worker.label_journal import REVISION
from tollgate.audit.worker.pseudonyms import TRANSACTION
from tollgate.challenger.intervals import Interval, share
from tollgate.features.spec.spec_document import LABEL, LABEL_TIME
from tollgate.schema import DEFAULT_OUTCOMES, Decision, Outcomes

I64 = npt.NDArray[np.int64]

COLUMNS = (TRANSACTION, "release", "decision", EVENT)
# Decisions of one of these levels or above count as flagged.
FLAGGED_FROM = (Decision.REVIEW, Decision.DECLINE)


class LabelRule(msgspec.Struct, frozen=True):
    """
    Conditions under which a label counts.

    Attributes:
        as_of_us: Current time on the clock of the purchases, µs.
        lag_us: Age at which every decision is judged, µs.
        legitimate: True if a decision that is unlabelled at that age counts as
            legitimate: use it where only frauds are reported. Otherwise it is left out.
    """

    as_of_us: int
    lag_us: int
    legitimate: bool


class LabelCounts:
    """
    Counts of decisions by their labels.

    Attributes:
        young: Decisions younger than the label lag.
        old: Decisions that have reached it.
        known: Labelled old decisions, by decision and label; [3, 2].
        late: Old decisions whose labels all took longer than the lag.
    """

    def __init__(self) -> None:
        self.young = 0
        self.old = 0
        self.late = 0
        self.known: I64 = np.zeros((len(Decision), 2), np.int64)

    def add(self, other: LabelCounts) -> None:
        """Add other counts."""
        self.young += other.young
        self.old += other.old
        self.late += other.late
        self.known += other.known

    @property
    def labelled(self) -> int:
        """Return the number of decisions with a label, known or assumed."""
        return int(self.known.sum())

    @property
    def frauds(self) -> int:
        """Return the number of these that were fraud."""
        return int(self.known[:, 1].sum())

    def precision(self, level: int) -> Interval:
        """Return the share of frauds among decisions of this level or above."""
        return share(self.known[level:, 1].sum(), self.known[level:].sum())

    def recall(self, level: int) -> Interval:
        """Return the share of frauds that got a decision of this level or above."""
        return share(self.known[level:, 1].sum(), self.known[:, 1].sum())


class DailyAccuracy:
    """
    Counts of labelled decisions of each release, by day of purchase.

    Args:
        rule: Conditions under which labels count.
        outcomes: Returns the words of a release's decisions.

    Attributes:
        rule: Conditions under which labels count.
        outcomes: Returns the words of a release's decisions.
        days: Counts by release and day (days since the epoch).
        in_time: Share of labels that came within the lag. Only decisions of twice that
            age count, so that slower labels had time to come, too; NaN without one.
    """

    def __init__(
        self,
        rule: LabelRule,
        outcomes: Callable[[str], Outcomes] = lambda release: DEFAULT_OUTCOMES,
    ) -> None:
        self.rule = rule
        self.outcomes = outcomes
        self.days: dict[str, dict[int, LabelCounts]] = {}
        self._settled = 0
        self._settled_in_time = 0

    @property
    def in_time(self) -> float:
        """
        Return the share of labels that came within the lag; NaN if no decision is old
        enough.
        """
        return self._settled_in_time / self._settled if self._settled else np.nan

    def add(self, segment: pl.DataFrame, labels: pl.DataFrame) -> None:
        """
        Count the decisions of a segment.

        Args:
            segment: Table with COLUMNS.
            labels: Transaction, label, label_time and revision of all labels.
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
            found = self._counted(own, self.outcomes(str(release)))
            days = self.days.setdefault(str(release), {})
            days.setdefault(int(str(day)), LabelCounts()).add(found)

    def total(self, release: str) -> LabelCounts:
        """Return the sum over all days of a release."""
        whole = LabelCounts()
        for one in self.days.get(release, {}).values():
            whole.add(one)
        return whole

    def newest(self, release: str) -> LabelCounts | None:
        """Return the counts of the newest day without young decisions, or None."""
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

    def _counted(self, own: pl.DataFrame, outcomes: Outcomes) -> LabelCounts:
        found = LabelCounts()
        old = own.filter(pl.col("event_us") <= self.rule.as_of_us - self.rule.lag_us)
        found.old, found.young = len(old), len(own) - len(old)
        found.late = int(old["late"].sum())
        label = old[LABEL].fill_null(0) if self.rule.legitimate else old[LABEL]
        decided = levels_of(old["decision"], outcomes)
        for level in Decision:
            its = label.filter(pl.Series(decided == level))
            found.known[level] = [(its == 0).sum(), (its == 1).sum()]
        return found


def known_by(labels: pl.DataFrame, as_of_us: int) -> pl.DataFrame:
    """Leave out labels that became known after a given time."""
    return labels.filter(pl.col(LABEL_TIME).dt.epoch("us") <= as_of_us)


def day_text(day: int) -> str:
    """Format a day since the epoch, such as 2026-11-22."""
    return datetime.fromtimestamp(day * 86_400, timezone.utc).strftime("%Y-%m-%d")


def default_lag_us(delays_us: Iterable[int]) -> int:
    """Return the longest label delay of features.yaml; 30 days if it has none."""
    longest = max(delays_us, default=0)
    return longest or 30 * 86_400_000_000

"""
Count the decisions of a device by hour, so that the centre has the counts of decisions
whose records it does not have yet, or never gets.

The hours of the last week are separate; older ones are added up to days (UTC). Days end
after a year, the oldest first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

from tollgate.journal.decision_record import Records

HOUR_S, DAY_S = 3_600, 86_400
MOST_HOURS, MOST_DAYS = 168, 366
_BOUNDS_US = tuple(2**power for power in range(6, 21))  # 64 µs to 1 s


class Aggregate(msgspec.Struct):
    """
    Count the decisions of one release in one span of time.

    Attributes:
        begin_s: Start of the span, seconds since the epoch.
        length_s: An hour or a day.
        outcomes: Number of decisions by outcome.
        degraded: Number of decisions with a degraded bit.
        us: Number of decisions by the time that features, model and policy took: below
            64 µs, below 128 µs and so on, below 1,048,576 µs, and above.
    """

    begin_s: int
    length_s: int
    release: str
    outcomes: dict[str, int]
    degraded: int
    us: list[int]

    def add(self, other: Aggregate) -> None:
        """Add the counts of another one."""
        for word, number in other.outcomes.items():
            self.outcomes[word] = self.outcomes.get(word, 0) + number
        self.degraded += other.degraded
        self.us = [sum(pair) for pair in zip(self.us, other.us, strict=True)]


def count(records: Records, outcomes: Sequence[str]) -> list[Aggregate]:
    """
    Count the decisions of a chunk by hour.

    Args:
        outcomes: Words of the product, by level.
    """
    hours = records.decided_us // (HOUR_S * 1_000_000)
    spent_us = records.features_us.astype(np.int64)
    spent_us += records.model_us
    spent_us += records.decision_us
    places = np.searchsorted(_BOUNDS_US, spent_us, side="right")
    found = []
    for hour in np.unique(hours).tolist():
        own = hours == hour
        levels = np.bincount(records.decision[own], minlength=len(outcomes)).tolist()
        us = np.bincount(places[own], minlength=len(_BOUNDS_US) + 1).tolist()
        named = zip(outcomes, levels, strict=True)
        found.append(
            Aggregate(
                begin_s=hour * HOUR_S,
                length_s=HOUR_S,
                release=records.release,
                outcomes={word: number for word, number in named if number},
                degraded=int(np.count_nonzero(records.degraded[own])),
                us=us,
            )
        )
    return found


def merge(old: Iterable[Aggregate], new: Iterable[Aggregate]) -> list[Aggregate]:
    """Add aggregates up, the oldest first, and thin the old ones."""
    everything = [*old, *new]
    hours = sorted({one.begin_s for one in everything if one.length_s == HOUR_S})
    thin_before_s = hours[-MOST_HOURS] if len(hours) > MOST_HOURS else 0
    spans: dict[tuple[int, int, str], Aggregate] = {}
    for one in everything:
        length_s = one.length_s if one.begin_s >= thin_before_s else DAY_S
        begin_s = one.begin_s // length_s * length_s
        known = spans.get((begin_s, length_s, one.release))
        if known is None:
            spans[begin_s, length_s, one.release] = Aggregate(
                begin_s=begin_s,
                length_s=length_s,
                release=one.release,
                outcomes=dict(one.outcomes),
                degraded=one.degraded,
                us=list(one.us),
            )
        else:
            known.add(one)
    days = sorted({begin for begin, length, _ in spans if length == DAY_S})
    first_day_s = days[-MOST_DAYS] if len(days) > MOST_DAYS else 0
    return [spans[key] for key in sorted(spans) if key[0] >= first_day_s]

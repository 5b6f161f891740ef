"""
Windows with a hop as docs/adr/0020 defines them, in plain Python, for one entity id.

`closed_form` is the definition: a window holds the purchases between two times.
`PlainState` is the state that the decision describes: head, tiles, a list of labels.
Neither shares code with tollgate.
"""

from __future__ import annotations

import bisect
import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.support.features.plain_sketch import approximate_count

SECOND_US = 10**6
MINUTE_US, HOUR_US, DAY_US = 60 * SECOND_US, 3600 * SECOND_US, 86_400 * SECOND_US
HOPS_US = {
    "1s": SECOND_US,
    "10s": 10 * SECOND_US,
    "1m": MINUTE_US,
    "5m": 5 * MINUTE_US,
    "15m": 15 * MINUTE_US,
    "1h": HOUR_US,
    "6h": 6 * HOUR_US,
    "1d": DAY_US,
}
UNITS: dict[str, int | None] = {
    "amount": 100,
    "weight": 1000,
    "spot": None,
    "device": None,
}
LABELS_HELD = 4

Place = tuple[int, int, bytes, bytes]


@dataclass(frozen=True, eq=False)
class Purchase:
    """
    Hold a purchase of the id.

    `numbers` has cents as `amount`, and each declared number: whole units of its last
    decimal, or a float that is exact (`UNITS`); None where it was not sent. `device` is
    a text.
    """

    id: str
    time_us: int
    numbers: dict[str, Any]

    @property
    def place(self) -> Place:
        """Return time, then the order of ids in docs/contract.md, "Order key"."""
        name = self.id.encode()
        tie = hashlib.blake2b(name, digest_size=8).digest()
        return self.time_us, len(name), name[:15].ljust(15, b"\0"), tie


@dataclass(frozen=True)
class Label:
    """Hold a label: a higher revision replaces a lower one."""

    purchase: Purchase
    fraud: bool
    time_us: int
    revision: int = 0

    @property
    def place(self) -> tuple[int, bytes]:
        """Return the label time, then the hash of the purchase's id."""
        return self.time_us, self.purchase.place[-1]


@dataclass(frozen=True)
class Feature:
    """Hold one aggregate over a window."""

    aggregate: str
    window_us: int
    of: str = "amount"
    default: float = 0.0
    nth: int = 1  # of `last` and `change`: the place, counted from the newest


@dataclass(frozen=True)
class Entity:
    """Hold an entity of features.yaml."""

    features: tuple[Feature, ...]
    hop_us: int = 0
    delay_us: int = 0
    lateness_us: int = DAY_US
    cap: int = 64
    # The store decides when purchases are folded, and the test folds as many.
    fills: bool = False

    @property
    def horizon_us(self) -> int:
        """Return how far behind the newest a purchase is applied, as without a hop."""
        longest_us = max(one.window_us for one in self.features)
        longest_us += self.rounding_us(longest_us)
        return longest_us + self.delay_us + self.lateness_us

    @property
    def counts_frauds(self) -> bool:
        """Test whether a feature counts frauds."""
        return any(one.aggregate in ("flagged", "share") for one in self.features)

    def rounding_us(self, window_us: int) -> int:
        """Return r(w): the hop, or the largest width that is at most w / 24."""
        if not self.hop_us:
            return 0
        fitting = [one for one in HOPS_US.values() if 24 * one <= window_us]
        return max([self.hop_us, *fitting])

    def old_edge_us(self, window_us: int, time_us: int) -> int:
        """Return the time that every purchase of a row's window is newer than."""
        rounding_us = self.rounding_us(window_us)
        return floor_us(time_us - self.delay_us - window_us, rounding_us)

    def new_edge_us(self, time_us: int) -> int:
        """Return the time that no purchase of a row's window is newer than."""
        if not self.delay_us:
            return time_us
        return floor_us(time_us - self.delay_us, self.hop_us)

    def contains(self, feature: Feature, row: Purchase, one: Purchase) -> bool:
        """Test whether a purchase is in the window of a row."""
        if one.time_us <= self.old_edge_us(feature.window_us, row.time_us):
            return False
        if not self.delay_us:
            return one.place <= row.place
        return one.time_us <= self.new_edge_us(row.time_us)


def floor_us(time_us: int, width_us: int) -> int:
    """Return the largest multiple of a width that is at most a time."""
    return time_us // width_us * width_us if width_us else time_us


def in_units(number: int | float, of: str) -> float:
    """Convert a number to the units of the feature."""
    unit = UNITS[of]
    return float(number) if unit is None else number / unit


def nth_newest(feature: Feature, values: Sequence[int | float]) -> float:
    """Return `last` or `change` of values, the newest of which is the last."""
    if len(values) < feature.nth:
        return feature.default
    nth = values[-feature.nth]
    if feature.aggregate == "last":
        return in_units(nth, feature.of)
    return in_units(values[-1] - nth, feature.of)


class Moments:
    """Hold the sums of values x, times t in µs, and their products."""

    def __init__(self) -> None:
        self.n = self.x = self.xx = self.t = self.tt = self.tx = 0

    def add(self, time_us: int, number: int | float) -> None:
        """Add a value; floats have no moments."""
        x, t = int(number), time_us
        self.n += 1
        self.x += x
        self.xx += x * x
        self.t += t
        self.tt += t * t
        self.tx += t * x

    def merge(self, other: Moments) -> None:
        """Add the values of another one."""
        for name, one in vars(other).items():
            setattr(self, name, getattr(self, name) + one)

    def value(self, feature: Feature) -> float:
        """Return the standard deviation, or the trend per hour by least squares."""
        n, unit = self.n, UNITS[feature.of] or 1
        if feature.aggregate == "std":
            if n < 2:
                return feature.default
            return math.sqrt(float(n * self.xx - self.x * self.x)) / (n * unit)
        spread = float(n * self.tt - self.t * self.t)
        if not spread:
            return feature.default
        slope_us = float(n * self.tx - self.t * self.x) / spread
        return slope_us * (3600 * SECOND_US / unit)


def closed_form(
    entity: Entity,
    feature: Feature,
    row: Purchase,
    *,
    purchases: Sequence[Purchase],
    labels: Iterable[Label] = (),
) -> float:
    """
    Compute a feature of a row from all purchases of the id.

    Args:
        entity: Its delay and hop.
        feature: What to compute.
        row: One of the purchases.
        purchases: All of them, in any order.
        labels: Labels of purchases; the highest revision of each counts.
    """
    inside = [one for one in purchases if entity.contains(feature, row, one)]
    inside.sort(key=lambda one: one.place)
    newest: dict[str, Label] = {}
    for label in labels:
        before = newest.get(label.purchase.id)
        if before is None or label.revision > before.revision:
            newest[label.purchase.id] = label
    frauds = 0
    for one in inside:
        known = newest.get(one.id)
        if known is not None and known.fraud and known.time_us <= row.time_us:
            frauds += 1
    earlier = [one for one in inside if one is not row]
    kind, of = feature.aggregate, feature.of
    if kind == "count":
        return float(len(inside))
    if kind == "flagged":
        return float(frauds)
    if kind == "share":
        return frauds / len(inside) if inside else 0.0
    if kind == "time_since_last":
        if not earlier:
            return feature.default
        return (row.time_us - earlier[-1].time_us) / SECOND_US
    if kind in ("last", "change"):
        values = [one.numbers[of] for one in earlier]
        return nth_newest(feature, [one for one in values if one is not None])
    numbers = [one.numbers[of] for one in inside]
    values = [one for one in numbers if one is not None]
    if kind == "approx_distinct":
        return approximate_count(set(values))
    if kind == "sum":
        return in_units(sum(values), of)
    if kind == "mean":
        return sum(values) / (len(values) * (UNITS[of] or 1)) if values else 0.0
    if kind in ("std", "slope"):
        moments = Moments()
        for one in inside:
            if one.numbers[of] is not None:
                moments.add(one.time_us, one.numbers[of])
        return moments.value(feature)
    if not values:
        return feature.default
    return in_units({"min": min, "max": max}[kind](values), of)


@dataclass
class Tile:
    """Hold what is left of the purchases of (end - width, end]."""

    count: int = 0
    frauds: int = 0
    sums: dict[str, int] = field(default_factory=dict)
    known: dict[str, int] = field(default_factory=dict)
    moments: dict[str, Moments] = field(default_factory=dict)
    least: dict[str, int | float] = field(default_factory=dict)
    most: dict[str, int | float] = field(default_factory=dict)
    texts: set[str] = field(default_factory=set)

    def add(self, one: Purchase) -> None:
        """Add a purchase."""
        numbers = {of: it for of, it in one.numbers.items() if it is not None}
        texts = {it for it in numbers.values() if isinstance(it, str)}
        sums = {of: it for of, it in numbers.items() if isinstance(it, int)}
        moments = {of: Moments() for of in numbers}
        for of, it in sums.items():
            moments[of].add(one.time_us, it)
        known = dict.fromkeys(numbers, 1)
        self.merge(Tile(1, 0, sums, known, moments, numbers, numbers, texts))

    def merge(self, other: Tile) -> None:
        """Add the purchases of another tile."""
        self.count += other.count
        self.frauds += other.frauds
        self.texts |= other.texts
        for of in other.known:
            if of not in self.known:
                self.sums[of] = self.known[of] = 0
                self.moments[of] = Moments()
                self.least[of], self.most[of] = other.least[of], other.most[of]
            self.sums[of] += other.sums.get(of, 0)
            self.known[of] += other.known[of]
            self.moments[of].merge(other.moments[of])
            self.least[of] = min(self.least[of], other.least[of])
            self.most[of] = max(self.most[of], other.most[of])


@dataclass(frozen=True)
class Answer:
    """
    Hold the answer to a row.

    `status` is applied, duplicate or late. Without `values` the row has the mark
    EVENT_TOO_LATE.
    """

    status: str
    values: tuple[float, ...] | None


class PlainState:
    """Hold the state of one id: head, tiles, labels of folded purchases."""

    def __init__(self, entity: Entity) -> None:
        self.entity = entity
        self.head: list[Purchase] = []
        self.labels: dict[str, Label] = {}  # of the head, and of purchases to come
        self.tiles: dict[tuple[int, int], Tile] = {}  # by (width, end)
        self.newest_folded: Purchase | None = None
        self.folded = 0
        self.last_folded: dict[str, Purchase] = {}  # newest with a value, by number
        self.folded_labels: list[Label] = []
        self.newest_left: Label | None = None  # of those that left that list
        self.watermark_us: int | None = None
        widths = {entity.rounding_us(one.window_us) for one in entity.features}
        self.widths = sorted({entity.hop_us, *widths})

    def newer_than_tiles(self, one: Purchase) -> bool:
        """Test whether a purchase is after all that are folded."""
        return self.newest_folded is None or one.place > self.newest_folded.place

    def within(self, one: Purchase, horizon_us: int) -> bool:
        """Test whether a purchase is at most so far behind the newest."""
        newest_us = self.watermark_us
        return newest_us is None or one.time_us >= newest_us - horizon_us

    def apply(self, batch: Sequence[Purchase]) -> list[Answer]:
        """Apply a batch: judge all of it by the state before it, read, then fold."""
        newer = [self.newer_than_tiles(one) for one in batch]
        inside = [self.within(one, self.entity.horizon_us) for one in batch]
        statuses = []
        for one, after, recent in zip(batch, newer, inside, strict=True):
            if one in self.head:
                statuses.append("duplicate")
            elif not (after and recent):
                statuses.append("late")
            else:
                statuses.append("applied")
                bisect.insort(self.head, one, key=lambda other: other.place)
        if self.head:
            self.watermark_us = max(self.watermark_us or 0, self.head[-1].time_us)
        answers = []
        for one, status, after in zip(batch, statuses, newer, strict=True):
            values = None
            if after and self._readable(one):
                found = [self._value(feature, one) for feature in self.entity.features]
                if None not in found:
                    values = tuple(one for one in found if one is not None)
            answers.append(Answer(status, values))
        cap = self.entity.cap
        if not self.entity.fills and len(self.head) > cap:
            self._fold(len(self.head) - cap + min(8, cap // 2))
        elif self.newest_folded is not None:
            self._coarsen()
        return answers

    def fold_as(self, folded: int) -> None:
        """Fold until so many purchases are folded in all, and some are left."""
        if folded > self.folded:
            assert len(self.head) > self.entity.cap
            self._fold(folded - self.folded)
            assert len(self.head) >= self.entity.cap - min(8, self.entity.cap // 2)

    def _readable(self, row: Purchase) -> bool:
        """Test whether a row is within the lateness, and knows what the tiles know."""
        left = self.newest_left
        known = left is None or row.time_us >= left.time_us
        return (known or not self.entity.counts_frauds) and self.within(
            row, self.entity.lateness_us
        )

    def _value(self, feature: Feature, row: Purchase) -> float | None:
        """Return a feature of a row; None if the state cannot tell."""
        kind, of, entity = feature.aggregate, feature.of, self.entity
        old_us = entity.old_edge_us(feature.window_us, row.time_us)
        if kind == "time_since_last":
            return self._age(feature, row)
        if kind in ("last", "change"):
            return self._nth_newest(feature, row)
        whole = Tile()
        for (width_us, end_us), tile in self.tiles.items():
            start_us = end_us - width_us
            # Without a delay every folded purchase is before the row.
            new_us = entity.new_edge_us(row.time_us) if entity.delay_us else end_us
            assert not start_us < old_us < end_us, "the old edge cuts a tile"
            assert not start_us < new_us < end_us, "the new edge cuts a tile"
            if start_us >= old_us and end_us <= new_us:
                whole.merge(tile)
        for one in self.head:
            if entity.contains(feature, row, one):
                whole.add(one)
                known = self.labels.get(one.id)
                if known is not None and known.fraud and known.time_us <= row.time_us:
                    whole.frauds += 1
        for label in self.folded_labels:
            inside = entity.contains(feature, row, label.purchase)
            if inside and label.fraud and label.time_us <= row.time_us:
                whole.frauds += 1
        if kind == "count":
            return float(whole.count)
        if kind == "flagged":
            return float(whole.frauds)
        if kind == "share":
            return whole.frauds / whole.count if whole.count else 0.0
        if kind == "sum":
            return in_units(whole.sums.get(of, 0), of)
        if kind in ("std", "slope"):
            return whole.moments.get(of, Moments()).value(feature)
        if kind == "approx_distinct":
            return approximate_count(whole.texts)
        if of not in whole.known:
            return 0.0 if kind == "mean" else feature.default
        if kind == "mean":
            return whole.sums[of] / (whole.known[of] * (UNITS[of] or 1))
        return in_units({"min": whole.least, "max": whole.most}[kind][of], of)

    def _age(self, feature: Feature, row: Purchase) -> float:
        """Return `time_since_last`, of an entity without a delay."""
        earlier = [one for one in self.head if one.place < row.place]
        newest = earlier[-1] if earlier else self.newest_folded
        if newest is None or not self.entity.contains(feature, row, newest):
            return feature.default
        return (row.time_us - newest.time_us) / SECOND_US

    def _nth_newest(self, feature: Feature, row: Purchase) -> float | None:
        """
        Return `last` or `change`, of an entity without a delay.

        Of the folded purchases, the state has the newest value alone.
        """
        of, folded = feature.of, self.last_folded.get(feature.of)
        known = [one for one in self.head if one.numbers[of] is not None]
        known = [one for one in known if one.place < row.place]
        values = [
            one.numbers[of] or 0
            for one in [*([folded] if folded else []), *known]
            if self.entity.contains(feature, row, one)
        ]
        is_folded = folded is not None and self.entity.contains(feature, row, folded)
        if is_folded and len(values) < feature.nth:
            return None
        return nth_newest(feature, values)

    def _fold(self, count: int) -> None:
        """Fold the oldest purchases, then merge and remove tiles."""
        leaving, self.head = self.head[:count], self.head[count:]
        self.folded += count
        for one in leaving:
            end_us = -floor_us(-one.time_us, self.entity.hop_us)
            self.tiles.setdefault((self.entity.hop_us, end_us), Tile()).add(one)
            self.newest_folded = one
            numbers = one.numbers.items()
            self.last_folded |= {of: one for of, it in numbers if it is not None}
            label = self.labels.pop(one.id, None)
            if label is not None and (label.fraud or label.revision):
                self.folded_labels.append(label)
        self._coarsen()
        self._trim_labels()

    def _coarsen(self) -> None:
        """Merge the tiles that no edge can cut any more; remove those of no window."""
        assert self.watermark_us is not None
        entity = self.entity
        oldest_us = self.watermark_us - entity.lateness_us  # oldest row that is read
        edges = [(entity.hop_us, entity.new_edge_us(oldest_us))]
        edges *= bool(entity.delay_us)
        for feature in entity.features:
            old_us = entity.old_edge_us(feature.window_us, oldest_us)
            edges.append((entity.rounding_us(feature.window_us), old_us))
        for narrow_us, wide_us in zip(self.widths, self.widths[1:], strict=False):
            # The edges that are multiples of the wider width cut no tile of it.
            cutting = [edge_us for width_us, edge_us in edges if width_us < wide_us]
            for width_us, end_us in sorted(self.tiles):
                wide_end_us = -floor_us(-end_us, wide_us)
                uncut = all(wide_end_us <= edge_us for edge_us in cutting)
                if width_us == narrow_us and uncut:
                    tile = self.tiles.pop((width_us, end_us))
                    self.tiles.setdefault((wide_us, wide_end_us), Tile()).merge(tile)
        for width_us, end_us in sorted(self.tiles):
            if end_us <= self._oldest_edge_us():
                del self.tiles[width_us, end_us]

    def _oldest_edge_us(self) -> int:
        """Return the oldest edge of the windows of a row within the lateness."""
        entity, newest_us = self.entity, self.watermark_us or 0
        return min(
            entity.old_edge_us(one.window_us, newest_us - entity.lateness_us)
            for one in entity.features
        )

    def label(self, batch: Sequence[Label]) -> list[str | None]:
        """
        Apply labels; return applied, duplicate or late for each.

        None: the decision does not say which, and the label changes nothing.
        """
        left, statuses = self.newest_left, []
        for label in batch:
            folded = self.newest_folded
            if folded is None or label.purchase.place > folded.place:
                statuses.append(self._label_of_head(label))
            else:
                statuses.append(self._label_of_folded(label, left))
        self._trim_labels()
        return statuses

    def _label_of_head(self, label: Label) -> str:
        """Apply a label as without a hop; it may come before its purchase."""
        waiting = all(one is not label.purchase for one in self.head)
        if waiting and not self.within(label.purchase, self.entity.horizon_us):
            return "late"
        before = self.labels.get(label.purchase.id)
        if before is not None and label.revision <= before.revision:
            return "duplicate"
        self.labels[label.purchase.id] = label
        return "applied"

    def _label_of_folded(self, label: Label, left: Label | None) -> str | None:
        if label.purchase.time_us <= self._oldest_edge_us():
            return None  # no window contains it
        if not self.entity.counts_frauds:
            return None
        purchase = label.purchase
        held = [one for one in self.folded_labels if one.purchase is purchase]
        if held and label.revision <= held[0].revision:
            return "duplicate"
        if not held and not label.fraud:
            return None  # there is nothing that it corrects
        if left is not None and label.place <= left.place:
            return "late"
        if left is not None and not held and label.revision:
            return "late"  # it may correct one that is in a tile
        self.folded_labels = [one for one in self.folded_labels if one not in held]
        self.folded_labels.append(label)
        return "applied"

    def _trim_labels(self) -> None:
        """Let the oldest labels leave the list; a fraud of them joins its tile."""
        self.folded_labels.sort(key=lambda one: one.place)
        leaving = self.folded_labels[:-LABELS_HELD]
        self.folded_labels = self.folded_labels[-LABELS_HELD:]
        for label in leaving:
            for (width_us, end_us), tile in self.tiles.items():
                if end_us - width_us < label.purchase.time_us <= end_us:
                    tile.frauds += label.fraud
            if self.newest_left is None or label.place > self.newest_left.place:
                self.newest_left = label

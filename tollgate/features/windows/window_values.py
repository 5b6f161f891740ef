"""
Compute the values of windows as of a moment: the arithmetic of offline and online.

A window ends at a row's own event, or `delay` before it. First the positions of rows
and windows among the entries of their entities are found; from them follow the sums
that all features share, and what single features need beyond those. Sums are integers,
so their order does not matter and online equals offline to the last bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from tollgate.features.spec.spec_definition import Feature, FeatureSpec
from tollgate.features.spec.tile_form import FieldKind
from tollgate.features.windows.distinct_values import (
    distinct,
    entity_of,
    previous,
    row_order,
    sketch_windows,
)
from tollgate.features.windows.entity_entries import MISSING, Entries, running
from tollgate.features.windows.window_moments import (
    MOST_ENTRIES,
    VALUE_DIGITS,
    Covariance,
    WideSum,
    digits,
    product_parts,
    weighted_sums,
)
from tollgate.schema import AMOUNT, float_places

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]

_LARGEST = np.iinfo(np.int64).max  # as a time: never

# Find the positions of rows and of their windows among the entries.


class Rows(msgspec.Struct, frozen=True):
    """
    Hold the times and windows that R rows read.

    Rows of one entity look equally far; delay and widths are given once for every row,
    or once for all.

    Attributes:
        entity: Index into the entries' `starts`; int64 [R].
        time_us: int64 [R].
        order: The row's own position in its instant, like the entries' `order`; [R].
        delay_us: Time from the windows' end to `time_us`; int64 [R] or [1].
        windows_us: Their widths; int64 [W, R] or [W, 1].
        back_us: The result of `look_back` for both; None: computed when needed.
        rounding_us: Width to which each time that `look_back` lists is rounded down;
            None: none is rounded; int64 [3 + W, R or 1].
    """

    entity: I64
    time_us: I64
    order: npt.NDArray[Any]
    delay_us: I64
    windows_us: I64
    back_us: I64 | None = None
    rounding_us: I64 | None = None

    def part(self, rows: slice, *, first: int) -> Rows:
        """
        Select some of the rows; each must have its own delay and widths.

        `first` is the entity at which the selected entries start.
        """
        return Rows(
            entity=self.entity[rows] - first,
            time_us=self.time_us[rows],
            order=self.order[rows],
            delay_us=self.delay_us[rows],
            windows_us=self.windows_us[:, rows],
        )


class Places(msgspec.Struct, frozen=True):
    """
    Hold the positions of rows and of their windows among the entries.

    Attributes:
        entry_key: Entity and time of each entry in one integer, ascending; [E].
        row_key: The same of each row; [R].
        own: One past the last entry up to the row's own (time, id); [R].
        end: One past the windows' last entry; [R].
        begin: First entry of each window; [W, R].
    """

    entry_key: I64
    row_key: I64
    own: I64
    end: I64
    begin: I64

    def part(self, rows: slice, entries: slice) -> Places:
        """Select the positions of some rows among the entries that they read."""
        first = entries.start
        return Places(
            entry_key=self.entry_key[entries],
            row_key=self.row_key[rows],
            own=self.own[rows] - first,
            end=self.end[rows] - first,
            begin=self.begin[:, rows] - first,
        )


def look_back(delay_us: I64, windows_us: I64) -> I64:
    """
    Return how far before a row's time `find_places` searches; int64 [3 + W, R or 1].

    The row's own instant, the instant before it, the windows' end, and their begins.
    """
    back_us = np.zeros((3 + len(windows_us), windows_us.shape[1]), np.int64)
    back_us[1] = 1
    back_us[2:] = delay_us
    back_us[3:] += windows_us
    return back_us


def rounding(edge_us: I64, windows_us: I64) -> I64:
    """
    Return the widths to which the times of `look_back` are rounded.

    Args:
        edge_us: Rounding of the windows' end; int64 [R or 1].
        windows_us: Rounding of their begins; int64 [W, R or 1].
    """
    widths_us = np.ones((3 + len(windows_us), windows_us.shape[1]), np.int64)
    widths_us[2] = edge_us
    widths_us[3:] = windows_us
    return widths_us


def find_places(entries: Entries, rows: Rows) -> Places:
    """Find all positions with one binary search over (entity, time)."""
    back_us = rows.back_us
    if back_us is None:
        back_us = look_back(rows.delay_us, rows.windows_us)
    starts = entries.starts
    times = [one for one in (entries.time_us, rows.time_us) if len(one)]
    low = min([int(np.minimum.reduce(one)) for one in times], default=0)
    high = max([int(np.maximum.reduce(one)) for one in times], default=0)
    low -= int(np.maximum.reduce(back_us, axis=None, initial=0))
    if rows.rounding_us is not None:
        low -= int(rows.rounding_us.max(initial=0))
    span = high - low + 2
    if span * len(starts) >= 2**63:
        raise OverflowError("too many entities over too long a time for one call")
    origin = np.arange(-low, (len(starts) - 1) * span - low, span)
    entry_key = origin.repeat(starts[1:] - starts[:-1])
    entry_key += entries.time_us
    row_key = origin[rows.entity] + rows.time_us
    wanted = row_key - back_us
    if rows.rounding_us is not None:
        wanted -= (rows.time_us - back_us) % rows.rounding_us
    found = entry_key.searchsorted(wanted, "right")
    own = _own_ends(entries, rows, low=found[1], high=found[0])
    end = np.where(rows.delay_us == 0, own, found[2])
    return Places(
        entry_key=entry_key,
        row_key=row_key,
        own=own,
        end=end,
        begin=np.minimum(found[3:], end),
    )


def _own_ends(entries: Entries, rows: Rows, *, low: I64, high: I64) -> I64:
    """
    Find, per row, the end of the events up to its own (time, id).

    Args:
        entries: All events.
        rows: All rows.
        low: The first event of each row's instant; overwritten.
        high: One past the last; overwritten.
    """
    if (high - low == 1).all():  # mostly its own event, and no other at its instant
        alone: I64 = low + (entries.order[low] <= rows.order)
        return alone
    (open_,) = (low < high).nonzero()
    while len(open_):
        middle = (low[open_] + high[open_]) // 2
        upto = entries.order[middle] <= rows.order[open_]
        low[open_[upto]] = middle[upto] + 1
        high[open_[~upto]] = middle[~upto]
        open_ = open_[low[open_] < high[open_]]
    return low


# List what features need from an entity's windows beyond counts, amounts and frauds.

# `known` counts the purchases that have the number at all. `variance` (times n²) and
# `slope` (per µs) are places of float64, as exact numbers are, and so is `ewm`: the sum
# of values times their weights, whose sum is `weight`. `sketch` is what
# `distinct_values.estimate` takes.
Kind = Literal[
    "sum",
    "known",
    "min",
    "max",
    "last",
    "distinct",
    "sketch",
    "time_since_last",
    "variance",
    "slope",
    "ewm",
    "weight",
    "sessions",
]


class Demand(NamedTuple):
    """
    One number of one window: its kind, its source, and the index of the window.

    `parameter` is the place of a `last` value, counted from the newest, 1; the
    half-life of `ewm` and `weight`, or the gap of `sessions`, in µs.
    """

    kind: Kind
    of: str
    window: int
    parameter: int = 0


def demands_of(feature: Feature) -> tuple[Demand, ...]:
    """Return the demands of a feature; empty if the common sums are enough."""
    kind, of = feature.aggregate, feature.of or AMOUNT
    if kind in ("sum", "mean") and feature.of is not None:
        total = Demand("sum", of, feature.window)
        if kind == "sum":
            return (total,)
        return (total, Demand("known", of, feature.window))
    if kind == "std":
        return (
            Demand("variance", of, feature.window),
            Demand("known", of, feature.window),
        )
    if kind == "ewm":
        total = Demand("ewm", of, feature.window, feature.half_life_us)
        return (total, total._replace(kind="weight"))
    if kind == "sessions":
        return (Demand("sessions", of, feature.window, feature.gap_us),)
    if kind == "approx_distinct":
        return (Demand("sketch", of, feature.window),)
    if kind in ("last", "change"):
        nth = Demand("last", of, feature.window, feature.nth or 1)
        return (nth,) if kind == "last" else (nth._replace(parameter=1), nth)
    if kind in ("min", "max", "distinct", "time_since_last", "slope"):
        return (Demand(kind, of, feature.window),)
    return ()


def entity_demands(spec: FeatureSpec) -> tuple[tuple[Demand, ...], ...]:
    """Collect the demands per entity, each once, in a fixed order."""
    found: list[set[Demand]] = [set() for _ in spec.entities]
    for feature in spec.features:
        for demand in demands_of(feature):
            found[feature.entity].add(demand)
    return tuple(tuple(sorted(demands)) for demands in found)


# Compute the sums that all features share.


NO_ANSWERS: Mapping[Demand, I64] = MappingProxyType({})


class Sums(msgspec.Struct, frozen=True):
    """
    Hold the sums over the windows of R rows.

    Attributes:
        count: Purchases; int64 [R, W].
        cents: Their amounts; int64 [R, W].
        fraud: Purchases known as fraud at the row's time; int64 [R, W].
        upto: Purchases of any age up to the row's own, it included; int64 [R].
        others: Other values of the windows that features need; int64 [R] each.
    """

    count: I64
    cents: I64
    fraud: I64
    upto: I64
    others: Mapping[Demand, I64] = NO_ANSWERS

    def part(self, rows: slice) -> Sums:
        """Select some of the rows."""
        return Sums(
            count=self.count[rows],
            cents=self.cents[rows],
            fraud=self.fraud[rows],
            upto=self.upto[rows],
            others={demand: one[rows] for demand, one in self.others.items()}
            if self.others
            else NO_ANSWERS,
        )


def window_sums(entries: Entries, rows: Rows, *, places: Places | None = None) -> Sums:
    """
    Sum each row's windows, as of the row's time and id.

    A purchase counts in a window w when t - delay - w < time <= t - delay; without a
    delay, at time t itself only ids up to the row's own count. It counts as fraud when
    its label was known at t.

    Args:
        entries: Events of the entities the rows name.
        rows: The rows and their windows.
        places: Their positions, if they are already known.

    Returns:
        Sums over the rows' windows.
    """
    places = places or find_places(entries, rows)
    begin, end, own = places.begin, places.end, places.own
    first = entries.starts[rows.entity]
    # Mostly: no label waits for its own, and there is no tile.
    if entries.tiles is None and np.logical_and.reduce(entries.purchase):
        count, upto = end - begin, own - first
    else:
        bought = running(entries.purchase)
        count, upto = bought[end] - bought[begin], bought[own] - bought[first]
    paid = running(entries.cents)
    frauds = entries.fraud_at
    fraud = frauds.searchsorted(end) - frauds.searchsorted(begin)
    if len(frauds):
        fraud -= _not_yet_known(entries, rows, places)
    if entries.tiles is not None:
        flagged = running(entries.tiles.flagged)
        fraud += flagged[end] - flagged[begin]
    return Sums(
        count=count.T, cents=(paid[end] - paid[begin]).T, fraud=fraud.T, upto=upto
    )


def _not_yet_known(entries: Entries, rows: Rows, places: Places) -> I64:
    """
    Count the frauds of each window whose label came after the row's time; [W, R].

    In the order of (entity, time, id), the rows whose window holds a fraud follow each
    other, and so do those among them that do not know it yet. So each fraud adds one
    where that run begins and subtracts it where the run ends.
    """
    label_time_us = entries.fraud_known_us
    unknown = label_time_us > rows.time_us.min(initial=_LARGEST)
    late, label_time_us = entries.fraud_at[unknown], label_time_us[unknown]
    hidden = np.zeros(places.begin.shape, np.int64)
    if not len(late):
        return hidden
    order = np.lexsort((places.own, places.row_key))
    # A label known after the last row is the same as none; this stays within the
    # entity.
    wait_us = np.minimum(label_time_us, rows.time_us.max() + 1) - entries.time_us[late]
    known = places.row_key[order].searchsorted(places.entry_key[late] + wait_us)
    first = places.end[order].searchsorted(late, "right")
    for window, begin in enumerate(places.begin):
        left = begin[order].searchsorted(late, "right")
        stop = np.maximum(first, np.minimum(known, left))
        steps = np.bincount(first, minlength=len(order) + 1)
        steps -= np.bincount(stop, minlength=len(order) + 1)
        hidden[window, order] = np.cumsum(steps)[:-1]
    return hidden


# Find the smallest, largest and newest values of windows.


_NOTHING = {True: np.iinfo(np.int64).min, False: np.iinfo(np.int64).max}


def extremes(values: I64, known: Bool, *, begin: I64, end: I64, largest: bool) -> I64:
    """
    Find the smallest or the largest known value of each window.

    Every window is covered by two runs of a power of two of entries. Runs are doubled
    from one length to the next, and each window is computed at its own length: with E
    entries, R windows and the longest of L entries that is E · log L + R steps.

    Args:
        values: int64 [E].
        known: True for the entries that count; bool [E].
        begin: First entry of each window; int64 [R].
        end: One past its last; int64 [R].
        largest: True to find the largest value, False the smallest.

    Returns:
        int64 [R]; for an empty window the smallest int64 if `largest`, else the largest
        int64.
    """
    fold = np.maximum if largest else np.minimum
    runs = np.where(known, values, _NOTHING[largest])
    found = np.full(begin.shape, _NOTHING[largest])
    length = end - begin
    # frexp(n) is (f, e) with n = f * 2^e and 0.5 <= f < 1; exact, and 0 for nothing.
    level = np.frexp(length.astype(np.float64))[1] - 1
    for at in range(int(level.max(initial=-1)) + 1):
        step = 1 << at
        if at:
            half = step >> 1
            runs = fold(runs[:-half], runs[half:])
        (rows,) = (level == at).nonzero()
        found[rows] = fold(runs[begin[rows]], runs[end[rows] - step])
    return found


def latest(known: Bool, *, begin: I64, end: I64, nth: int = 1) -> I64:
    """
    Find the newest known entry of each window, or the n-th newest.

    Args:
        known: True for the entries that count; bool [E].
        begin: First entry of each window; int64 [R].
        end: One past its last; int64 [R].
        nth: 1 for the newest.

    Returns:
        Its position; -1 where a window has none; int64 [R].
    """
    places = np.append(known.nonzero()[0], -1)  # the last for a window without any
    at = places[np.maximum(running(known)[end] - nth, -1)]
    return np.where(at >= begin, at, -1)


# Count the sessions of windows.


def sessions(time_us: I64, known: Bool, *, gap_us: int, begin: I64, end: I64) -> I64:
    """
    Count the known entries of each window with none up to a gap before, within it.

    Args:
        time_us: Times, ascending within a window; int64 [E].
        known: True for the entries that count; bool [E].
        gap_us: Longest time between two entries of one session.
        begin: First entry of each window; int64 [R].
        end: One past its last; int64 [R].

    Returns:
        int64 [R].
    """
    before = running(known)
    low, high = before[begin], before[end]
    times_us = time_us[known]
    # Sessions that begin at each known entry but a window's first, which begins one.
    starts = np.zeros(len(times_us) + 1, np.int64)
    np.cumsum(times_us[1:] - times_us[:-1] > gap_us, out=starts[2:])
    return np.where(low < high, 1 + starts[high] - starts[np.minimum(low + 1, high)], 0)


def compute_demands(
    entries: Entries,
    rows: Rows,
    places: Places,
    *,
    columns: Sequence[str],
    demands: Sequence[Demand],
) -> dict[Demand, I64]:
    """
    Compute demands for rows of one kind of entity, as of each row's time and id.

    Args:
        entries: Events of the entities the rows name.
        rows: The rows.
        places: Positions of rows and windows among the entries.
        columns: Names of `entries.columns`.
        demands: The demands; nothing else is computed.

    Returns:
        int64 [R] per demand; MISSING where a window holds no value for it.
    """
    windows = _Windows(entries, rows, places, columns=columns)
    return {demand: windows.compute(demand) for demand in demands}


def beyond_head(
    entries: Entries,
    rows: Rows,
    places: Places,
    *,
    columns: Sequence[str],
    demands: Sequence[Demand],
) -> Bool:
    """
    Find the rows whose n-th newest value may be one that tiles have forgotten.

    Tiles know the newest folded value alone. `compute_demands` answers MISSING for such
    a row.

    Args:
        entries: As for `compute_demands`, like all others.
        rows: The rows.
        places: Positions of rows and windows among the entries.
        columns: Names of `entries.columns`.
        demands: The demands; each is a `last`.

    Returns:
        bool [R].
    """
    windows = _Windows(entries, rows, places, columns=columns)
    found = np.zeros(len(rows.time_us), np.bool_)
    for demand in demands:
        found |= windows.is_beyond_head(demand)
    return found


_TIME_DIGITS = 3  # of a time in µs
_TILE_SUMS = {  # of values x and times t, in 128 bits
    "xx": FieldKind.SQUARES,
    "t": FieldKind.TIMES,
    "tt": FieldKind.TIME_SQUARES,
    "tx": FieldKind.TIME_PRODUCTS,
}


class _Windows:
    """Compute demands over the windows of some rows; share intermediate results."""

    def __init__(
        self, entries: Entries, rows: Rows, places: Places, *, columns: Sequence[str]
    ) -> None:
        self._entries = entries
        self._rows = rows
        self._places = places
        self._columns = columns
        self._numbers: dict[str, tuple[I64, Bool]] = {}
        self._running: dict[Demand, I64] = {}
        self._moments: dict[tuple[str, str], Covariance] = {}
        self._wide: dict[tuple[str, str], WideSum] = {}
        self._weighted: dict[Demand, tuple[F64, I64]] = {}
        self._previous: dict[str, I64] = {}
        self._newest: dict[tuple[str, int], I64] = {}
        self._order: I64 | slice | None = None
        self._earlier: I64 | None = None

    def compute(self, demand: Demand) -> I64:
        """Compute one demand; int64 [R]."""
        kind = demand.kind
        if kind in ("sum", "known"):
            return self._sum(demand)
        if kind == "distinct":
            return self._distinct(demand)
        if kind == "sketch":
            return self._sketch(demand)
        if kind in ("min", "max"):
            return self._extreme(demand)
        if kind == "variance":
            return self._variance(demand)
        if kind == "slope":
            return self._slope(demand)
        if kind in ("ewm", "weight"):
            return self._ewm(demand)
        if kind == "sessions":
            return self._sessions(demand)
        if kind in ("last", "time_since_last"):
            return self._latest(demand)
        raise AssertionError(f"no demand {kind!r}")  # of a new aggregate

    def _number(self, of: str) -> tuple[I64, Bool]:
        """Return the values of a source, and which of them are known."""
        if of not in self._numbers:
            known = self._entries.purchase.astype(np.bool_)
            if self._entries.tiles is not None:
                known &= ~self._entries.tiles.there
            if of == AMOUNT:
                values = self._entries.cents.astype(np.int64)
            else:
                values = self._entries.columns[self._columns.index(of)]
                known &= values != MISSING
            self._numbers[of] = values, known
        return self._numbers[of]

    def _column(self, of: str) -> int:
        """Return the column of a source; -1 for the amount."""
        return -1 if of == AMOUNT else self._columns.index(of)

    def _tile_number(self, kind: FieldKind, of: str) -> I64 | None:
        """Return a number of the tiles, of a source; None without any tile."""
        tiles = self._entries.tiles
        return tiles.numbers.get((kind, self._column(of))) if tiles else None

    def _sum(self, demand: Demand) -> I64:
        key = demand._replace(window=0)
        if key not in self._running and demand.of == AMOUNT:
            entries = self._entries
            parts = entries.purchase if demand.kind == "known" else entries.cents
            self._running[key] = running(parts)
        elif key not in self._running:
            values, known = self._number(demand.of)
            parts = known if demand.kind == "known" else np.where(known, values, 0)
            kind = FieldKind.KNOWN if demand.kind == "known" else FieldKind.SUM
            tiled = self._tile_number(kind, demand.of)
            self._running[key] = running(parts if tiled is None else parts + tiled)
        sums = self._running[key]
        begin = self._places.begin[demand.window]
        total: I64 = sums[self._places.end] - sums[begin]
        return total

    def _extreme(self, demand: Demand) -> I64:
        values, known = self._number(demand.of)
        largest = demand.kind == "max"
        kind = FieldKind.MAX if largest else FieldKind.MIN
        tiled = self._tile_number(kind, demand.of)
        if tiled is not None and self._entries.tiles is not None:
            there = self._entries.tiles.there
            values, known = np.where(there, tiled, values), known | there
        found = extremes(
            values,
            known,
            begin=self._places.begin[demand.window],
            end=self._places.end,
            largest=largest,
        )
        return (
            found
            if demand.kind == "max"
            else np.where(found == _LARGEST, MISSING, found)
        )

    def _moment(self, kind: Literal["xx", "tx", "tt"], demand: Demand) -> F64:
        """Return n² times a covariance of values x and times t, in µs; [R]."""
        begin, end = self._places.begin[demand.window], self._places.end
        if (
            self._entries.tiles is not None
            or int((end - begin).max(initial=0)) > MOST_ENTRIES
        ):
            return self._wide_moment(kind, demand)
        key = (kind, demand.of)
        if key not in self._moments:
            values, known = self._number(demand.of)
            x = digits(values, VALUE_DIGITS)
            if kind == "xx":
                self._moments[key] = Covariance(x, None, known)
            else:
                t = digits(self._entries.time_us, _TIME_DIGITS)
                self._moments[key] = Covariance(t, x if kind == "tx" else None, known)
        return self._moments[key].windows(begin=begin, end=end)

    def _wide_moment(self, kind: Literal["xx", "tx", "tt"], demand: Demand) -> F64:
        """Return the result of `_moment` of windows with tiles, or any number."""
        count = self._sum(demand._replace(kind="known")).tolist()
        first, second = (self._total(one, demand) for one in kind)
        both = self._total(kind, demand)
        terms = zip(count, both, first, second, strict=True)
        return np.array([float(n * ab - a * b) for n, ab, a, b in terms])

    def _total(self, kind: str, demand: Demand) -> list[int]:
        """Sum the values x, the times t, or products of these, of windows; [R]."""
        if kind == "x":
            total: list[int] = self._sum(demand._replace(kind="sum")).tolist()
            return total
        key = (kind, demand.of)
        if key not in self._wide:
            values, known = self._number(demand.of)
            numbers = {"x": np.where(known, values, 0)}
            numbers["t"] = np.where(known, self._entries.time_us, 0)
            parts = product_parts(*[numbers[one] for one in kind])
            tiles = self._entries.tiles
            if tiles is not None:
                name = (_TILE_SUMS[kind], self._column(demand.of))
                words = tiles.wide.get(name, ())
                parts += [(one, 32 * at) for at, one in enumerate(words)]
            self._wide[key] = WideSum(parts)
        begin = self._places.begin[demand.window]
        return self._wide[key].windows(begin=begin, end=self._places.end)

    def _variance(self, demand: Demand) -> I64:
        """Compute n · Σx² - (Σx)² of the values x of windows with two or more."""
        count = self._sum(demand._replace(kind="known"))
        return np.where(count < 2, MISSING, float_places(self._moment("xx", demand)))

    def _slope(self, demand: Demand) -> I64:
        """Compute the slope of the values over time, by least squares, per µs."""
        spread = self._moment("tt", demand)
        slope = self._moment("tx", demand) / np.where(spread == 0.0, 1.0, spread)
        return np.where(spread == 0.0, MISSING, float_places(slope))

    def _ewm(self, demand: Demand) -> I64:
        """Sum weighted values, or the weights alone."""
        key = demand._replace(kind="ewm")
        if key not in self._weighted:
            values, known = self._number(demand.of)
            self._weighted[key] = weighted_sums(
                values,
                self._entries.time_us,
                known,
                half_life_us=demand.parameter,
                begin=self._places.begin[demand.window],
                end=self._places.end,
            )
        total, weight = self._weighted[key]
        if demand.kind == "weight":
            return weight
        return np.where(weight == 0, MISSING, float_places(total))

    def _sessions(self, demand: Demand) -> I64:
        return sessions(
            self._entries.time_us,
            self._number(demand.of)[1],
            gap_us=demand.parameter,
            begin=self._places.begin[demand.window],
            end=self._places.end,
        )

    def _distinct(self, demand: Demand) -> I64:
        values, known = self._number(demand.of)
        if self._order is None:
            self._order = row_order(self._places.row_key, self._places.own)
        if demand.of not in self._previous:
            entity = entity_of(self._entries.starts)
            self._previous[demand.of] = previous(values, known, entity=entity)
        order = self._order
        return distinct(
            self._previous[demand.of],
            known,
            begin=self._places.begin[demand.window][order],
            end=self._places.end[order],
            order=order,
        )

    def _sketch(self, demand: Demand) -> I64:
        """Read the sketch of the different values of windows."""
        values, known = self._number(demand.of)
        tiles = self._entries.tiles
        if self._order is None:
            self._order = row_order(self._places.row_key, self._places.own)
        return sketch_windows(
            values,
            known,
            starts=self._entries.starts,
            begin=self._places.begin[demand.window],
            end=self._places.end,
            order=self._order,
            tiles=tiles.sketches.get(self._column(demand.of)) if tiles else None,
        )

    def _latest(self, demand: Demand) -> I64:
        """Read the newest entry before the row's own: its value, or its age in µs."""
        values, known, _ = self._with_newest_folded(demand.of)
        at = latest(
            known,
            begin=self._places.begin[demand.window],
            end=self._before_own(),
            nth=max(demand.parameter, 1),
        )
        if not len(values):
            return np.full(len(at), MISSING)
        if demand.kind == "last":
            found = values[at]
        else:
            found = self._rows.time_us - self._entries.time_us[at]
        return np.where(at < 0, MISSING, found)

    def is_beyond_head(self, demand: Demand) -> Bool:
        """Test whether an n-th newest value may be in a tile that does not name it."""
        _, known, folded = self._with_newest_folded(demand.of)
        begin, end = self._places.begin[demand.window], self._before_own()
        count, in_tile = running(known), running(folded)
        few = count[end] - count[begin] < demand.parameter
        beyond: Bool = few & (in_tile[end] > in_tile[begin])
        return beyond

    def _with_newest_folded(self, of: str) -> tuple[I64, Bool, Bool]:
        """Return values, which of them are known, and which of these are folded."""
        values, known = self._number(of)
        tiles = self._entries.tiles
        newest = tiles.newest.get(self._column(of)) if tiles else None
        if newest is None:
            return values, known, np.zeros(len(known), np.bool_)
        folded = newest != MISSING
        return np.where(folded, newest, values), known | folded, folded

    def _before_own(self) -> I64:
        """End the windows before the row's own entry, if that is among the entries."""
        if self._earlier is None:
            places, order = self._places, self._entries.order
            own = places.own
            at = np.maximum(own - 1, 0)
            if len(order):
                # It is not there if the value was full or the event too late.
                there = (own > 0) & (places.entry_key[at] == places.row_key)
                there &= order[at] == self._rows.order
                own = own - there
            self._earlier = np.minimum(places.end, own)
        return self._earlier

"""Choose the windows of a new product: their lengths, and the numbers they are of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import numpy.typing as npt

from tollgate.evaluation import roc_auc
from tollgate.features.spec.spec_document import MAX_ENTRIES, duration_us
from tollgate.features.windows.capacity import dropped_us
from tollgate.product.table_reading import as_text

if TYPE_CHECKING:
    import polars as pl

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]

# Counts, means and so on are of these; ids with many events have shorter windows too.
USUAL_WINDOWS = ("1d", "7d", "30d")
BUSY_WINDOWS = ("1h", "1d", "7d")


class EntityEvents(msgspec.Struct, frozen=True, eq=False):
    """
    Events of an entity, sorted by id and time.

    Attributes:
        order: Position of each event in the table; int64 [N].
        code: Number of its id; int64 [N].
        time_us: Its time; int64 [N].
    """

    order: I64
    code: I64
    time_us: I64


def entity_events(ids: pl.Series, times_us: I64) -> EntityEvents:
    """Sort the events of a column of ids."""
    ranks = as_text(ids).rank("dense").to_numpy()
    code = np.asarray(ranks, np.int64)
    order = np.lexsort((times_us, code))
    return EntityEvents(order=order, code=code[order], time_us=times_us[order])


def choose_windows(events: EntityEvents) -> tuple[str, ...]:
    """
    Choose the windows of an entity: 1h, 1d and 7d if an id has many events in a week.

    Returns:
        Three windows, the shortest first; 1d, 7d and 30d while every id has at most
        1,024 events in 7 days.
    """
    dropped = dropped_us(events.code, events.time_us, MAX_ENTRIES)
    is_busy = dropped > events.time_us - duration_us(BUSY_WINDOWS[-1])
    return BUSY_WINDOWS if is_busy.any() else USUAL_WINDOWS


# Select the numbers that an id's earlier rows make more informative.

MOST_NUMBERS = 4  # of an entity: each is a column of all its stored events
MOST_FEATURES = 36  # of numbers, over windows of all entities
_JUDGED_ROWS = 50_000  # more would take longer, and rarely change the choice
_BINS = 10
_SHRUNK = 10  # rows of the mean risk that each cell gets


class Number(msgspec.Struct, frozen=True, eq=False):
    """
    A number that windows may be of.

    Attributes:
        name: The field's name, or `amount`.
        values: NaN where a row has none; float64 [N].
        aggregates: The aggregates that suit it.
    """

    name: str
    values: F64
    aggregates: tuple[str, ...]


class NumberWindows(msgspec.Struct, frozen=True):
    """
    A number that windows of an entity are of.

    Attributes:
        name: The field's name, or `amount`.
        aggregates: Its aggregates, each over every window of the entity.
        gain: Estimate of the AUC that earlier rows of an id add to the number alone.
    """

    name: str
    aggregates: tuple[str, ...]
    gain: float


def number_aggregates(
    low: float, high: float, *, decimals: int | None
) -> tuple[str, ...]:
    """
    Return the aggregates that suit a number: mean, maximum and sum, or fewer.

    The sum needs numbers that are never negative and are not all shares of one. An
    exact number has no mean and no sum, because these would depend on the order of the
    events: it has the maximum and the last value.

    Args:
        low: The least number.
        high: The greatest one.
        decimals: Its decimals; None if it is exact.
    """
    if decimals is None:
        return "max", "last"
    is_share = high <= 1 and decimals > 0
    return ("mean", "max") if low < 0 or is_share else ("mean", "max", "sum")


def judged_rows(label: npt.NDArray[np.int8], train: Bool) -> I64:
    """
    Select the training rows to judge numbers on, by position.

    Of very many, as many of each outcome, drawn at random: an AUC depends on the ranks
    of rows of one outcome among those of the other, not on their shares.
    """
    chance = np.random.default_rng(0)
    parts = [np.flatnonzero(train & (label == outcome)) for outcome in (0, 1)]
    most = max(_JUDGED_ROWS // 2, _JUDGED_ROWS - min(len(one) for one in parts))
    return np.sort(np.concatenate([chance.permutation(one)[:most] for one in parts]))


def select_numbers(
    numbers: Sequence[Number],
    entities: Sequence[tuple[EntityEvents, tuple[str, ...]]],
    *,
    label: npt.NDArray[np.int8],
    time_us: I64,
    rows: I64,
) -> list[tuple[NumberWindows, ...]]:
    """
    Select the numbers of each entity whose earlier values add most to ranking outcomes.

    A model judges them later: this only bounds their number.

    Args:
        numbers: The numbers of N rows.
        entities: Events of each entity, and its windows.
        label: 1 for the outcome, else 0; int8 [N].
        time_us: Times of the rows, µs; int64 [N].
        rows: Positions of the training rows to judge on.

    Returns:
        The selected numbers of each entity, the most informative first: at most 4 of an
        entity, and 36 features in all.
    """
    found: list[list[NumberWindows]] = [[] for _ in entities]
    ranked: list[tuple[float, int, Number]] = []
    first_half = time_us[rows] < np.median(time_us[rows])
    for at, (events, windows) in enumerate(entities):
        begin = window_starts(events, duration_us(windows[-1]))
        for number in numbers:
            earlier = earlier_means(number.values, events, begin=begin)
            gain = history_gain(
                number.values[rows], earlier[rows], label[rows], first_half=first_half
            )
            ranked.append((gain, at, number))
    left = MOST_FEATURES
    for gain, at, number in sorted(ranked, key=lambda one: -one[0]):
        needed = len(number.aggregates) * len(entities[at][1])
        if len(found[at]) < MOST_NUMBERS and needed <= left:
            left -= needed
            found[at].append(NumberWindows(number.name, number.aggregates, gain))
    return [tuple(one) for one in found]


def history_gain(
    own: F64, earlier: F64, label: npt.NDArray[np.int8], *, first_half: Bool
) -> float:
    """
    Estimate how much better rows are ranked with an id's earlier numbers than without.

    Rows are divided by tenths of their own number, and by tenths of the mean of the
    earlier ones. The result is the AUC of the shares of outcomes in these hundred
    cells, less that in ten cells of the own number alone; each half of the rows in time
    is ranked by the shares in the other half.

    Args:
        own: The rows' numbers; NaN where there is none; [R].
        earlier: Mean of the earlier numbers of the row's id; NaN where there is none.
        label: 0 or 1; [R].
        first_half: True for the earlier half of the rows; bool [R].
    """
    alone, before = _tenths(own), _tenths(earlier)
    return _cell_auc(alone * (_BINS + 1) + before, label, first_half) - _cell_auc(
        alone, label, first_half
    )


def _tenths(values: F64) -> I64:
    """Number the tenth of each value, from 0; one more where there is none; [N]."""
    known = values[~np.isnan(values)]
    shares = np.arange(1, _BINS) / _BINS
    limits = np.unique(np.quantile(known, shares)) if len(known) else known
    tenths = limits.searchsorted(values, "right")
    return np.asarray(np.where(np.isnan(values), _BINS, tenths), np.int64)


def _cell_auc(cell: I64, label: npt.NDArray[np.int8], first_half: Bool) -> float:
    """
    Compute the AUC of ranking each half of rows by the other half's shares in cells.
    """
    found = []
    for known in (first_half, ~first_half):
        if not known.any() or len(np.unique(label[~known])) < 2:
            return 0.5
        rows = np.bincount(cell[known], minlength=cell.max() + 1)
        hits = np.bincount(cell[known], label[known], minlength=cell.max() + 1)
        share = (hits + _SHRUNK * label[known].mean()) / (rows + _SHRUNK)
        found.append(roc_auc(label[~known], share[cell[~known]]))
    return float(np.mean(found))


def window_starts(events: EntityEvents, window_us: int) -> I64:
    """
    Return the position of the first event in each event's window, to the second; [N].
    """
    second = 1_000_000  # of µs: with ids by the million, µs would not fit 64 bits
    time_s = (events.time_us - events.time_us.min(initial=0)) // second
    window_s = window_us // second
    span = int(time_s.max(initial=0)) + window_s + 1
    key = events.code * span + time_s
    return np.asarray(key.searchsorted(key - window_s, "right"), np.int64)


def earlier_means(values: F64, events: EntityEvents, *, begin: I64) -> F64:
    """
    Compute the mean of the earlier numbers of each row's id within its window.

    Returns:
        In the order of the table; NaN where there is none; float64 [N].
    """
    own = values[events.order]
    known = ~np.isnan(own)
    middle = own[known].mean() if known.any() else 0.0  # keeps the sums small
    total = np.append(0.0, np.cumsum(np.where(known, own - middle, 0.0)))
    count = np.append(0, np.cumsum(known))
    at = np.arange(len(own))
    found = np.full(len(own), np.nan)
    many = count[at] - count[begin]
    has = many > 0
    found[has] = middle + (total[at] - total[begin])[has] / many[has]
    result = np.empty(len(own))
    result[events.order] = found
    return result

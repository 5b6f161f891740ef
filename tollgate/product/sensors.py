"""Choose the sensors among the columns of a table of readings."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import numpy.typing as npt

from tollgate.detection.reading_features import MOST_SENSORS
from tollgate.features.spec.spec_document import MAX_DECIMALS, largest_number
from tollgate.product.column_names import reserved_reason
from tollgate.product.files import bounds
from tollgate.product.reading_rows import missing_notes
from tollgate.product.table_reading import as_numbers

if TYPE_CHECKING:
    import polars as pl

I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]

_MOSTLY_TEXT = 0.5  # share of texts among the cells, from which it is no sensor
# A number this many times as large as 99 of 100 others is a mistake, not a measurement.
_ABSURD, _USUAL = 1_000.0, 0.99
_NAMED = 3  # outliers that a note names
_COMPARED = 20_000  # rows that columns are compared on, if there are many columns
_STEADY = 0.99  # a column with one value in more rows says less than the others
# Columns of public data sets that say whether a reading is anomalous.
_LABEL = re.compile(
    r"(?i)(is_?|has_?)?(anomal(y|ies|ous)|abnormal|label|class|target|fault(s|y)?|"
    r"fail(ure|ures|ed)?|broken|outliers?|change_?points?|attack|alarm|y|"
    r"machine_status)"
)
_MOST_CLASSES = 10


class Sensors(msgspec.Struct, frozen=True, eq=False):
    """
    The sensors of a table.

    Attributes:
        values: Column -> its numbers; Float64 with nulls, one for each usable row.
        ranges: Column -> least and greatest valid number.
        excluded: Column -> reason why it is no sensor.
        notes: Remarks for the user.
    """

    values: dict[str, pl.Series]
    ranges: dict[str, tuple[float, float]]
    excluded: dict[str, str]
    notes: tuple[str, ...]


def choose_sensors(
    table: pl.DataFrame,
    columns: Sequence[str],
    *,
    rows: I64,
    pairs: tuple[I64, I64],
    keep: Collection[str],
) -> Sensors:
    """
    Choose the columns of numbers that vary.

    Cells with texts, infinite numbers and numbers far beyond all others count as
    missing. Of more than 16 columns, those that repeat each other least are taken.

    Args:
        table: The table.
        columns: Its columns without another role.
        rows: Positions of the usable rows.
        pairs: Places among these of a reading, and of the next one of its machine.
        keep: Columns that are sensors although they look like labels or counters.
    """
    values: dict[str, pl.Series] = {}
    ranges, excluded, notes = {}, {}, []
    for name in columns:
        column = table[name].gather(rows)
        found = reserved_reason(name) or _numbers(column)
        if not isinstance(found, str) and name not in keep:
            found = _label_reason(found) or _counter_reason(found, pairs) or found
        if isinstance(found, str):
            excluded[name] = found
            continue
        sane, text = _without_outliers(found, rows)
        if sane.drop_nulls().n_unique() < 2:
            excluded[name] = "has the same number in every row"
            continue
        values[name] = sane
        ranges[name] = _range(sane)
        notes += missing_notes(column, found, rows=rows)
        notes += text
    if len(values) > MOST_SENSORS:
        taken = _different(values, first=[name for name in values if name in keep])
        for name in values.keys() - set(taken):
            excluded[name] = "repeats other columns most"
        notes.append(
            f"{MOST_SENSORS} of {len(values)} columns of numbers are sensors, as many "
            "as the store holds of a machine: those that repeat each other least; "
            "`keep` chooses others, `drop` leaves some out"
        )
        values = {name: one for name, one in values.items() if name in taken}
        ranges = {name: ranges[name] for name in values}
    order = [name for name in columns if name in excluded]
    return Sensors(
        values=values,
        ranges=ranges,
        excluded={name: excluded[name] for name in order},
        notes=tuple(notes),
    )


def _numbers(column: pl.Series) -> pl.Series | str:
    """Return the numbers of a column, or the reason why it is no sensor."""
    import polars as pl

    if column.dtype.is_temporal():
        return "holds times"
    if column.dtype.is_nested() or column.dtype in (pl.Binary, pl.Object):
        return f"holds {column.dtype}, not single values"
    found = as_numbers(column)
    known = found.values.drop_nulls()
    if found.texts > _MOSTLY_TEXT * (len(known) + found.texts):
        return f"holds texts, such as {found.example!r:.40}"
    if not len(known):
        return "holds no numbers"
    if known.n_unique() == 1:
        return "has the same number in every row"
    return found.values


def _label_reason(values: pl.Series) -> str | None:
    """Return the reason why a column looks like a label, if it does."""
    plain = re.sub(r"[\W_]+", "_", values.name).strip("_")
    if not _LABEL.fullmatch(plain):
        return None
    known = values.drop_nulls().unique().sort()
    if len(known) > _MOST_CLASSES or not (known == known.round()).all():
        return None
    shown = ", ".join(f"{one:g}" for one in known.to_list())
    return (
        f"looks like a label, not a sensor: it is {shown}; choose it with `keep` to "
        "make it a sensor"
    )


def _counter_reason(values: pl.Series, pairs: tuple[I64, I64]) -> str | None:
    """Return the reason why a column counts or numbers the rows, if it does."""
    numbers = values.to_numpy()
    steps = numbers[pairs[1]] - numbers[pairs[0]]
    steps = steps[np.isfinite(steps)]
    if values.n_unique() <= _MOST_CLASSES or not len(steps):
        return None
    for never, word in (((steps >= 0).all(), "rises"), ((steps <= 0).all(), "falls")):
        if never:
            return (
                f"only {word}, like a counter: each reading is unlike the past; choose "
                "it with `keep` to make it a sensor"
            )
    return None


def _without_outliers(values: pl.Series, rows: I64) -> tuple[pl.Series, list[str]]:
    """
    Replace absurd numbers by nulls, and name some of them.

    Returns:
        The numbers, and a note if there are any.
    """
    import polars as pl

    size = np.abs(values.to_numpy())
    known = size[np.isfinite(size) & (size > 0)]
    usual = float(np.quantile(known, _USUAL, method="lower"))
    absurd = size > _ABSURD * usual  # False for a NaN
    if not absurd.any():
        return values, []
    places = np.flatnonzero(absurd)[:_NAMED].tolist()
    shown = ", ".join(f"{values[at]:g} in row {rows[at] + 1}" for at in places)
    note = (
        f"{values.name}: {int(absurd.sum()):,} numbers are over "
        f"{_ABSURD:,.0f} times as large as 99 of 100 others: they count as missing "
        f"({shown})"
    )
    return values.set(pl.Series(absurd), None), [note]


def _range(values: pl.Series) -> tuple[float, float]:
    """
    Return the valid range: ten times what was seen, on both sides of 0.

    Unlike an amount, a temperature that was never below 0 may be so in winter.
    """
    seen = float(np.abs(values.drop_nulls().to_numpy()).max())
    decimals = MAX_DECIMALS if 10 * seen <= largest_number(MAX_DECIMALS) else 0
    _, most = bounds(0.0, seen, decimals=decimals)
    return -most, most


def _different(values: dict[str, pl.Series], *, first: Sequence[str]) -> list[str]:
    """
    Choose 16 columns: one after the other that is least correlated with those before.

    Columns that hardly vary come last.

    Args:
        values: Columns of numbers.
        first: Columns to begin with.
    """
    names = list(values)
    count = len(next(iter(values.values())))
    rows = np.unique(np.linspace(0, count - 1, min(count, _COMPARED)).astype(np.int64))
    ranks = np.column_stack([_ranks(values[name].gather(rows)) for name in names])
    related = np.abs(np.nan_to_num(ranks.T @ ranks))
    steady = np.array([_is_steady(values[name]) for name in names])
    taken = [names.index(name) for name in first][:MOST_SENSORS]
    while len(taken) < MOST_SENSORS:
        most = related[:, taken].max(axis=1) if taken else related.sum(axis=1) * -1
        most = most + 1_000.0 * steady
        most[taken] = np.inf
        taken.append(int(np.argmin(most)))
    return [names[at] for at in taken]


def _ranks(values: pl.Series) -> F64:
    """Return the ranks of numbers, centred, of length 1; a missing one is average."""
    ranks = values.rank().to_numpy().astype(np.float64)
    ranks = np.nan_to_num(ranks - np.nanmean(ranks))
    length = float(np.linalg.norm(ranks))
    return ranks / length if length else ranks


def _is_steady(values: pl.Series) -> bool:
    """Return whether nearly all rows have one value, or none."""
    counts = values.drop_nulls().value_counts()["count"].to_numpy()
    commonest = int(counts.max(initial=0))
    return commonest + values.null_count() > _STEADY * len(values)

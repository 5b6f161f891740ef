"""Classify each column of a table: number, category, or left out with a reason."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from tollgate.features.spec.spec_document import MAX_SCALED, MAX_TEXT_BYTES
from tollgate.product.table_reading import (
    as_numbers,
    as_text,
    as_times_us,
    decimals_of,
    has_placed_zeros,
    too_long,
)

if TYPE_CHECKING:
    import polars as pl

Kind = Literal["number", "category"]

MOST_WORDS = 250  # of a category; rarer words count as unseen
_MOSTLY = 0.9  # share of cells that must be numbers, or times, to call a column so
_FEW_ROWS = 20  # with fewer, it means nothing that no two values are equal
_COVERED = 0.5  # share of rows that the commonest words must have
_TIME = "is a time: a model that saw it would learn the calendar"
_LOOKS_LIKE_ID = re.compile(r"(?i)(^|[_\W])(id|uuid|guid|key|nr|no|number|index)$")


class Column(msgspec.Struct, frozen=True):
    """
    A column that a model can take.

    Attributes:
        source: Name in the table.
        kind: `number` or `category`.
        values: Float64 or String; null where there is none.
        decimals: Of a number; None for exact floats.
        low, high: Of a number: the least and the greatest one seen.
        words: Of a category, in the order of their codes.
        notes: Remarks for the user.
    """

    source: str
    kind: Kind
    values: pl.Series
    decimals: int | None = 0
    low: float = 0.0
    high: float = 0.0
    words: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def missing(self) -> int:
        """Count the rows without a value."""
        return self.values.null_count()

    def take(self, rows: npt.NDArray[np.int64]) -> Column:
        """Select rows by position; facts about the whole column do not change."""
        return msgspec.structs.replace(self, values=self.values.gather(rows))


class ExcludedColumn(msgspec.Struct, frozen=True):
    """
    A column that no model gets, with the reason.

    Attributes:
        source: Name in the table.
        reason: Why it is left out.
        by_values: True if its values are the reason; a model that was trained on it
            gets it.
    """

    source: str
    reason: str
    by_values: bool = False


def classify_column(column: pl.Series) -> Column | ExcludedColumn:
    """Classify one column by its values."""
    import polars as pl

    source, kind = column.name, column.dtype
    if kind.is_temporal():
        return ExcludedColumn(source, _TIME)
    if kind == pl.Boolean:
        return _number(source, column.cast(pl.Float64), notes=())
    if kind.is_numeric():
        return _number_column(column)
    if kind not in (pl.String, pl.Categorical, pl.Enum, pl.Null):
        return ExcludedColumn(source, f"holds {kind}, neither numbers nor words")
    text = column.cast(pl.String)
    filled = as_text(text).drop_nulls()
    if not len(filled):
        return ExcludedColumn(source, "is empty")
    found = as_numbers(text)
    numbers = len(found.values) - found.values.null_count()
    if numbers < _MOSTLY * (numbers + found.texts):
        times = as_times_us(filled)
        if times.null_count() <= (1 - _MOSTLY) * len(filled):
            return ExcludedColumn(source, _TIME)
    if has_placed_zeros(filled):
        return _category(text, "codes such as {}")
    if numbers and numbers >= _MOSTLY * (numbers + found.texts):
        return _number_column(text)
    mixed = ""
    if numbers and filled.n_unique() > MOST_WORDS:
        share = numbers / (numbers + found.texts)
        mixed = f"mixes numbers ({share:.0%}) and texts such as {found.example!r:.40}"
    return ExcludedColumn(source, mixed) if mixed else _category(text)


def _number_column(column: pl.Series) -> Column | ExcludedColumn:
    """Read a column of numbers, some of which may be written as texts."""

    found = as_numbers(column)
    notes = []
    if found.texts:
        notes.append(
            f"{found.texts:,} texts such as {found.example!r:.40} count as missing"
        )
    if found.infinite:
        notes.append(f"{found.infinite:,} infinite numbers count as missing")
    return _number(column.name, found.values, notes=tuple(notes))


def _number(
    source: str, values: pl.Series, *, notes: tuple[str, ...]
) -> Column | ExcludedColumn:
    known = values.drop_nulls()
    if not len(known):
        return ExcludedColumn(source, "is empty")
    distinct = known.n_unique()
    low, high = float(known.min()), float(known.max())  # type: ignore[arg-type]
    if max(abs(low), abs(high)) > MAX_SCALED:
        return ExcludedColumn(
            source, f"goes beyond {MAX_SCALED:.0e}, up to {high:g}: an id?"
        )
    if distinct == 1 and not values.null_count():
        return ExcludedColumn(source, f"is {low:g} in every row")
    decimals = decimals_of(known)
    if decimals == 0 and _numbers_rows(source, distinct, low, high, len(values)):
        return ExcludedColumn(source, "numbers the rows: an id")
    return Column(
        source=source,
        kind="number",
        values=values,
        decimals=decimals,
        low=low,
        high=high,
        notes=notes,
    )


def _numbers_rows(
    source: str, distinct: int, low: float, high: float, rows: int
) -> bool:
    """Return whether whole numbers only number the rows."""
    if distinct < rows or rows < _FEW_ROWS:
        return False
    in_a_row = high - low + 1 == rows
    return in_a_row or _LOOKS_LIKE_ID.search(source) is not None


def long_words_note(rows: int) -> str:
    """Describe what happens to rows with words that are too long for a request."""
    return (
        f"{rows:,} rows have words over {MAX_TEXT_BYTES} bytes, which are refused when "
        "served: these rows are left out; shorten the words, or drop the column"
    )


def _category(column: pl.Series, note: str = "") -> Column | ExcludedColumn:
    """Read a column of words; `note` describes them, with a place for an example."""
    words = as_text(column)
    counts = words.drop_nulls().value_counts(sort=True, name="rows")
    source, distinct, rows = column.name, len(counts), int(counts["rows"].sum())
    far = int(too_long(column).sum())
    if far > len(column) / 2:
        problem = f"{far:,} of {len(column):,} rows have texts over {MAX_TEXT_BYTES} "
        return ExcludedColumn(source, f"{problem}bytes, which no request may have")
    if distinct == 0:
        return ExcludedColumn(source, "is empty")
    first = str(counts[source][0])
    if distinct == 1 and not words.null_count():
        return ExcludedColumn(source, f"is {first!r:.40} in every row")
    if rows >= _FEW_ROWS and distinct > rows / 2:
        problem = f"has {distinct:,} different texts in {rows:,} rows: ids or free text"
        return ExcludedColumn(source, problem)
    notes = (note.format(repr(first)),) if note else ()
    if far:
        notes = (*notes, long_words_note(far))
    if distinct > MOST_WORDS:
        common = counts.head(MOST_WORDS)
        covered = int(common["rows"].sum()) / rows
        if covered < _COVERED:
            problem = f"has {distinct:,} different texts, none of them common"
            return ExcludedColumn(source, problem)
        coverage = (
            f"the commonest {MOST_WORDS} of {distinct:,} words, {covered:.1%} of rows"
        )
        counts, notes = common, (*notes, coverage)
    return Column(
        source=source,
        kind="category",
        values=words,
        words=tuple(sorted(counts[source].to_list())),
        notes=notes,
    )

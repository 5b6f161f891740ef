"""Read the values of a table's column as numbers, times or texts."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from tollgate.features.wellformed import MAX_DECIMALS, MAX_SCALED, MAX_TEXT_BYTES
from tollgate.schema import MIN_EVENT_TIME_US

if TYPE_CHECKING:
    import polars as pl

# Texts for a missing value in a column of numbers.
NO_NUMBER = ("na", "n/a", "#n/a", "nan", "null", "none", "nil", "missing", "?", "-")
_TIME_FORMATS = (
    "%Y-%m-%d",
    "%Y-%m-%d %H:%M:%S%.f",
    "%Y-%m-%dT%H:%M:%S%.f",
    "%Y-%m-%d %H:%M",
    "%+",  # with Z or an offset from UTC; rows may have different ones
    "%d.%m.%Y",
    "%d.%m.%Y %H:%M:%S",
    "%Y/%m/%d",
    "%d/%m/%Y",
    "%m/%d/%Y",
)
_PLACED_ZERO = re.compile(r"0\d").pattern
_MOST_TIME_US = 7_258_118_400_000_000  # 2200-01-01


class Numbers(msgspec.Struct, frozen=True):
    """
    A column as numbers.

    Attributes:
        values: Float64; null where there is none, or none that is finite.
        texts: Number of cells with a text that is neither a number nor a missing value.
        example: One of these texts.
        infinite: Number of infinite values.
    """

    values: pl.Series
    texts: int = 0
    example: str = ""
    infinite: int = 0


def as_text(column: pl.Series) -> pl.Series:
    """
    Convert a column to texts; null for an empty one or one too long for a request.
    """
    import polars as pl

    text: pl.Series = column.cast(pl.String, strict=False)
    good = (text.str.strip_chars() != "") & (text.str.len_bytes() <= MAX_TEXT_BYTES)
    text = text.set(~good.fill_null(False), None)
    return text


def too_long(column: pl.Series) -> pl.Series:
    """
    Return which cells are texts that are too long for a request, which is refused.
    """
    import polars as pl

    text = column.cast(pl.String, strict=False)
    found: pl.Series = (text.str.len_bytes() > MAX_TEXT_BYTES).fill_null(False)
    return found


def are_ids(column: pl.Series) -> bool:
    """Return whether a column identifies each row: texts or numbers, all different."""
    import polars as pl

    if not (column.dtype.is_integer() or column.dtype in (pl.String, pl.Categorical)):
        return False
    text = as_text(column)
    return text.null_count() == 0 and text.n_unique() == len(text)


def as_numbers(column: pl.Series) -> Numbers:
    """Read a column as numbers, and count the cells that are none."""
    import polars as pl

    texts, example = 0, ""
    if column.dtype in (pl.Categorical, pl.Enum):
        column = column.cast(pl.String)
    if column.dtype == pl.String:
        text = column.str.strip_chars()
        found = text.cast(pl.Float64, strict=False)
        blank = (text == "") | text.str.to_lowercase().is_in(NO_NUMBER)
        lost = found.is_null() & ~blank.fill_null(True)
        texts = int(lost.sum())
        example = str(text.filter(lost)[0]) if texts else ""
    else:
        found = column.cast(pl.Float64, strict=False)
    infinite = int(found.is_infinite().sum())
    values = found.set(~found.is_finite().fill_null(False), None)
    return Numbers(values, texts, example, infinite)


def has_placed_zeros(column: pl.Series) -> bool:
    """Return whether texts begin with a zero that a number would lose: 007, 01234."""
    import polars as pl

    if column.dtype != pl.String:
        return False
    return bool(column.str.contains(f"^{_PLACED_ZERO}").any())


def decimals_of(values: pl.Series) -> int | None:
    """
    Find how many decimals numbers have, so that rounding changes none.

    Args:
        values: Float64, with or without nulls.

    Returns:
        0 to 4; None where a number would come back as another float64.
    """
    numbers = values.drop_nulls().to_numpy()
    largest = float(np.abs(numbers).max(initial=0.0))
    for decimals in range(MAX_DECIMALS + 1):
        unit = 10.0**decimals
        if largest * unit > MAX_SCALED:
            return None
        if (np.rint(numbers * unit) / unit == numbers).all():
            return decimals
    return None


def as_times_us(column: pl.Series) -> pl.Series:
    """
    Read a column as times.

    It may have datetimes, dates, texts of one format, or numbers: seconds, milliseconds
    or microseconds since 1970, whichever unit puts them between 2000 and 2200.

    Returns:
        µs since 1970, UTC; Int64, null where it is no time in that span.
    """
    import polars as pl

    if column.dtype in (pl.Categorical, pl.Enum):
        column = column.cast(pl.String)
    if isinstance(column.dtype, pl.Datetime):
        if column.dtype.time_zone:
            column = column.dt.convert_time_zone("UTC").dt.replace_time_zone(None)
        found = column.cast(pl.Datetime("us"))
    elif column.dtype == pl.Date:
        found = column.cast(pl.Datetime("us"))
    elif column.dtype == pl.String:
        found = _written_times(column)
    elif column.dtype.is_numeric():
        return _counted_times(column.cast(pl.Float64))
    else:
        return pl.Series(column.name, [None] * len(column), dtype=pl.Int64)
    return _within_span(found.cast(pl.Int64))


def _written_times(column: pl.Series) -> pl.Series:
    """Parse texts in the format that reads most of them."""
    import polars as pl

    text = column.str.strip_chars()
    best = _counted_times(text.cast(pl.Float64, strict=False))
    for form in _TIME_FORMATS:
        read = text.str.to_datetime(form, strict=False, time_unit="us").cast(pl.Int64)
        if read.null_count() < best.null_count():
            best = read
    return best


def _counted_times(number: pl.Series) -> pl.Series:
    import polars as pl

    middle = number.median()
    if not isinstance(middle, float):
        return pl.Series(number.name, [None] * len(number), dtype=pl.Int64)
    for scale in (1_000_000, 1_000, 1):
        if MIN_EVENT_TIME_US <= middle * scale < _MOST_TIME_US:
            whole = (number * scale).set(~number.is_finite().fill_null(False), None)
            return _within_span(whole.cast(pl.Int64, strict=False))
    return pl.Series(number.name, [None] * len(number), dtype=pl.Int64)


def _within_span(whole: pl.Series) -> pl.Series:
    good = (whole >= MIN_EVENT_TIME_US) & (whole < _MOST_TIME_US)
    return whole.set(~good.fill_null(False), None)

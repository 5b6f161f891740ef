"""
Convert single columns to the values that features are computed from, or refuse a cell.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tollgate.errors import InputError
from tollgate.features.fields import field_rule, hash_words, scaled
from tollgate.features.spec.spec_definition import Field
from tollgate.features.spec.spec_document import LABEL, LABEL_TIME, MAX_TEXT_BYTES
from tollgate.schema import (
    CENTS_TOLERANCE,
    MAX_CENTS,
    MAX_ID_BYTES,
    MIN_EVENT_TIME_US,
)

if TYPE_CHECKING:
    import polars as pl

I64 = npt.NDArray[np.int64]
I8 = npt.NDArray[np.int8]

UNLABELLED = -1
MAX_EVENT_TIME_US = 7_258_118_400_000_000  # 2200-01-01T00:00:00Z
_SPAN = "is not within 2000-01-01 … 2200-01-01; numbers are µs since 1970"


def ids(column: pl.Series, *, source: str) -> pl.Series:
    """
    Convert ids to text.

    Raises:
        InputError: An id is not text, empty or too long.
    """
    import polars as pl

    text = _cast(column, pl.String(), source=source)
    length = text.str.len_bytes()
    wrong = (length == 0) | (length > MAX_ID_BYTES)
    refuse(wrong, text, f"is not 1 to {MAX_ID_BYTES} bytes long", source)
    return text


def times_us(column: pl.Series, *, source: str) -> I64:
    """
    Convert datetimes, ISO texts or integer microseconds to µs since the epoch.

    Nulls become 0.

    Raises:
        InputError: A value is none of these, or out of the range of a purchase.
    """
    import polars as pl

    if column.dtype == pl.String:
        parsed = column.cast(pl.Int64, strict=False)
        if parsed.null_count() == len(column):
            # If no text looks like a time, polars fails; all are refused below.
            with contextlib.suppress(pl.exceptions.ComputeError):
                parsed = column.str.to_datetime(time_unit="us", strict=False)
    elif isinstance(column.dtype, pl.Datetime):
        if column.dtype.time_zone:
            column = column.dt.convert_time_zone("UTC")
        parsed = column.dt.replace_time_zone(None).cast(pl.Datetime("us"), strict=False)
    elif column.dtype.is_integer() or column.dtype == pl.Null:
        parsed = column
    else:
        raise InputError(source, f"{column.dtype} is not a time", where=column.name)
    whole = parsed.cast(pl.Int64, strict=False)
    refuse(whole.is_null() & column.is_not_null(), column, "is not a time", source)
    outside = (whole < MIN_EVENT_TIME_US) | (whole >= MAX_EVENT_TIME_US)
    refuse(outside.fill_null(False), column, _SPAN, source)
    return np.asarray(whole.fill_null(0).to_numpy(), np.int64)


def cents(column: pl.Series, *, source: str) -> I64:
    """
    Convert amounts to cents.

    Raises:
        InputError: An amount is no number, not whole cents, or out of range.
    """
    import polars as pl

    amount = _cast(column, pl.Float64(), source=source)
    refuse(amount.is_null(), column, "is not a number", source)
    with np.errstate(invalid="ignore", over="ignore"):
        exact = amount.to_numpy() * 100.0
        whole = np.rint(exact)
        sound = np.abs(exact - whole) <= CENTS_TOLERANCE * np.maximum(1.0, whole)
        sound &= (whole >= 0) & (whole <= MAX_CENTS)
    rule = f"is not whole cents within 0 … {MAX_CENTS / 100:.2f}"
    refuse(pl.Series(~sound), column, rule, source)
    return np.asarray(whole, np.int64)


def labels(frame: pl.DataFrame, *, source: str) -> I8:
    """
    Read the labels: 1 fraud, 0 legitimate, -1 not known.

    Raises:
        InputError: A label is something else.
    """
    import polars as pl

    if LABEL not in frame.columns:
        return np.full(len(frame), UNLABELLED, np.int8)
    label = _cast(frame[LABEL], pl.Float64(), source=source).fill_null(UNLABELLED)
    wrong = ~label.is_in([0.0, 1.0]) & frame[LABEL].is_not_null()
    refuse(wrong, frame[LABEL], "is neither 0 nor 1", source)
    return np.asarray(label.to_numpy(), np.int8)


def label_times_us(
    frame: pl.DataFrame, *, label: I8, event_time_us: I64, source: str
) -> I64:
    """
    Read the times at which labels became known; a missing one is the purchase's own.

    Raises:
        InputError: A value is not a time, or is null though its label is known.
    """
    import polars as pl

    if LABEL_TIME not in frame.columns:
        return event_time_us
    column, known = frame[LABEL_TIME], label != UNLABELLED
    missing = column.is_null() & pl.Series(known)
    refuse(missing, column, "is null, but the row has a label", source)
    return np.where(known, times_us(column, source=source), event_time_us)


def arrival_times_us(column: pl.Series, *, event_time_us: I64, source: str) -> I64:
    """
    Read the times at which purchases arrived; a missing one is the purchase's own time.

    Raises:
        InputError: A value is not a time, or is before the purchase.
    """
    import polars as pl

    missing = column.is_null().to_numpy()
    arrival_us = np.where(missing, event_time_us, times_us(column, source=source))
    early = pl.Series(arrival_us < event_time_us)
    refuse(early, column, "is before the event_time of its row", source)
    return arrival_us


def field(column: pl.Series, declared: Field, *, source: str) -> I64:
    """
    Convert a declared field to integers; a null or a NaN means that it was not sent.

    Raises:
        InputError: A value is no number or out of its range, or a text is too long.
    """
    import polars as pl

    if declared.type == "category":
        text = _cast(column, pl.String(), source=source).fill_null("")
        long = text.str.len_bytes() > MAX_TEXT_BYTES
        refuse(long, text, f"is over {MAX_TEXT_BYTES} bytes long", source)
        words = text.unique()
        hashes = hash_words([word.encode() for word in words.to_list()])
        replaced = text.replace_strict(words, pl.Series(hashes), return_dtype=pl.Int64)
        return np.asarray(replaced.to_numpy(), np.int64)
    number = _cast(column, pl.Float64(), source=source)
    refuse(number.is_null() & column.is_not_null(), column, "is not a number", source)
    whole, wrong = scaled(number.fill_null(np.nan).to_numpy(), declared)
    refuse(pl.Series(wrong), column, field_rule(declared), source)
    return whole


def numbers(column: pl.Series, *, most: float, source: str) -> npt.NDArray[np.float64]:
    """
    Convert a column to numbers; NaN for a null or a NaN.

    Raises:
        InputError: A value is no number, or its magnitude is beyond `most`.
    """
    import polars as pl

    number = _cast(column, pl.Float64(), source=source)
    blank = column.is_null()
    if column.dtype == pl.String:
        blank |= column.fill_null("") == ""
    refuse(number.is_null() & ~blank, column, "is not a number", source)
    outside = (number.abs() > most).fill_null(False) & number.is_not_nan().fill_null(
        False
    )
    refuse(outside, column, f"is not within ±{most:g}", source)
    return np.asarray(number.fill_null(np.nan).to_numpy(), np.float64)


def _cast(column: pl.Series, dtype: pl.DataType, *, source: str) -> pl.Series:
    """Change a column's type; a value that does not fit becomes null or fails."""
    import polars as pl

    try:
        converted: pl.Series = column.cast(dtype, strict=False)
    except pl.exceptions.PolarsError as exc:
        problem = f"{column.dtype} is not {dtype}: {str(exc).splitlines()[0]}"
        raise InputError(source, problem, where=column.name) from exc
    return converted


def refuse(wrong: pl.Series, column: pl.Series, rule: str, source: str) -> None:
    """Refuse the first cell that is marked wrong, with column, row and value."""
    if wrong.any():
        row = int(wrong.arg_max() or 0)
        raise InputError(
            source, f"row {row}: {_shown(column, row)}{rule}", where=column.name
        )


def _shown(column: pl.Series, row: int) -> str:
    import polars as pl

    if column.is_null()[row]:
        return ""
    if isinstance(column.dtype, pl.Datetime):
        # Python has no year after 9999, and polars fails where it would need one.
        moment = int(column.to_physical()[row])
        return f"{np.datetime64(moment, column.dtype.time_unit)} "
    return f"{column[row]!r:.80} "

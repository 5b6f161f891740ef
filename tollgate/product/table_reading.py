"""Read a table in an unknown format, and note the assumptions that were made."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from tollgate.errors import ArgumentError, InputError
from tollgate.features.spec.feature_spec import FeatureSpec
from tollgate.features.spec.spec_document import (
    MAX_DECIMALS,
    MAX_SCALED,
    MAX_TEXT_BYTES,
)
from tollgate.history.table import csv_separator
from tollgate.product.choices import ProductChoices
from tollgate.product.column_names import OWN_COLUMNS
from tollgate.product.label import label_texts
from tollgate.product.splitting import DAY_US
from tollgate.schema import EVENT_TIME, MIN_EVENT_TIME_US, TRANSACTION_ID

if TYPE_CHECKING:
    import polars as pl

_SUFFIXES = (".parquet", ".csv", ".tsv", ".jsonl", ".ndjson")


class LoadedTable(msgspec.Struct, frozen=True):
    """
    A table as it was read.

    Attributes:
        frame: Its rows; all columns of a CSV are text.
        notes: Remarks for the user on how it was read.
    """

    frame: pl.DataFrame
    notes: tuple[str, ...] = ()


def read_table(path: Path, *, may_be_empty: bool = False) -> LoadedTable:
    """
    Read Parquet, CSV (comma, semicolon, tab or bar) or JSON lines.

    Args:
        path: The file.
        may_be_empty: Accept a table that has columns and no rows.

    Raises:
        InputError: It is missing, has another format, has no rows, is not UTF-8 or
            names a column twice.
    """
    import polars as pl

    if path.suffix not in _SUFFIXES:
        raise InputError(path, f"is none of {', '.join(_SUFFIXES)}")
    if not path.is_file():
        raise InputError(path, "is no file that is there")
    try:
        if path.suffix == ".parquet":
            table = LoadedTable(pl.read_parquet(path))
        elif path.suffix in (".csv", ".tsv"):
            table = _read_csv(path)
        else:
            table = LoadedTable(pl.read_ndjson(path, infer_schema_length=None))
    except OSError as exc:
        raise InputError(path, f"cannot be read: {exc.strerror or exc}") from exc
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as exc:
        raise InputError(path, f"cannot be read: {str(exc).splitlines()[0]}") from exc
    if not len(table.frame) and not may_be_empty:
        raise InputError(path, "holds no rows")
    return table


def _read_csv(path: Path) -> LoadedTable:
    import polars as pl

    content = path.read_bytes().removeprefix(b"\xef\xbb\xbf")
    try:
        head = content.decode().split("\n", 1)[0].strip("\r")
    except UnicodeDecodeError as exc:
        line = content.count(b"\n", 0, exc.start) + 1
        problem = (
            f"line {line} is not UTF-8 (byte {content[exc.start]:#04x}); if it is "
            "Latin-1: iconv -f latin1 -t utf8"
        )
        raise InputError(path, problem) from exc
    if not head:
        raise InputError(path, "holds no rows")
    separator = csv_separator(head)
    read = functools.partial(pl.read_csv, separator=separator, infer_schema=False)
    names = read(content, has_header=False, n_rows=1).row(0)
    if _are_numbers(names):
        problem = (
            f"line 1 has no names of columns, but numbers such as {names[0]}: write "
            "a first line with a name for each column"
        )
        raise InputError(path, problem)
    for name in names:
        if names.count(name) > 1:
            raise InputError(path, "two columns have this name", where=str(name))
    notes = () if separator == "," else (f"its columns are parted by {separator!r}",)
    return LoadedTable(read(content), notes)


def _are_numbers(names: Sequence[object]) -> bool:
    """Return whether the cells of a line are numbers: it has no names."""
    try:
        return all(np.isfinite(float(str(name))) for name in names)
    except ValueError:
        return False


# Read the values of a table's column as numbers, times or texts.

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
    "%d.%m.%Y %H:%M",
    "%Y/%m/%d",
    "%Y/%m/%d %H:%M:%S%.f",
    "%d/%m/%Y",
    "%m/%d/%Y",
    "%d/%m/%Y %H:%M:%S%.f",
    "%m/%d/%Y %H:%M:%S%.f",
    "%d/%m/%Y %H:%M",
    "%m/%d/%Y %H:%M",
    "%d/%m/%Y %I:%M:%S %p",
    "%m/%d/%Y %I:%M:%S %p",
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
        blank: Of a column of texts, which cells say that there is no value.
    """

    values: pl.Series
    texts: int = 0
    example: str = ""
    infinite: int = 0
    blank: pl.Series | None = None


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

    texts, example, blank = 0, "", None
    if column.dtype in (pl.Categorical, pl.Enum):
        column = column.cast(pl.String)
    if column.dtype == pl.String:
        text = column.str.strip_chars()
        found = text.cast(pl.Float64, strict=False)
        blank = (text == "") | text.str.to_lowercase().is_in(NO_NUMBER)
        blank = blank.fill_null(True)
        lost = found.is_null() & ~blank
        texts = int(lost.sum())
        example = str(text.filter(lost)[0]) if texts else ""
    else:
        found = column.cast(pl.Float64, strict=False)
    infinite = int(found.is_infinite().sum())
    values = found.set(~found.is_finite().fill_null(False), None)
    return Numbers(values, texts, example, infinite, blank)


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
    """
    Parse texts in the format that reads most of them.

    If day and month can be either way round, it is the one with the shorter time.
    """
    import polars as pl

    text = column.str.strip_chars()
    best = _counted_times(text.cast(pl.Float64, strict=False))
    for form in _TIME_FORMATS:
        read = text.str.to_datetime(form, strict=False, time_unit="us").cast(pl.Int64)
        if (read.null_count(), _span(read)) < (best.null_count(), _span(best)):
            best = read
    return best


def _span(times: pl.Series) -> int:
    """Return the time from the first to the last; 0 without any."""
    known = times.drop_nulls().to_numpy()
    return int(np.ptp(known)) if len(known) else 0


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


# Select the usable rows of a table, and recognise columns by their names.

MOST_ROWS = 500_000  # enough for a first model, in a minute


def select_rows(
    frame: pl.DataFrame, choices: ProductChoices, notes: list[str]
) -> pl.DataFrame:
    """Select the rows that have an outcome and all other required values."""
    parts = {
        "label": (choices.label,),
        "time": (choices.time,),
        "amount": (choices.amount,),
        "id": (choices.id,),
        "entity": choices.entities,
        "drop": choices.drop,
        "sensitive": choices.sensitive,
        "keep": choices.keep,
    }
    for role, names in parts.items():
        for name in names:
            if name is not None:
                require_column(frame, name, role=role)
    is_usable = label_texts(frame[choices.label]).is_not_null()
    for name in (choices.id, *choices.entities):
        if name is not None:
            is_usable &= as_text(frame[name]).is_not_null()
    if choices.time is not None:
        times = as_times_us(frame[choices.time])
        if times.null_count() == len(times):
            example = frame[choices.time].drop_nulls().head(1).to_list()
            shown = f", such as {example[0]!r:.40}" if example else ""
            raise ArgumentError("time", f"{choices.time!r} holds no times{shown}")
        is_usable &= times.is_not_null()
        is_usable &= with_known_outcome(times, choices.label_delay_us, notes)
    if choices.amount is not None:
        is_usable &= as_numbers(frame[choices.amount]).values.is_not_null()
    missing = len(frame) - int(is_usable.sum())
    if missing:
        notes.append(
            f"{missing:,} of {len(frame):,} rows lack an outcome, an id, a time or an "
            "amount, and are left out"
        )
    usable = frame.filter(is_usable)
    if choices.id is not None and usable[choices.id].n_unique() < len(usable):
        raise ArgumentError("id", f"{choices.id!r} has the same id in two rows")
    return _limit_rows(usable, choices, notes)


def with_known_outcome(
    times_us: pl.Series, label_delay_us: int, notes: list[str] | None = None
) -> pl.Series:
    """
    Select the rows old enough that their outcome is known at the table's last time.

    Args:
        times_us: Times of all rows, µs; null where there is none.
        label_delay_us: Time from a row until its outcome is known, µs.
        notes: Gets a line if rows are too young.
    """
    last = times_us.max()
    old = (times_us <= (last or 0) - label_delay_us).fill_null(False)  # type: ignore[operator]
    young = int((~old & times_us.is_not_null()).sum())
    if label_delay_us and young and notes is not None:
        notes.append(
            f"{young:,} rows of the table's last {label_delay_us / DAY_US:g} days are "
            "left out: their outcome was not known yet"
        )
    return old if label_delay_us else times_us.is_not_null()


def find_column(frame: pl.DataFrame, name: str, spec: FeatureSpec) -> str | None:
    """Find the table's column for one of ours; an alias takes precedence."""
    known = (*spec.aliases.get(name, ()), name)
    return next((one for one in known if one in frame.columns), None)


def require_column(frame: pl.DataFrame, name: str, *, role: str) -> None:
    """
    Check that a column exists and holds single values; one to leave out may hold any.
    """
    import polars as pl

    if name not in frame.columns:
        shown = ", ".join(frame.columns)[:200]
        raise ArgumentError(role, f"the table has no column {name!r}; it has {shown}")
    kind = frame[name].dtype
    if role != "drop" and (kind.is_nested() or kind in (pl.Binary, pl.Object)):
        raise ArgumentError(role, f"{name!r} holds {kind}, not single values")
    if role == "sensitive" and name in OWN_COLUMNS:
        raise ArgumentError(role, f"{name!r} is every product's own: rename it")


def assign_named_roles(
    frame: pl.DataFrame, choices: ProductChoices, notes: list[str]
) -> ProductChoices:
    """Give a column with the name of one of ours that role, if its values allow it."""
    taken = {
        choices.label,
        choices.amount,
        *choices.entities,
        *choices.drop,
        *choices.sensitive,
    }
    free = [name for name in frame.columns if name not in taken]
    if choices.id is None and TRANSACTION_ID in free and are_ids(frame[TRANSACTION_ID]):
        choices = msgspec.structs.replace(choices, id=TRANSACTION_ID)
        notes.append(f"{TRANSACTION_ID} is taken for the id of each row")
    if choices.time is None and EVENT_TIME in free:
        times = as_times_us(frame[EVENT_TIME])
        if times.null_count() == frame[EVENT_TIME].null_count() < len(frame):
            choices = msgspec.structs.replace(choices, time=EVENT_TIME)
            notes.append(f"{EVENT_TIME} is taken for the time of each row")
    return choices


def _limit_rows(
    frame: pl.DataFrame, choices: ProductChoices, notes: list[str]
) -> pl.DataFrame:
    """Select the newest rows of very many, or random rows, in their order."""
    if len(frame) <= MOST_ROWS:
        return frame
    if choices.time is not None:
        order = as_times_us(frame[choices.time]).arg_sort()
        rows = np.sort(order.to_numpy()[-MOST_ROWS:])
        selection = "the newest"
    else:
        chosen = np.random.default_rng(0).choice(len(frame), MOST_ROWS, replace=False)
        rows, selection = np.sort(chosen), "drawn by chance"
    notes.append(f"{MOST_ROWS:,} of {len(frame):,} rows are used, {selection}")
    return frame[rows]

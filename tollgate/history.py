"""
Read a history of purchases from a file, and refuse one that is not sound.

A history is a Parquet, CSV or JSON-lines file with one purchase a row. Columns may
carry other names (`aliases` of features.yaml). Money becomes integer cents here,
times become microseconds since the epoch, UTC.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import numpy.typing as npt

from tollgate.errors import InputError
from tollgate.features.spec import LABEL, LABEL_TIME, FeatureSpec
from tollgate.schema import (
    AMOUNT,
    CENTS_TOLERANCE,
    EVENT_TIME,
    MAX_CENTS,
    MAX_ID_BYTES,
    TRANSACTION_ID,
)

if TYPE_CHECKING:
    import polars as pl

I64 = npt.NDArray[np.int64]
UNLABELLED = -1


class History(msgspec.Struct, frozen=True):
    """
    N purchases as columns.

    Attributes:
        source: File it came from.
        transaction_id: Unique ids.
        entity_id: Ids by entity key (`customer_id`, …).
        event_time_us: int64 [N].
        cents: int64 [N].
        label: 1 fraud, 0 legitimate, -1 not known; int8 [N].
        label_time_us: When the label became known; int64 [N].
    """

    source: str
    transaction_id: list[bytes]
    entity_id: dict[str, list[bytes]]
    event_time_us: I64
    cents: I64
    label: npt.NDArray[np.int8]
    label_time_us: I64

    def __len__(self) -> int:
        return len(self.transaction_id)

    def entity_codes(self, key: str) -> I64:
        """Number the distinct ids of an entity; int64 [N], dense from zero."""
        number: dict[bytes, int] = {}
        codes = [number.setdefault(one, len(number)) for one in self.entity_id[key]]
        return np.array(codes, np.int64)

    def take(self, rows: I64 | slice) -> History:
        """Pick rows, by position."""
        index = np.arange(len(self))[rows]
        return History(
            source=self.source,
            transaction_id=[self.transaction_id[row] for row in index],
            entity_id={
                key: [column[row] for row in index]
                for key, column in self.entity_id.items()
            },
            event_time_us=self.event_time_us[index],
            cents=self.cents[index],
            label=self.label[index],
            label_time_us=self.label_time_us[index],
        )


def read_table(path: Path) -> pl.DataFrame:
    """
    Read a Parquet, CSV or JSON-lines file; ids of a CSV stay text.

    Raises:
        InputError: The file is not there, not readable, or of another kind.
    """
    import polars as pl

    readers = {
        ".parquet": pl.read_parquet,
        ".csv": lambda file: pl.read_csv(file, infer_schema=False),
        ".jsonl": pl.read_ndjson,
        ".ndjson": pl.read_ndjson,
    }
    reader = readers.get(path.suffix)
    if reader is None:
        raise InputError(path, f"is none of {', '.join(readers)}")
    try:
        return reader(path)
    except OSError as exc:
        raise InputError(path, f"cannot be read: {exc.strerror or exc}") from exc
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as exc:
        raise InputError(path, f"cannot be read: {str(exc).splitlines()[0]}") from exc


def read_history(path: Path, *, spec: FeatureSpec) -> History:
    """
    Read a history and check every value.

    Raises:
        InputError: A column is missing, a value is null or out of range, an id
            appears twice; the message names file, column, row and value.
    """
    return history_of(read_table(path), spec=spec, source=str(path))


def history_of(frame: pl.DataFrame, *, spec: FeatureSpec, source: str) -> History:
    """Turn a table into a history; like `read_history`."""
    import polars as pl

    frame = _canonical(frame, spec)
    for name in spec.columns:
        if name not in frame.columns:
            raise InputError(
                source,
                f"column missing; the file has {', '.join(frame.columns)}",
                where=name,
            )
        _refuse(frame[name].is_null(), frame[name], "is null", source)
    keys = [entity.key for entity in spec.entities]
    for name in (TRANSACTION_ID, *keys):
        text = _cast(frame[name], pl.String(), source=source)
        length = text.str.len_bytes()
        wrong = (length == 0) | (length > MAX_ID_BYTES)
        _refuse(wrong, text, f"is not 1 to {MAX_ID_BYTES} bytes long", source)
        frame = frame.with_columns(text)
    ids = frame[TRANSACTION_ID]
    if ids.n_unique() < len(ids):
        _refuse(~ids.is_first_distinct(), ids, "appears twice", source)
    time_us = times_us(frame[EVENT_TIME], source=source)
    return History(
        source=source,
        transaction_id=[one.encode() for one in ids.to_list()],
        entity_id={key: [one.encode() for one in frame[key].to_list()] for key in keys},
        event_time_us=time_us,
        cents=_cents(frame[AMOUNT], source),
        label=_labels(frame, source),
        label_time_us=(
            times_us(frame[LABEL_TIME], source=source)
            if LABEL_TIME in frame.columns
            else time_us
        ),
    )


def rename_aliases(frame: pl.DataFrame, spec: FeatureSpec) -> pl.DataFrame:
    """Give columns that carry a declared alias their own name."""
    return _canonical(frame, spec)


def _canonical(frame: pl.DataFrame, spec: FeatureSpec) -> pl.DataFrame:
    names = {}
    for name, aliases in spec.aliases.items():
        present = [alias for alias in aliases if alias in frame.columns]
        if present and name not in frame.columns:
            names[present[0]] = name
    return frame.rename(names)


def times_us(column: pl.Series, *, source: str) -> I64:
    """
    Turn datetimes, ISO texts or integer microseconds into µs since the epoch.

    Raises:
        InputError: A value is none of these.
    """
    import polars as pl

    if column.dtype == pl.String:
        parsed = column.cast(pl.Int64, strict=False)
        if parsed.null_count() == len(column):
            parsed = column.str.to_datetime(time_unit="us", strict=False)
    elif isinstance(column.dtype, pl.Datetime):
        if column.dtype.time_zone:
            column = column.dt.convert_time_zone("UTC")
        parsed = column.dt.replace_time_zone(None).cast(pl.Datetime("us"))
    elif column.dtype.is_integer():
        parsed = column
    else:
        raise InputError(source, f"{column.dtype} is not a time", where=column.name)
    _refuse(parsed.is_null(), column, "is not a time", source)
    return np.asarray(parsed.cast(pl.Int64).to_numpy(), np.int64)


def _cents(column: pl.Series, source: str) -> I64:
    import polars as pl

    amount = _cast(column, pl.Float64(), source=source)
    _refuse(amount.is_null(), column, "is not a number", source)
    with np.errstate(invalid="ignore", over="ignore"):
        exact = amount.to_numpy() * 100.0
        cents = np.rint(exact)
        sound = np.abs(exact - cents) <= CENTS_TOLERANCE * np.maximum(1.0, cents)
        sound &= (cents >= 0) & (cents <= MAX_CENTS)
    rule = f"is not whole cents within 0 … {MAX_CENTS / 100:.2f}"
    _refuse(pl.Series(~sound), column, rule, source)
    return np.asarray(cents, np.int64)


def _labels(frame: pl.DataFrame, source: str) -> npt.NDArray[np.int8]:
    import polars as pl

    if LABEL not in frame.columns:
        return np.full(len(frame), UNLABELLED, np.int8)
    label = _cast(frame[LABEL], pl.Float64(), source=source).fill_null(UNLABELLED)
    wrong = ~label.is_in([0.0, 1.0]) & frame[LABEL].is_not_null()
    _refuse(wrong, frame[LABEL], "is neither 0 nor 1", source)
    return np.asarray(label.to_numpy(), np.int8)


def _cast(column: pl.Series, dtype: pl.DataType, *, source: str) -> pl.Series:
    """Change a column's type; what does not convert becomes null, or is refused."""
    import polars as pl

    try:
        converted: pl.Series = column.cast(dtype, strict=False)
    except pl.exceptions.PolarsError as exc:
        problem = f"{column.dtype} is not {dtype}: {str(exc).splitlines()[0]}"
        raise InputError(source, problem, where=column.name) from exc
    return converted


def _refuse(wrong: pl.Series, column: pl.Series, rule: str, source: str) -> None:
    if wrong.any():
        row = int(wrong.arg_max() or 0)
        value = column[row]
        shown = "" if value is None else f"{value!r:.80} "
        raise InputError(source, f"row {row}: {shown}{rule}", where=column.name)

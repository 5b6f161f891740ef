"""Read the rows that a model is proven on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl

from converters.model import F32
from tollgate.errors import InputError

_READERS: dict[str, Callable[[Path], pl.DataFrame]] = {
    ".parquet": pl.read_parquet,
    ".csv": pl.read_csv,
    ".jsonl": pl.read_ndjson,
    ".ndjson": pl.read_ndjson,
}


def read_sample(path: Path, *, names: tuple[str, ...] | None) -> F32:
    """
    Read feature rows from Parquet, CSV or JSON lines.

    Args:
        path: The file.
        names: Columns to take, in order; None takes every column of numbers.

    Returns:
        float32 [N, F].

    Raises:
        InputError: It cannot be read, is empty or lacks a column.
    """
    reader = _READERS.get(path.suffix)
    if reader is None:
        raise InputError(path, f"{path.suffix or 'no suffix'}: one of {list(_READERS)}")
    try:
        frame = reader(path)
    except OSError as error:
        raise InputError(path, f"cannot be read: {error.strerror or error}") from error
    except pl.exceptions.PolarsError as error:
        raise InputError(path, str(error).splitlines()[0]) from error
    if names is None:
        names = tuple(one for one, kind in frame.schema.items() if kind.is_numeric())
    missing = [name for name in names if name not in frame.columns]
    if missing:
        raise InputError(
            path, f"lacks the column; it has {frame.columns}"[:300], where=missing[0]
        )
    text = [name for name in names if not frame.schema[name].is_numeric()]
    if text:
        raise InputError(
            path, f"is {frame.schema[text[0]]}, not a number", where=text[0]
        )
    if not len(frame) or not names:
        raise InputError(path, "holds no rows of numbers")
    with np.errstate(over="ignore"):
        rows = frame.select(names).to_numpy().astype(np.float32)
    return np.ascontiguousarray(rows)

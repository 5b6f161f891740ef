"""Read a table from Parquet, CSV or JSON lines."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import polars as pl

from tollgate.errors import InputError


def _read_csv(path: Path) -> pl.DataFrame:
    # Guessing types from the first rows would make a later text an error of the parser;
    # as text, each value can be reported with its row.
    return pl.read_csv(path, infer_schema=False)


def _read_lines(path: Path) -> pl.DataFrame:
    return pl.read_ndjson(path, infer_schema_length=None)


_READERS: dict[str, Callable[[Path], pl.DataFrame]] = {
    ".parquet": pl.read_parquet,
    ".csv": _read_csv,
    ".jsonl": _read_lines,
    ".ndjson": _read_lines,
}


def read_table(path: Path) -> pl.DataFrame:
    """
    Read a table; every value of a CSV is a text.

    Raises:
        InputError: The file has another format, or cannot be read.
    """
    reader = _READERS.get(path.suffix)
    if reader is None:
        raise InputError(path, f"{path.suffix or 'no suffix'}: one of {list(_READERS)}")
    try:
        return reader(path)
    except OSError as error:
        raise InputError(path, f"cannot be read: {error.strerror or error}") from error
    except pl.exceptions.PolarsError as error:
        raise InputError(path, str(error).splitlines()[0]) from error

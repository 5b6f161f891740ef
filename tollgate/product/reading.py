"""Read a table in an unknown format, and note the assumptions that were made."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from tollgate.errors import InputError

if TYPE_CHECKING:
    import polars as pl

_SEPARATORS = (",", ";", "\t", "|")
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


def read_table(path: Path) -> LoadedTable:
    """
    Read Parquet, CSV (comma, semicolon, tab or bar) or JSON lines.

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
    if not len(table.frame):
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
    separator = max(_SEPARATORS, key=head.count)
    read = functools.partial(pl.read_csv, separator=separator, infer_schema=False)
    names = read(content, has_header=False, n_rows=1).row(0)
    for name in names:
        if names.count(name) > 1:
            raise InputError(path, "two columns have this name", where=str(name))
    notes = () if separator == "," else (f"its columns are parted by {separator!r}",)
    return LoadedTable(read(content), notes)

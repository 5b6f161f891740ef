"""Read tables of the journal without verification."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import polars as pl

from tollgate.audit.links import Link, path_of
from tollgate.errors import JournalError


def read_table(
    folder: Path, link: Link, *, columns: Sequence[str] | None = None
) -> pl.DataFrame:
    """
    Read the records of a link.

    Raises:
        JournalError: The file cannot be read.
    """
    path = path_of(folder, link.table)
    try:
        return pl.read_parquet(path, columns=None if columns is None else list(columns))
    except OSError as exc:
        raise JournalError(path, f"cannot be read: {exc.strerror or exc}") from exc
    except pl.exceptions.PolarsError as exc:
        problem = f"cannot be read: {str(exc).splitlines()[0]}"
        raise JournalError(path, problem) from exc

"""Read the table of a history, whatever its format and its column names."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tollgate.errors import InputError
from tollgate.features.spec.feature_spec import FeatureSpec

if TYPE_CHECKING:
    import polars as pl

_SEPARATORS = (",", ";", "\t", "|")


def read_table(path: Path) -> pl.DataFrame:
    """
    Read a Parquet, CSV or JSON-lines file; ids of a CSV stay text.

    Raises:
        InputError: The file does not exist, is not readable, or is of another kind.
    """
    import polars as pl

    # The first lines do not show the type of every column of JSON lines.
    read_lines = partial(pl.read_ndjson, infer_schema_length=None)
    readers: dict[str, Callable[[Path], pl.DataFrame]] = {
        ".parquet": pl.read_parquet,
        ".csv": _read_csv,
        ".jsonl": read_lines,
        ".ndjson": read_lines,
    }
    reader = readers.get(path.suffix)
    if reader is None:
        raise InputError(path, f"is none of {', '.join(readers)}")
    if not path.exists():
        raise InputError(path, "cannot be read: No such file or directory")
    if path.is_dir():
        raise InputError(path, "is a directory; name a file")
    try:
        return reader(path)
    except OSError as exc:
        raise InputError(path, f"cannot be read: {exc.strerror or exc}") from exc
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as exc:
        raise InputError(path, f"cannot be read: {str(exc).splitlines()[0]}") from exc


def csv_separator(head: str) -> str:
    """Return what parts the columns of a CSV: comma, semicolon, tab or bar."""
    return max(_SEPARATORS, key=head.count)


def _read_csv(path: Path) -> pl.DataFrame:
    import polars as pl

    with open(path, "rb") as file:
        head = file.readline().decode(errors="replace")
    return pl.read_csv(path, infer_schema=False, separator=csv_separator(head))


def rename_aliases(frame: pl.DataFrame, spec: FeatureSpec) -> pl.DataFrame:
    """Rename columns that have a declared alias to their own name."""
    names = {}
    for name, aliases in spec.aliases.items():
        present = [alias for alias in aliases if alias in frame.columns]
        if present and name not in frame.columns:
            names[present[0]] = name
    return frame.rename(names)

"""
Read a history of purchases from a file, and refuse one that is not valid.

A history is a Parquet, CSV or JSON-lines file with one purchase per row. Columns may
have other names (`aliases` of features.yaml). This package converts money to integer
cents and times to microseconds since the epoch, UTC.
"""

from tollgate.history.purchases import (
    History,
    concatenate,
    history_of,
    read_history,
    reading_ids,
)
from tollgate.history.table import read_table, rename_aliases
from tollgate.history.table_rows import find_table, read_table_rows

__all__ = [
    "History",
    "concatenate",
    "find_table",
    "history_of",
    "read_history",
    "read_table",
    "read_table_rows",
    "reading_ids",
    "rename_aliases",
]

"""
Read a history of purchases from a file, and refuse one that is not sound.

A history is a Parquet, CSV or JSON-lines file with one purchase a row. Columns may
carry other names (`aliases` of features.yaml). Money becomes integer cents here,
times become microseconds since the epoch, UTC.
"""

from tollgate.history.purchases import History, history_of, read_history
from tollgate.history.table import read_table, rename_aliases
from tollgate.history.table_rows import find_table, read_table_rows

__all__ = [
    "History",
    "find_table",
    "history_of",
    "read_history",
    "read_table",
    "read_table_rows",
    "rename_aliases",
]

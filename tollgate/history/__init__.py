"""
Read a history of purchases from a file, and refuse one that is not sound.

A history is a Parquet, CSV or JSON-lines file with one purchase a row. Columns may
carry other names (`aliases` of features.yaml). Money becomes integer cents here,
times become microseconds since the epoch, UTC.
"""

from tollgate.history.purchases import History, history_of, read_history
from tollgate.history.table import read_table, rename_aliases

__all__ = ["History", "history_of", "read_history", "read_table", "rename_aliases"]

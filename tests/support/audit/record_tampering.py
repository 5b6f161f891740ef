"""Tamper with a journal's records; functions return the finding to expect."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from tollgate.audit.chain.links import Link, decode_link, link_paths

Tampering = Callable[[Path, random.Random], str]  # returns what must be named


def links_of(folder: Path) -> list[Link]:
    """Read the links of a valid journal."""
    return [decode_link(path, path.read_bytes()) for path in link_paths(folder)]


def chosen_table(folder: Path, chance: random.Random) -> tuple[Link, pl.DataFrame]:
    """Choose one of the tables."""
    link = chance.choice([one for one in links_of(folder) if one.table])
    return link, pl.read_parquet(folder / link.table)


def record(
    link: Link, table: pl.DataFrame, row: int, *, place: int | None = None
) -> str:
    """Name a record as `verify` does."""
    if link.kind != "segment":
        return f"{link.table}: row {row if place is None else place}:"
    writer, number = table["writer"][row], table["sequence"][row]
    return f"{link.table}: record {number} of writer {writer}:"


def change_a_cell(folder: Path, chance: random.Random) -> str:
    """Change one value of one record, and rewrite the file."""
    link, table = chosen_table(folder, chance)
    row = chance.randrange(len(table))
    free = [name for name in table.columns if name not in ("writer", "sequence")]
    name = chance.choice(free)
    column = table[name]
    table = table.with_columns(column.scatter(row, other(column, row, chance)))
    table.write_parquet(folder / link.table)
    return record(link, table, row)


def other(column: pl.Series, row: int, chance: random.Random) -> Any:
    """Return another value of the column's type; for numbers one bit is flipped."""
    value, kind = column[row], column.dtype
    if value is None:
        return pl.Series([1]).cast(kind)[0] if kind.is_numeric() else "x"
    if kind == pl.String:
        return value + "x" if chance.random() < 0.5 or not value else value[:-1]
    if kind == pl.Boolean:
        return not value
    if isinstance(kind, pl.Datetime):
        return pl.Series([column.to_physical()[row] ^ 1]).cast(kind)[0]
    raw = np.array([value], column.to_numpy().dtype)
    bits = raw.view(np.uint8)
    bits[chance.randrange(len(bits))] ^= 1 << chance.randrange(8)
    return raw[0].item()


def erase_a_cell(folder: Path, chance: random.Random) -> str:
    """Remove one value of one record."""
    link, table = chosen_table(folder, chance)
    row = chance.randrange(len(table))
    free = [name for name in table.columns if name not in ("writer", "sequence")]
    filled = [name for name in free if table[name][row] is not None]
    column = table[chance.choice(filled)]
    table.with_columns(column.scatter(row, None)).write_parquet(folder / link.table)
    return record(link, table, row)


def delete_a_record(folder: Path, chance: random.Random) -> str:
    """Remove one record."""
    link, table = chosen_table(folder, chance)
    row = chance.randrange(len(table))
    pl.concat([table[:row], table[row + 1 :]]).write_parquet(folder / link.table)
    return record(link, table, row)


def double_a_record(folder: Path, chance: random.Random) -> str:
    """Insert one record twice."""
    link, table = chosen_table(folder, chance)
    row = chance.randrange(len(table))
    pl.concat([table[: row + 1], table[row:]]).write_parquet(folder / link.table)
    return record(link, table, row, place=row + 1)


def add_a_record(folder: Path, chance: random.Random) -> str:
    """Append a record that never existed."""
    link, table = chosen_table(folder, chance)
    new = table[-1:].with_columns(pl.col("sequence") + 1_000_000)
    whole = pl.concat([table, new])
    whole.write_parquet(folder / link.table)
    return record(link, whole, len(table))


def swap_records(folder: Path, chance: random.Random) -> str:
    """Exchange two records."""
    segments = [one for one in links_of(folder) if one.kind == "segment"]
    link = chance.choice(segments)
    table = pl.read_parquet(folder / link.table)
    order = list(range(len(table)))
    first, second = chance.sample(order, 2)
    order[first], order[second] = second, first
    table[order].write_parquet(folder / link.table)
    return record(link, table, first)


def move_a_record(folder: Path, chance: random.Random) -> str:
    """Move a record from one segment to another."""
    segments = [one for one in links_of(folder) if one.kind == "segment"]
    source, target = chance.sample(segments, 2)
    table = pl.read_parquet(folder / source.table)
    row = chance.randrange(len(table))
    grown = pl.concat([pl.read_parquet(folder / target.table), table[row : row + 1]])
    pl.concat([table[:row], table[row + 1 :]]).write_parquet(folder / source.table)
    grown.write_parquet(folder / target.table)
    return record(source, table, row)


def rename_a_column(folder: Path, chance: random.Random) -> str:
    """Rename a column."""
    link, table = chosen_table(folder, chance)
    name = chance.choice(table.columns)
    table.rename({name: f"{name}_"}).write_parquet(folder / link.table)
    return f"{link.table}: its columns"


OF_RECORDS: tuple[Tampering, ...] = (
    change_a_cell,
    erase_a_cell,
    delete_a_record,
    double_a_record,
    add_a_record,
    swap_records,
    move_a_record,
    rename_a_column,
)

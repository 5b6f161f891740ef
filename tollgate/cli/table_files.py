"""Read table files named by `--table`, and load them into the store."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer

from tollgate.cli import console
from tollgate.errors import InputError

if TYPE_CHECKING:
    from tollgate.audit.review.list_responses import ItemEvents
    from tollgate.backfill.tables import TableLoadCounts
    from tollgate.features.feature_tables import TableRows
    from tollgate.features.spec.feature_spec import FeatureSpec, Table
    from tollgate.store.redis.redis_store import RedisStore

TableFiles = Annotated[
    list[str] | None,
    typer.Option(
        "--table",
        metavar="NAME=FILE",
        help="File of a table in features.yaml: Parquet, CSV or JSON "
        "lines; may be repeated.",
    ),
]


def read_tables(
    given: list[str] | None, spec: FeatureSpec
) -> list[tuple[Table, TableRows]]:
    """
    Read the files of `--table` options.

    Raises:
        InputError: An option is not NAME=FILE, or its file is unusable.
    """
    from tollgate.history import find_table, read_table_rows

    read: list[tuple[Table, TableRows]] = []
    for text in given or []:
        name, equals, file = text.partition("=")
        if not (name and equals and file):
            raise InputError("--table", f"{text!r} is not NAME=FILE")
        table = find_table(spec, name)
        if table in (one for one, _ in read):
            raise InputError("--table", f"{name!r} appears twice")
        read.append((table, read_table_rows(Path(file), spec=spec, table=table)))
    return read


def load_tables(
    tables: list[tuple[Table, TableRows]],
    spec: FeatureSpec,
    store: RedisStore,
    *,
    rate: float | None,
    print_line: Callable[[str], None] = console.result,
) -> dict[str, TableLoadCounts]:
    """
    Load tables into the store.

    Args:
        rate: Most rows a second; None for as fast as Redis accepts them.
        print_line: Called with a line when a table is done.

    Returns:
        The result, by file.
    """
    from tollgate.backfill.tables import load_table

    loaded = {}
    for table, rows in tables:
        started_s = time.monotonic()
        with console.progress(f"loading {table.name}") as advance:
            done = load_table(
                spec, table, rows, store, rate_per_s=rate, progress=advance
            )
        taken_s = time.monotonic() - started_s
        print_line(f"{rows.source}: {_counts_text(done)}, in {taken_s:.1f} s")
        loaded[str(rows.source)] = done
        if late := _late(table, done):
            console.say(late)
    return loaded


def _counts_text(done: TableLoadCounts) -> str:
    parts = [
        f"{done.rows:,} rows of {done.ids:,} ids",
        f"{done.done_before:,} done before",
        f"{done.written:,} written",
    ]
    for number, text in (
        (done.too_old, "too old for any purchase"),
        (done.damaged, "damaged and replaced"),
    ):
        if number:
            parts.append(f"{number:,} {text}")
    return ", ".join(parts)


def _late(table: Table, done: TableLoadCounts) -> str:
    """Warn if purchases may have been scored without the rows valid at their time."""
    read_us = time.time_ns() // 1000 + table.refresh_us
    if not 0 < done.newest_us < read_us:
        return ""
    begin, end = (
        np.datetime64(one, "us").astype("M8[s]") for one in (done.newest_us, read_us)
    )
    text = f"{table.name} holds from {begin} UTC on: purchases from then until {end} "
    return text + "may have been scored without it"


def read_item_events(
    path: Path, *, user: str, item: str, time: str, action: str | None
) -> ItemEvents:
    """
    Read a table of what users did.

    Args:
        path: Parquet, CSV or JSON lines.
        user, item, time, action: Columns; None for no actions.

    Raises:
        InputError: The file or a column is missing, or has bad values.
    """
    from converters.ranking.interactions import read_interactions
    from tollgate.audit.review.list_responses import ItemEvents

    found = read_interactions(path, user=user, item=item, time=time, action=action)
    return ItemEvents(
        users=[found.user_ids[one] for one in found.users],
        items=[found.item_ids[one].decode() for one in found.items],
        time_us=found.time_us,
        actions=found.actions,
    )

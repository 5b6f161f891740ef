"""A table of values gives back what was put in, and writes what has changed."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tollgate.edge.value_table import PART_BYTES, TABLES, Entry, ValueTable

HEAD = 32
EVENT = 48


@pytest.fixture
def database() -> Iterator[sqlite3.Connection]:
    """Open an empty database."""
    with closing(opened()) as database:
        yield database


def opened() -> sqlite3.Connection:
    """Make the tables in memory."""
    database = sqlite3.connect(":memory:", isolation_level=None)
    database.executescript(TABLES)
    return database


def value_of(head: int, events: list[int]) -> bytes:
    """Make a value of a head and events."""
    drawn = [random.Random(one).randbytes(EVENT) for one in events]
    return head.to_bytes(HEAD, "little") + b"".join(drawn)


def orphans(database: sqlite3.Connection) -> int:
    """Count the parts that belong to no value, or that its row does not name."""
    (count,) = database.execute(
        "SELECT count(*) FROM parts WHERE NOT EXISTS (SELECT 1 FROM entries "
        "WHERE id = entry AND parts.number >= first "
        "AND parts.number < first + entries.parts)"
    ).fetchone()
    return int(count)


CHANGES = st.lists(
    st.tuples(
        st.sampled_from(["append", "insert", "remove", "drop", "replace", "delete"]),
        st.integers(0, 1),  # which key
        st.integers(0, 200),  # how many events, or how far from the end
    ),
    max_size=60,
)


@given(CHANGES)
def test_values_are_those_of_a_dictionary(
    changes: list[tuple[str, int, int]],
) -> None:
    """Events come at the end or anywhere, leave at the beginning or anywhere."""
    wanted: dict[bytes, Entry] = {}
    events: dict[bytes, list[int]] = {b"a": [], b"b": []}
    with closing(opened()) as database:
        table = ValueTable(database)
        for number, (change, which, size) in enumerate(changes):
            key = (b"a", b"b")[which]
            own = events[key]
            if change == "append":
                own += range(1000 * number, 1000 * number + size)
            elif change == "insert":
                own.insert(max(0, len(own) - size), 1000 * number)
            elif change == "remove" and own:
                del own[max(0, len(own) - 1 - size)]
            elif change == "drop":
                del own[:size]
            elif change == "replace":
                own[:] = range(1000 * number, 1000 * number + size)
            if change == "delete":
                own.clear()
                wanted.pop(key, None)
                database.execute("DELETE FROM entries WHERE key = ?", (key,))
            else:
                wanted[key] = Entry(value_of(number, own), number, 2 * number)
                table.write(key, wanted[key])
            assert {key: table.read(key) for key in table} == wanted
            assert table.read(b"c") is None
            assert orphans(database) == 0


def test_a_new_event_leaves_older_bytes_alone(database: sqlite3.Connection) -> None:
    """At most the row and one part are written, however long the value is."""
    table = ValueTable(database)
    table.write(b"key", Entry(value_of(0, list(range(1024))), 1, 1))
    changed: list[str] = []
    database.set_trace_callback(changed.append)
    for step in range(1, 200):
        value = value_of(step, list(range(step, 1024 + step)))
        table.write(b"key", Entry(value, step, step))
    database.set_trace_callback(None)
    written = [one.split()[0] for one in changed if not one.startswith("SELECT")]
    moved = 199 * EVENT // PART_BYTES
    assert written.count("UPDATE") == 199
    assert moved <= written.count("INSERT") <= moved + 1
    assert moved <= written.count("DELETE") <= moved + 1
    assert table.read(b"key") == Entry(value_of(199, list(range(199, 1223))), 199, 199)
    (longest,) = database.execute("SELECT max(length(value)) FROM entries").fetchone()
    assert longest < 2 * PART_BYTES


def test_lists_and_other_bytes_are_values(database: sqlite3.Connection) -> None:
    """Sets of ids, short and long bytes, one in place of the other."""
    table = ValueTable(database)
    values = [
        {b"a", b"\x00"}, b"", b"x", set(), b"y" * 100_000, {b"z"}, b"y" * 100_000,
    ]  # fmt: skip
    for number, value in enumerate(values):
        table.write(b"key", Entry(value, number, 7))
        assert table.read(b"key") == Entry(value, number, 7)
        assert orphans(database) == 0
    database.execute("DELETE FROM entries")
    assert database.execute("SELECT count(*) FROM parts").fetchone() == (0,)

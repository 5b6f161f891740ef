"""A cache has the values of a dictionary, also after a kill."""

from __future__ import annotations

import random
import sqlite3
from contextlib import closing

from hypothesis import given, settings
from hypothesis import strategies as st

from tollgate.edge import value_cache
from tollgate.edge.value_cache import ValueCache
from tollgate.edge.value_table import TABLES, ValueTable

HEAD, EVENT = 32, 48
Held = tuple[bytes | set[bytes], int]


class Database:
    """A cache with a table and a log, and what a dictionary has."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self.database = database
        database.executescript(TABLES)
        self.log: list[tuple[int, bytes]] = []
        self.number = self.written = 0
        self.wanted: dict[bytes, Held] = {}
        self.committed: dict[bytes, Held] = {}
        self.cache = ValueCache(ValueTable(database))

    def set(self, key: bytes, held: Held) -> None:
        """Set a value."""
        self.cache[key] = held
        self.wanted[key] = held

    def undo(self) -> None:
        """Take back what was not committed."""
        self.cache.undo()
        self.wanted = dict(self.committed)

    def commit(self) -> None:
        """Add the changes to the log."""
        if changes := self.cache.changes:
            self.number += 1
            self.log.append((self.number, changes))
        self.cache.commit()
        self.committed = dict(self.wanted)

    def write(self, count: int) -> None:
        """Write some values to the table; with all of them, the log is not needed."""
        self.commit()
        keys = self.cache.fresh_keys()
        self.cache.write(keys[:count], number=self.number)
        self.cache.note_written(keys[:count])
        if count >= len(keys):
            self.written = self.number

    def delete(self, key: bytes) -> None:
        """Delete a value that has expired, if the log does not change it any more."""
        if self.cache.is_fresh(key):
            return
        done = self.database.execute(
            "DELETE FROM entries WHERE key = ? AND number <= ?", (key, self.written)
        )
        if done.rowcount:
            self.cache.forget([key])
            del self.wanted[key], self.committed[key]

    def kill(self) -> None:
        """Lose what is in memory."""
        self.cache = ValueCache(ValueTable(self.database))
        self.wanted = dict(self.committed)
        for number, changes in self.log:
            if number > self.written:
                self.cache.redo(changes, number=number)


CHANGES = ("append", "insert", "drop", "remove", "replace", "ids")
STEPS = st.lists(
    st.tuples(
        st.sampled_from([*CHANGES, "undo", "commit", "write", "delete", "kill"]),
        st.integers(0, 2),  # which key
        st.integers(0, 40),  # how many events, or how far from the end
    ),
    max_size=80,
)


@given(STEPS)
@settings(deadline=None)
def test_values_are_those_of_a_dictionary(steps: list[tuple[str, int, int]]) -> None:
    """Commits, undone changes, parts of them in the table, and kills in any order."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as database:
        one = Database(database)
        for number, (step, which, size) in enumerate(steps):
            key = b"key %d" % which
            value, _ = one.wanted.get(key, (bytes(HEAD), 0))
            body = value[HEAD:] if isinstance(value, bytes) else b""
            events = [body[at : at + EVENT] for at in range(0, len(body), EVENT)]
            fresh = random.Random(number).randbytes(EVENT)
            if step == "append":
                events += [fresh]
            elif step == "insert":
                events.insert(max(0, len(events) - size), fresh)
            elif step == "drop":
                events = [*events[size // 4 :], fresh]
            elif step == "remove" and events:
                del events[max(0, len(events) - 1 - size)]
            elif step == "replace":
                events = [random.Random(number).randbytes(EVENT) for _ in range(size)]
            if step in {"undo", "commit", "kill"}:
                getattr(one, step)()
            elif step == "write":
                one.write(size // 10)
            elif step == "delete":
                one.delete(key)
            elif step == "ids":
                one.set(key, ({b"id %d" % at for at in range(size)}, number))
            else:
                head = number.to_bytes(HEAD, "little")
                one.set(key, (head + b"".join(events), number))
            assert dict(one.cache.items()) == one.wanted
            assert len(one.cache) == len(one.wanted)
            for key in (b"key 0", b"key 1", b"key 2", b"key 3"):
                held = one.wanted.get(key, (None, 7))
                assert one.cache.get(key, (None, 7)) == held
        one.kill()
        assert dict(one.cache.items()) == one.committed


def test_an_event_costs_the_log_a_few_bytes() -> None:
    """However long the value is, and also if an event comes late."""
    draw = random.Random(1)
    events = [draw.randbytes(EVENT) for _ in range(1_000)]
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as database:
        one = Database(database)
        one.set(b"key", (bytes(HEAD) + b"".join(events), 1))
        one.commit()
        for late in (0, 3):
            events = events[2:]
            events.insert(len(events) - late, draw.randbytes(EVENT))
            one.set(b"key", (b"h" * HEAD + b"".join(events), 2))
            assert len(one.cache.changes) < HEAD + (1 + late) * EVENT + 40
            one.commit()
        one.kill()
        assert dict(one.cache.items()) == one.committed


def test_memory_is_bounded() -> None:
    """Values that the table has leave the memory, those that it lacks do not."""
    value = bytes(10_000)
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as database:
        one = Database(database)
        for number in range(300):
            one.set(b"%d" % number, (value, 1))
        one.commit()
        assert 3_000_000 < one.cache.fresh_bytes < 3_100_000
        one.write(300)
        assert one.cache.fresh_bytes == 0
        held = [entry for entry in one.cache._clean.values() if entry is not None]
        assert len(held) * len(value) <= value_cache._MOST_CLEAN_BYTES
        assert len(held) > 90
        assert dict(one.cache.items()) == one.wanted

"""Commands that keep answers for a window, and that look at them after it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import redis

from tests.support.journal.numbered_decisions import HEADING, name_of, rows_of
from tollgate.journal.decision_record import Records
from tollgate.journal.journal_rows import to_records
from tollgate.journal.stored_decision_commands import MARGIN_US, StoreCommands
from tollgate.server.processes.redis_server import EmbeddedRedis
from tollgate.store.redis.redis_store import Command
from tollgate.store.stored_decisions import stored_decision_key

pytestmark = pytest.mark.usefixtures("both_deciders")

WINDOW_S = 600


def made(first: int, count: int) -> Records:
    """Make records of decisions number `first` and on, decided now."""
    rows = [rows_of(first, count)]
    return to_records(rows, HEADING, writer="00ff10203040aabb", first_sequence=first)


def split(commands: list[Command]) -> tuple[list[bytes], list[bytes]]:
    """Take the keys that are set, and those that are looked at."""
    found: dict[bytes, list[bytes]] = {b"SET": [], b"GET": []}
    for command in commands:
        name, key = command[0], command[1]
        assert isinstance(name, bytes)
        assert isinstance(key, bytes)
        found[name].append(key)
    return found[b"SET"], found[b"GET"]


def keys(first: int, count: int) -> list[bytes]:
    """Name the keys of decisions number `first` and on."""
    return [
        stored_decision_key("fraud", name_of(one))
        for one in range(first, first + count)
    ]


def test_each_answer_is_looked_at_once_when_its_window_is_over() -> None:
    """Not before, in the order of their ends, and next to new decisions."""
    keeper = StoreCommands(window_s=WINDOW_S)
    old, new = made(0, 3), made(3, 1)
    start_us = int(old.decided_us.max())
    over_us = start_us + WINDOW_S * 1_000_000 + MARGIN_US
    assert split(keeper(old, start_us)) == (keys(0, 3), [])
    assert split(keeper(new, start_us + 1))[1] == []
    assert split(keeper(made(4, 1), over_us - 1))[1] == []
    assert split(keeper(made(5, 1), over_us))[1] == keys(0, 3)
    assert split(keeper(made(6, 1), over_us))[1] == []


def test_after_a_quiet_time_only_so_many_at_once_and_none_long_gone() -> None:
    """The store has found by itself what ended a minute ago."""
    keeper = StoreCommands(window_s=WINDOW_S)
    start_us = 0
    for first in range(0, 1_000, 10):
        records = made(first, 10)
        start_us = int(records.decided_us.max())
        keeper(records, start_us)
    over_us = start_us + WINDOW_S * 1_000_000 + MARGIN_US
    looked = split(keeper(made(1_000, 1), over_us))[1]
    assert looked == keys(0, len(looked))
    assert 64 <= len(looked) < 80
    assert split(keeper(made(1_001, 1), over_us + 61_000_000))[1] == []


def test_names_that_wait_take_so_much_memory_and_no_more() -> None:
    """The oldest give way; their keys still expire."""
    keeper = StoreCommands(window_s=WINDOW_S, most_bytes=300)
    start_us = 0
    for first in range(0, 100, 10):
        records = made(first, 10)
        start_us = int(records.decided_us.max())
        assert len(split(keeper(records, start_us))[0]) == 10
    over_us = start_us + WINDOW_S * 1_000_000 + MARGIN_US
    assert split(keeper(made(100, 1), over_us))[1] == keys(80, 20)


def test_no_window_stores_nothing() -> None:
    """So nothing is looked at either."""
    keeper = StoreCommands(window_s=0)
    records = made(0, 3)
    now_us = int(records.decided_us.max())
    assert keeper(records, now_us) == []
    assert keeper(made(3, 1), now_us + 2 * MARGIN_US) == []


def test_a_look_removes_what_is_over_and_nothing_else(tmp_path: Path) -> None:
    """A Redis that looks for nothing by itself; one answer was stored again since."""
    keeper = StoreCommands(window_s=1)
    records = made(0, 3)
    with EmbeddedRedis(tmp_path) as server, redis.Redis.from_url(server.url) as store:
        store.execute_command("DEBUG", "SET-ACTIVE-EXPIRE", "0")
        for command in keeper(records, time.time_ns() // 1000):
            store.execute_command(*command)
        time.sleep(1.2)
        assert store.dbsize() == 3
        replaced = keys(1, 1)[0]
        store.set(replaced, b"another", px=60_000)
        over_us = int(records.decided_us.max()) + 1_000_000 + MARGIN_US
        for command in keeper(made(3, 0), over_us):
            store.execute_command(*command)
        assert store.keys() == [replaced]

"""What a real Triton decides is in the journal, and what it only shows is not."""

from __future__ import annotations

import contextlib
import math
import os
import re
import signal
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest
import redis

from tollgate.journal.decision_record import Records, decode_chunk
from tollgate.journal.stream_entries import End, stream_key
from tollgate.schema import Applied, Decision
from tollgate.server.serving.embedded import Embedded, serve
from tollgate_client import Client, Decisions

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).parents[3] / "model_repository"
NOW_US = time.time_ns() // 1000
KEY = stream_key("fraud")
PATIENCE_S = 600.0


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Embedded]:
    """One server for the tests of this module."""
    with serve(REPOSITORY, state=tmp_path_factory.mktemp("state")) as server:
        yield server


@pytest.fixture
def client(served: Embedded) -> Iterator[Client]:
    """A client; store and journal are empty."""
    with redis.Redis.from_url(served.store_url) as store:
        store.flushall()
    with Client(served.grpc_url, timeout_s=20) as opened:
        yield opened


def purchases(name: str, count: int, **changes: object) -> dict[str, object]:
    """Columns of good purchases; a change replaces a column."""
    return {
        "transaction_id": [f"{name}{row}" for row in range(count)],
        "customer_id": [f"c{row % 3}" for row in range(count)],
        "terminal_id": [f"käse{row % 5}" for row in range(count)],
        "amount": [700.0 + 100 * row for row in range(count)],
        "event_time": [NOW_US + row for row in range(count)],
    } | changes


def entries(url: str, *, rows: int) -> list[dict[bytes, bytes]]:
    """Read the stream once it holds so many records."""
    until_s = time.monotonic() + PATIENCE_S
    with redis.Redis.from_url(url) as store:
        while True:
            found = [entry for _, entry in store.xrange(KEY)]
            chunks = [decode_chunk(one[b"c"]) for one in found if b"c" in one]
            if sum(map(len, chunks)) >= rows:
                return found
            assert time.monotonic() < until_s, f"{chunks} in the journal"
            time.sleep(0.02)


def records(served: Embedded, *, rows: int) -> dict[bytes, tuple[Records, int]]:
    """Find each record by its id."""
    found = entries(served.store_url, rows=rows)
    chunks = [decode_chunk(one[b"c"]) for one in found if b"c" in one]
    assert sum(map(len, chunks)) == rows
    return {
        name: (chunk, row)
        for chunk in chunks
        for row, name in enumerate(chunk.transaction_id)
    }


def answers(decisions: Decisions) -> list[tuple[object, ...]]:
    """What a caller sees of each row, but for times."""
    return list(
        zip(
            decisions.decision.tolist(),
            decisions.score.tolist(),
            decisions.reason_codes,
            decisions.degraded.tolist(),
            strict=True,
        )
    )


def test_a_record_is_what_was_asked_and_answered(
    served: Embedded, client: Client
) -> None:
    """Inputs, vector, score bits, codes, bits, release and times of every row."""
    decided = client.decide(purchases("one", 8))
    found = records(served, rows=8)
    for row in range(8):
        chunk, at = found[b"one%d" % row]
        assert chunk.entities == ("customer", "terminal")
        assert [ids[at].decode() for ids in chunk.entity_id] == [
            f"c{row % 3}",
            f"käse{row % 5}",
        ]
        assert (chunk.cents[at], chunk.event_time_us[at]) == (
            70_000 + 10_000 * row,
            NOW_US + row,
        )
        assert chunk.features[at, 0] == np.float32(700.0 + 100 * row)
        assert chunk.score[at].tobytes() == decided.score[row].tobytes()
        assert chunk.probabilities[at, 1] == chunk.score[at]
        assert Decision(chunk.decision[at]).name.lower() == decided.decision[row]
        assert chunk.degraded[at] == decided.degraded[row]
        codes = chunk.reason_codes[at].decode()
        assert tuple(filter(None, codes.split("|"))) == tuple(decided.reason_codes[row])
        assert chunk.release == decided.release[row]
        assert chunk.applied[at] == Applied.YES
        assert abs(chunk.decided_us[at] / 1e6 - time.time()) < 60
        times = (chunk.features_us[at], chunk.model_us[at], chunk.decision_us[at])
        assert all(0 < one < PATIENCE_S * 1e6 for one in times)
    # 1000.00 and more is a large amount: the fourth row on.
    large = [bool(found[b"one%d" % row][0].rules.any()) for row in range(8)]
    assert any(large)


def test_dry_runs_and_bad_rows_leave_no_record(
    served: Embedded, client: Client
) -> None:
    """What was only shown, or not decided, is not in the journal."""
    client.decide(purchases("dry", 4), dry_run=True)
    amounts = [700.0, -1.0, 800.0]
    mixed = client.decide(purchases("mixed", 3, amount=amounts))
    assert math.isnan(mixed.score[1])
    found = records(served, rows=2)
    assert sorted(found) == [b"mixed0", b"mixed2"]
    assert {int(chunk.cents[at]) for chunk, at in found.values()} == {70_000, 80_000}


def test_who_asks_again_is_answered_again_and_journalled_once(
    served: Embedded, client: Client
) -> None:
    """The decision is stored next to the record."""
    first = client.decide(purchases("again", 3))
    records(served, rows=3)
    again = client.decide(purchases("again", 3))
    assert answers(again) == answers(first)
    client.decide(purchases("new", 1))
    assert len(records(served, rows=4)) == 4


def test_prometheus_hears_of_it(served: Embedded, client: Client) -> None:
    """Fates add up, and every chunk's lag is counted, without a further decision."""
    client.decide(purchases("told", 5))
    until_s = time.monotonic() + PATIENCE_S
    while True:
        page = urllib.request.urlopen(served.metrics_url).read().decode()
        found = dict(
            re.findall(
                r'^tollgate_journal_records_total{.*fate="(\w+)".*} (\d+)', page, re.M
            )
        )
        (lags,) = re.findall(
            r"^tollgate_journal_lag_seconds_count{.*} (\d+)", page, re.M
        )
        if found["appended"] == found["written"] != "0":
            break
        assert time.monotonic() < until_s, found
        time.sleep(0.1)
    assert (found["spooled"], found["dropped"]) == ("0", "0")
    assert 0 < int(lags) <= int(found["written"])


def test_a_server_that_stops_leaves_nothing_behind(tmp_path: Path) -> None:
    """Records of the last moment are written, and the end of the writer is reported."""
    with serve(REPOSITORY, state=tmp_path) as server:
        with Client(server.grpc_url, timeout_s=20) as client:
            client.decide(purchases("last", 6))
        server.triton.stop()
        found = entries(server.store_url, rows=6)
    end = msgspec.msgpack.decode(found[-1][b"e"], type=End)
    assert (end.sequence, end.killed) == (6, False)
    assert list((tmp_path / "journal-spool" / "fraud").iterdir()) == []


def stub_of(pid: int, model: str) -> int:
    """Find the process of a step among the children of a tritonserver."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                parent = (entry / "stat").read_text().rpartition(")")[2].split()[1]
                words = (entry / "cmdline").read_bytes()
                if parent == str(pid) and b"stub" in words and model.encode() in words:
                    return int(entry.name)
    raise AssertionError(f"{model} has no process")


def test_what_a_killed_step_took_with_it_shows(tmp_path: Path) -> None:
    """The next step reports how many numbers the killed one had given out."""
    with serve(REPOSITORY, state=tmp_path) as server:
        stub = stub_of(server.triton.pid, "fraud_decision")
        with Client(server.grpc_url, timeout_s=20) as client:
            client.decide(purchases("kept", 6))
            entries(server.store_url, rows=6)
            client.decide(purchases("maybe", 5))
            os.kill(stub, signal.SIGKILL)
    with serve(REPOSITORY, state=tmp_path) as server:
        until_s = time.monotonic() + PATIENCE_S
        while True:
            found = entries(server.store_url, rows=6)
            ends = [
                msgspec.msgpack.decode(one[b"e"], type=End)
                for one in found
                if b"e" in one
            ]
            if ends:
                break
            assert time.monotonic() < until_s
            time.sleep(0.1)
    chunks = [decode_chunk(one[b"c"]) for one in found if b"c" in one]
    assert {(end.writer, end.sequence, end.killed) for end in ends} == {
        (chunks[0].writer, 11, True)
    }
    names = {name for chunk in chunks for name in chunk.transaction_id}
    assert {b"kept%d" % row for row in range(6)} <= names

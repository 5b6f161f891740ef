"""Every decision that was taken is in the stream, once the stream can be reached."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import redis

from tests.support.checkout import checkout_environment
from tests.support.journal.numbered_decisions import (
    HEADING,
    KEY,
    RICH,
    chunks_in,
    details_of,
    ends_in,
    ids_in,
    name_of,
    rich_rows_of,
    rows_of,
    wait_until,
    writer_of,
)
from tollgate.journal.decision_record import Records
from tollgate.journal.journal_opening import open_writer
from tollgate.journal.journal_rows import to_records
from tollgate.journal.stream_entries import End
from tollgate.repair.spool_segments import segments
from tollgate.server.processes.redis_server import EmbeddedRedis
from tollgate.store.redis.redis_store import Command


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedRedis]:
    """One Redis for the tests that never lose it."""
    with EmbeddedRedis(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def url(running: EmbeddedRedis) -> str:
    """Its address; it is empty."""
    with redis.Redis.from_url(running.url) as client:
        client.flushall()
    return running.url


def names(first: int, count: int) -> list[bytes]:
    """Name some transactions."""
    return [name_of(number) for number in range(first, first + count)]


def test_rows_become_records_with_all_that_is_in_them() -> None:
    """Ids by their lengths, fields by name, times per step; batches one after other."""
    found = to_records(
        [rows_of(5, 3), rows_of(8, 1)],
        HEADING,
        writer="00" * 8,
        first_sequence=9,
    )
    numbers = np.arange(5, 9)
    assert found.transaction_id == names(5, 4)
    assert found.entity_id == [
        [one + tail for one in names(5, 4)] for tail in (b"c", b"t")
    ]
    assert found.cents.tolist() == (numbers * 3).tolist()
    assert found.fields["channel"].tolist() == (-numbers).tolist()
    assert found.fingerprint.tolist() == [n * 7 + (1 << 63) for n in range(5, 9)]
    assert found.features[:, 14].tolist() == numbers.tolist()
    assert found.features_us.tolist() == [500] * 4
    assert found.model_us.tolist() == [6_000 - 500] * 4  # from step to step
    assert found.decision_us.tolist() == [120] * 4
    assert found.reason_codes == [b"SCORE_REVIEW"] * 4


def test_everything_arrives_in_order_and_once(url: str) -> None:
    """Numbers from 0 on without a gap, ids as appended; then the writer's end."""
    writer = writer_of(url, None)
    for at in range(200):
        assert writer.append(rows_of(at * 7, 7))
    writer.close()
    assert ids_in(url) == names(0, 1_400)
    numbers = [
        chunk.first_sequence + row
        for chunk in chunks_in(url)
        for row in range(len(chunk))
    ]
    assert numbers == list(range(1_400))
    assert {chunk.writer for chunk in chunks_in(url)} == {writer.writer}
    assert ends_in(url) == [End(writer.writer, 1_400, killed=False)]
    counts = writer.counts
    assert (counts.appended, counts.written, counts.dropped) == (1_400, 1_400, 0)
    assert counts.buffered == 0


def test_records_wait_on_disk_while_redis_is_away(tmp_path: Path) -> None:
    """Those of the outage come first when it is back, then newer ones; each once."""
    state, folder = tmp_path / "redis", tmp_path / "spool"
    with EmbeddedRedis(state) as server:
        writer = writer_of(server.url, folder)
        writer.append(rows_of(0, 10))
        wait_until(lambda: writer.counts.written == 10)
    for at in range(30):
        writer.append(rows_of(10 + at * 10, 10))
        if at % 10 == 0:
            wait_until(lambda: writer.counts.buffered == 0)
    wait_until(lambda: writer.counts.spooled == 300)
    assert segments(folder)
    with EmbeddedRedis(state) as server:
        wait_until(lambda: not segments(folder))
        writer.append(rows_of(310, 5))
        writer.close()
        assert ids_in(server.url) == names(0, 315)
        assert ends_in(server.url) == [End(writer.writer, 315, killed=False)]
    assert list(folder.iterdir()) == []
    counts = writer.counts
    assert (counts.written, counts.spooled, counts.dropped) == (15, 300, 0)


def test_details_arrive_by_stream_and_by_spool(tmp_path: Path) -> None:
    """Each with its record, before, during and after an outage."""
    state, folder = tmp_path / "redis", tmp_path / "spool"
    with EmbeddedRedis(state) as server:
        writer = writer_of(server.url, folder, heading=RICH)
        writer.append(rich_rows_of(0, 320))
        wait_until(lambda: writer.counts.written == 320)
    for at in range(320, 1_280, 32):
        writer.append(rich_rows_of(at, 32))
    wait_until(lambda: writer.counts.spooled == 960)
    with EmbeddedRedis(state) as server:
        wait_until(lambda: not segments(folder))
        writer.append(rich_rows_of(1_280, 7))
        writer.close()
        found = chunks_in(server.url)
    by_number: dict[int, bytes] = {}
    for one in found:
        for row, text in enumerate(one.details):
            assert by_number.setdefault(one.first_sequence + row, text) == text
    assert list(by_number) == list(range(1_287))
    assert all(text == details_of(number) for number, text in by_number.items())
    assert writer.counts.dropped == 0


def test_what_redis_forgot_is_sent_again(tmp_path: Path) -> None:
    """One that comes back without its last acknowledged records gets them again."""
    state = tmp_path / "redis"
    with EmbeddedRedis(state) as server:
        url = server.url
        writer = writer_of(url, None)
        writer.append(rows_of(0, 10))
        wait_until(lambda: writer.counts.written == 10)
    (state / "redis" / "appendonly.aof").unlink()
    with EmbeddedRedis(state):
        writer.append(rows_of(10, 5))
        writer.close()
        assert sorted(ids_in(url)) == names(0, 15)


def test_the_next_writer_sends_what_one_left_on_disk(tmp_path: Path) -> None:
    """A writer that ends while the stream is away loses nothing; its end is sent."""
    folder = tmp_path / "spool"
    first = writer_of("unix:///nowhere.sock", folder)
    first.append(rows_of(0, 50))
    first.close()
    assert first.counts.spooled == 50
    with EmbeddedRedis(tmp_path / "redis") as server:
        second = writer_of(server.url, folder)
        wait_until(lambda: ends_in(server.url) != [])
        second.append(rows_of(50, 1))
        second.close()
        assert ids_in(server.url) == names(0, 51)
        assert ends_in(server.url) == [
            End(first.writer, 50, killed=False),
            End(second.writer, 1, killed=False),
        ]
    assert list(folder.iterdir()) == []


def test_what_finds_no_room_is_counted_and_leaves_a_gap(tmp_path: Path) -> None:
    """Without stream and disk, memory is bounded; gaps in the numbers reveal losses."""
    state = tmp_path / "redis"
    with EmbeddedRedis(state) as server:
        url = server.url
    writer = writer_of(url, None, most_rows=100)
    taken = [writer.append(rows_of(at * 30, 30)) for at in range(5)]
    assert taken == [True, True, True, False, False]
    assert (writer.counts.dropped, writer.counts.buffered) == (60, 90)
    with EmbeddedRedis(state):
        wait_until(lambda: writer.counts.buffered == 0)
        writer.append(rows_of(150, 2))
        writer.close()
        firsts = [chunk.first_sequence for chunk in chunks_in(url)]
        assert ids_in(url) == names(0, 90) + names(150, 2)
        assert firsts[-1] == 150
        assert ends_in(url)[0].sequence == 152


def test_a_full_stream_is_left_as_it_is(tmp_path: Path, url: str) -> None:
    """Nothing unread is trimmed: records go to disk, and follow when there is room."""
    folder = tmp_path / "spool"
    writer = writer_of(url, folder, most_stream_bytes=1)
    writer.append(rows_of(0, 4))
    wait_until(lambda: writer.counts.full)
    writer.append(rows_of(4, 4))
    wait_until(lambda: writer.counts.spooled == 4)
    assert ids_in(url) == names(0, 4)
    with redis.Redis.from_url(url) as client:
        client.delete(KEY)  # a worker has read and removed it
    wait_until(lambda: not segments(folder))
    writer.close()
    assert ids_in(url) == names(4, 4)
    assert writer.counts.dropped == 0


def test_extra_commands_reach_the_store_whatever_the_stream_does(
    tmp_path: Path,
) -> None:
    """Sent with a chunk at once, or when its records come out of the spool."""

    def extra_commands(records: Records, now_us: int) -> list[Command]:
        return [(b"SET", b"d:" + one, b"1", b"NX") for one in records.transaction_id]

    state, folder = tmp_path / "redis", tmp_path / "spool"
    with EmbeddedRedis(state) as server:
        url = server.url
        writer = writer_of(url, folder, extra_commands=extra_commands)
        writer.append(rows_of(0, 3))
        wait_until(lambda: writer.counts.written == 3)
    writer.append(rows_of(3, 3))
    wait_until(lambda: writer.counts.spooled == 3)
    with EmbeddedRedis(state), redis.Redis.from_url(url) as client:
        wait_until(lambda: not segments(folder))
        writer.close()
        assert sorted(client.keys("d:*")) == [b"d:" + one for one in names(0, 6)]


KILLED = """
import sys, time
from pathlib import Path
from tests.support.journal.numbered_decisions import rows_of, writer_of
writer = writer_of(sys.argv[1], Path(sys.argv[2]), gather_s=0.5)
writer.append(rows_of(0, 20))
while writer.counts.buffered:
    time.sleep(0.01)
writer.append(rows_of(20, 5))
print(writer.writer, flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("away", [True, False], ids=["to disk", "to the stream"])
def test_records_of_a_killed_writer_arrive(tmp_path: Path, away: bool) -> None:
    """Also those that it had not sent; its end says how many there are."""
    state, folder = tmp_path / "redis", tmp_path / "spool"
    with EmbeddedRedis(state) as server:
        url = "unix:///nowhere.sock" if away else server.url
        child = subprocess.Popen(
            [sys.executable, "-c", KILLED, url, str(folder)],
            stdout=subprocess.PIPE,
            env=checkout_environment(),
        )
        assert child.stdout is not None
        killed = child.stdout.readline().decode().strip()
        child.kill()
        child.communicate()
        writer = writer_of(server.url, folder)
        wait_until(lambda: ends_in(server.url) != [])
        writer.close()
        assert ids_in(server.url) == names(0, 25)
        assert ends_in(server.url)[0] == End(killed, 25, killed=True)
    assert list(folder.iterdir()) == []


def test_a_folder_that_cannot_be_made_costs_the_spool_alone(
    tmp_path: Path, url: str
) -> None:
    """The journal goes on without; a step starts in any case."""
    (tmp_path / "file").write_text("in the way")
    writer = open_writer(url, HEADING, folder=str(tmp_path / "file"), deadline_s=1.0)
    writer.append(rows_of(0, 2))
    writer.close()
    assert ids_in(url) == names(0, 2)


def test_a_damaged_segment_is_set_aside(tmp_path: Path, url: str) -> None:
    """What no version reads stays for a person to look at, and holds up nothing."""
    folder = tmp_path / "spool"
    folder.mkdir()
    (folder / "0-1-0.spool").write_bytes(b"no segment")
    writer = writer_of(url, folder)
    wait_until(lambda: not segments(folder))
    writer.close()
    assert [path.name for path in folder.iterdir()] == ["0-1-0.spool.unreadable"]
    with redis.Redis.from_url(url) as client:
        assert client.xlen(KEY) == 1  # its end


def test_a_full_disk_keeps_records_in_memory(tmp_path: Path) -> None:
    """What the folder may not take waits, and is sent when the stream is back."""
    state, folder = tmp_path / "redis", tmp_path / "spool"
    with EmbeddedRedis(state) as server:
        url = server.url
    writer = writer_of(url, folder, most_spool_bytes=3_000)
    for at in range(10):
        writer.append(rows_of(at * 10, 10))
        time.sleep(0.02)  # a chunk each, so that some fit and some do not
    wait_until(lambda: writer.counts.spooled > 0)
    assert writer.counts.buffered > 0
    with EmbeddedRedis(state):
        wait_until(lambda: not segments(folder) and not writer.counts.buffered)
        writer.close()
        assert ids_in(url) == names(0, 100)
    assert writer.counts.dropped == 0

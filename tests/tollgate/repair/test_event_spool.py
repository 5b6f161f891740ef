"""The spool takes purchases without waiting, and keeps what it took."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import numpy as np
import pytest

from tests.support.checkout import checkout_environment
from tollgate.features.spec.feature_spec import FeatureSpec
from tollgate.repair.event_spool import PurchaseSpool, open_spool
from tollgate.repair.spool_segments import SegmentFile, locked, read_segment, segments
from tollgate.store.store_events import Purchases
from tollgate.stream.events import EventCodec
from tollgate.worker import tallies

START_US = 1_700_000_000_000_000
PATIENCE_S = 600.0


def made(first: int, rows: int) -> Purchases:
    """Make purchases with numbered ids."""
    names = [b"t%d" % (first + row) for row in range(rows)]
    return Purchases(
        transaction_id=names,
        entity_id=[names, [b"terminal"] * rows],
        event_time_us=np.arange(rows) + START_US,
        cents=np.full(rows, 100, np.int64),
    )


def ids_in(folder: Path) -> list[str]:
    """Read the ids of all events in a folder, in order."""
    return [
        msgspec.json.decode(event)["transaction_id"]
        for path in segments(folder)
        for event in read_segment(path, path.read_bytes()).events
    ]


def wait_for(folder: Path, rows: int) -> None:
    """Wait until so many events are on disk."""
    until_s = time.monotonic() + PATIENCE_S
    while len(ids_in(folder)) < rows:
        assert time.monotonic() < until_s, f"{len(ids_in(folder))} of {rows}"
        time.sleep(0.01)


def test_what_was_taken_is_on_disk_when_it_closes(
    tmp_path: Path, spec_path: Path, spec: FeatureSpec
) -> None:
    """Every purchase, in order, in files that say whose they are."""
    spool = PurchaseSpool(tmp_path / "spool", spec_path)
    assert all(spool.append(made(10 * at, 10)) for at in range(30))
    spool.close()
    assert ids_in(tmp_path / "spool") == [f"t{number}" for number in range(300)]
    (path,) = segments(tmp_path / "spool")
    header = read_segment(path, path.read_bytes()).header
    assert header.product == "fraud"
    assert header.state == f"{spec.state_hash:016x}"
    assert header.spec == spec_path.read_text()
    assert (tmp_path / "spool").stat().st_mode & 0o777 == 0o700
    assert not spool.append(made(0, 1))


def test_a_segment_is_let_go_while_the_step_lives(
    tmp_path: Path, spec_path: Path
) -> None:
    """About a second after its first event a drain may have it; more goes elsewhere."""
    spool = PurchaseSpool(tmp_path, spec_path)
    spool.append(made(0, 1))
    wait_for(tmp_path, 1)
    (path,) = segments(tmp_path)
    until_s = time.monotonic() + PATIENCE_S
    while True:
        with locked(path) as fd:
            if fd is not None:
                break
        assert time.monotonic() < until_s
        time.sleep(0.02)
    spool.append(made(1, 1))
    spool.close()
    assert len(segments(tmp_path)) == 2
    assert ids_in(tmp_path) == ["t0", "t1"]


def test_a_full_memory_refuses_and_the_numbers_tell(
    tmp_path: Path, spec_path: Path
) -> None:
    """What finds no room is refused at once, and missing in what comes after it."""
    spool = PurchaseSpool(tmp_path, spec_path, most_waiting=5)
    assert not spool.append(made(0, 6))
    assert spool.append(made(6, 3))
    spool.close()
    (path,) = segments(tmp_path)
    assert ids_in(tmp_path) == ["t6", "t7", "t8"]
    assert read_segment(path, path.read_bytes()).missing == 6 == spool.refused


def test_a_full_folder_takes_no_more(tmp_path: Path, spec_path: Path) -> None:
    """The bound on disk holds; what was taken beyond it is counted as lost."""
    spool = PurchaseSpool(tmp_path, spec_path, most_bytes=20_000)
    taken = 0
    for at in range(40):
        taken += 10 * spool.append(made(10 * at, 10))
        time.sleep(0.01)
    spool.close()
    assert sum(path.stat().st_size for path in segments(tmp_path)) <= 20_000
    assert spool.lost > 0
    assert len(ids_in(tmp_path)) == taken - spool.lost
    assert taken + spool.refused == 400


WRITER = """
import sys, time
from pathlib import Path
from tests.tollgate.repair.test_event_spool import made
from tollgate.repair.event_spool import PurchaseSpool
spool = PurchaseSpool(Path(sys.argv[1]), Path(sys.argv[2]))
for number in range(100_000):
    spool.append(made(number, 1))
    print(number, flush=True)
    time.sleep(0.0005)
"""


def test_a_killed_writer_loses_its_last_moment_only(
    tmp_path: Path, spec_path: Path
) -> None:
    """SIGKILL: all but the last rows are there, whole, without a gap, unlocked."""
    code = [sys.executable, "-c", WRITER, str(tmp_path), str(spec_path)]
    with subprocess.Popen(
        code, stdout=subprocess.PIPE, text=True, env=checkout_environment()
    ) as child:
        assert child.stdout is not None
        for line in child.stdout:
            if int(line) == 500:
                break
        wait_for(tmp_path, 300)
        os.kill(child.pid, signal.SIGKILL)
        told = [500, *map(int, child.stdout.read().split())]
    found = ids_in(tmp_path)
    assert found == [f"t{number}" for number in range(len(found))]
    assert 300 <= len(found) <= told[-1] + 2
    for path in segments(tmp_path):
        with locked(path) as fd:
            assert fd is not None


def test_a_clock_that_is_set_back_changes_no_order(
    tmp_path: Path, spec_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was taken later is applied later, whatever the time says."""
    for hour in (5, 1, 3):
        monkeypatch.setattr(time, "time_ns", lambda hour=hour: hour * 3600 * 10**9)
        spool = PurchaseSpool(tmp_path, spec_path)
        assert spool.append(made(hour, 1))
        spool.close()
    assert ids_in(tmp_path) == ["t5", "t1", "t3"]


def test_a_step_goes_on_without_a_folder(
    tmp_path: Path, spec_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """No folder is no spool; one that cannot be made is told, once."""
    assert open_spool("", spec_path, product="fraud") is None
    (tmp_path / "file").write_text("")
    assert (
        open_spool(str(tmp_path / "file" / "spool"), spec_path, product="fraud") is None
    )
    assert "purchases that the store misses are lost" in caplog.text


def test_a_batch_that_cannot_be_encoded_takes_no_other_with_it(
    tmp_path: Path, spec_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is counted as lost; those before, with and after it are on disk."""
    whole = EventCodec.encode_purchases

    def encode(self: EventCodec, purchases: Purchases) -> list[bytes]:
        if purchases.transaction_id[0] == b"t10":
            raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "unforeseen")
        return list(whole(self, purchases))

    monkeypatch.setattr(EventCodec, "encode_purchases", encode)
    spool = PurchaseSpool(tmp_path, spec_path)
    for at in range(4):
        assert spool.append(made(10 * at, 10))
    wait_for(tmp_path, 30)
    assert spool.append(made(40, 10))
    spool.close()
    wanted = [*range(10), *range(20, 50)]
    assert ids_in(tmp_path) == [f"t{number}" for number in wanted]
    assert spool.lost == 10


def test_the_thread_outlives_a_disk_that_fails_unforeseen(
    tmp_path: Path, spec_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it was writing is counted as lost; what comes next is on disk."""
    whole = SegmentFile.write
    broken = [1]

    def write(self: SegmentFile, frames: list[bytes]) -> None:
        if broken:
            broken.pop()
            raise RuntimeError("unforeseen")
        whole(self, frames)

    monkeypatch.setattr(SegmentFile, "write", write)
    before = tallies().get("spool")
    spool = PurchaseSpool(tmp_path, spec_path)
    assert spool.append(made(0, 10))
    until_s = time.monotonic() + PATIENCE_S
    while not spool.lost:
        assert time.monotonic() < until_s
        time.sleep(0.01)
    assert spool.append(made(10, 10))
    wait_for(tmp_path, 10)
    spool.close()
    assert ids_in(tmp_path) == [f"t{number}" for number in range(10, 20)]
    assert spool.lost == 10
    assert tallies()["spool"].errors - (before.errors if before else 0) == 1

"""A device changes to the bundle that is activated, and keeps what it acknowledged."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from tests.support.edge.bundles import Keys, packed
from tests.support.edge.centre import GROUP, Centre
from tollgate.cli.app import app
from tollgate.edge.active import Active, find_active, serve
from tollgate.edge.bundle import read_bundle
from tollgate.edge.device import Device
from tollgate.edge.device_store import JOURNAL
from tollgate.errors import InputError
from tollgate.journal.decision_record import decode_chunk
from tollgate.repair.spool_segments import read_segment, segments
from tollgate_client import Client, ClientError


@pytest.fixture
def centre(tmp_path: Path) -> Centre:
    """Make a centre."""
    return Centre(tmp_path)


def purchase(number: int) -> dict[str, list[Any]]:
    """Make a purchase with an id of its own."""
    return {
        "transaction_id": [f"t{number}"],
        "customer_id": ["c"],
        "terminal_id": ["m"],
        "amount": [12.5],
        "event_time": [time.time_ns() // 1000],
    }


@contextmanager
def serving(centre: Centre, state: Path, *, broken: str = "") -> Any:
    """
    Serve the active bundle of a folder in a thread.

    Args:
        broken: A release that does not open; empty for none.

    Yields:
        The releases, with their addresses, that were ready.
    """
    stopped, said = threading.Event(), []
    key = centre.keys.public

    def open_device(active: Active) -> Device:
        manifest = read_bundle(active.path, key=centre.keys.verifies).manifest
        if manifest.release == broken:
            raise InputError(broken, "does not open")
        return Device.open(
            active.path, key=key, state=state, withdrawn=active.withdrawn
        )

    thread = threading.Thread(
        target=serve,
        args=(lambda: find_active(state, key), open_device),
        kwargs={
            "listen": "127.0.0.1:0",
            "stopped": stopped,
            "say": lambda device, address: said.append(
                (device.manifest.release, address)
            ),
        },
    )
    thread.start()
    try:
        yield said
    finally:
        stopped.set()
        thread.join()


def wait_for(said: list[tuple[str, str]], count: int) -> None:
    """Wait for a number of starts."""
    until_s = time.monotonic() + 60
    while len(said) < count:
        assert time.monotonic() < until_s
        time.sleep(0.01)


def test_a_change_of_the_bundle_loses_no_record(centre: Centre, tmp_path: Path) -> None:
    """Purchases go on over an update and a rollback, on the same port."""
    state = tmp_path / "state"
    ended, acknowledged = threading.Event(), []

    def load(address: str) -> None:
        for number in range(100_000):
            row, decided = purchase(number), False
            while not decided:
                try:
                    with Client(address, product="fraud", timeout_s=60.0) as client:
                        decided = bool(client.decide(row).decision[0])
                except ClientError:
                    time.sleep(0.05)
            acknowledged.append(b"t%d" % number)
            if ended.is_set():
                return

    centre.release(1)
    with centre.sync(state) as sync:
        sync.pull()
        with serving(centre, state) as said:
            wait_for(said, 1)
            thread = threading.Thread(target=load, args=(said[0][1],))
            thread.start()
            for change in (lambda: centre.release(2), centre.roll_back):
                before, decided = len(said), len(acknowledged)
                change()
                sync.pull()
                wait_for(said, before + 1)
                while len(acknowledged) < decided + 20:
                    time.sleep(0.01)
            ended.set()
            thread.join()
    assert [one for one, _ in said] == ["fraud-1", "fraud-2", "fraud-1"]
    assert len({address for _, address in said}) == 1
    records = [
        (one, chunk.release)
        for path in segments(state / JOURNAL / "fraud")
        for raw in read_segment(path, path.read_bytes()).events
        for chunk in [decode_chunk(raw)]
        for one in chunk.transaction_id
    ]
    assert [one for one, _ in records] == acknowledged
    assert {name for _, name in records} == {"fraud-1", "fraud-2"}


def test_a_bundle_that_cannot_be_opened_is_not_served(
    centre: Centre, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The one before goes on; the next good one is served."""
    state = tmp_path / "state"
    centre.release(1)
    with centre.sync(state) as sync:
        sync.pull()
        with serving(centre, state, broken="fraud-2") as said:
            for sequence in (2, 3):
                wait_for(said, sequence - 1)
                centre.release(sequence)
                sync.pull()
            wait_for(said, 3)
    assert [one for one, _ in said] == ["fraud-1", "fraud-1", "fraud-3"]
    assert "is not served: fraud-2: does not open" in caplog.text


UNKNOWN = "the active bundle is unknown"


def test_a_file_that_is_damaged_is_logged_once(
    centre: Centre, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The device goes on, and changes to the next bundle."""
    state = tmp_path / "state"
    centre.release(1)
    with centre.sync(state) as sync:
        sync.pull()
        with serving(centre, state) as said:
            wait_for(said, 1)
            looked = centre.keys.public.read_bytes()
            centre.keys.public.write_bytes(b"no key")
            ended_s = time.monotonic() + 60.0
            while UNKNOWN not in caplog.text and time.monotonic() < ended_s:
                time.sleep(0.05)
            time.sleep(2.0)  # it looks twice a second
            centre.keys.public.write_bytes(looked)
            centre.release(2)
            sync.pull()
            wait_for(said, 2)
    assert caplog.text.count(UNKNOWN) == 1


def invoke(*words: object) -> Result:
    """Run a command of `tollgate edge`."""
    return CliRunner().invoke(app, ["edge", *map(str, words)])


def test_commands_release_sync_and_go_back(centre: Centre, tmp_path: Path) -> None:
    """Each prints one line; a wrong one ends with status 2 and writes nothing."""
    state, keys = tmp_path / "state", centre.keys
    place = ("--store", centre.url, "--key", keys.private)
    own = ("--store", centre.url, "--key", keys.public, "--group", GROUP)
    own = (*own, "--state", state, "--device", "till-1")
    with pytest.raises(InputError, match="no bundle is active: name one, or pull one"):
        find_active(state, keys.public)
    assert invoke("sync", *own).exit_code == 1
    for words, line in (
        (("release", GROUP, centre.bundle(1), *place), "number 1: fraud-1\n"),
        (
            ("release", GROUP, centre.bundle(2), *place, "--canary", 10),
            "number 2: fraud-1; fraud-2 on 10 % of the devices\n",
        ),
        (
            ("release", GROUP, centre.bundle(3), *place, "--pin", "till-1"),
            "number 3: fraud-1; fraud-2 on 10 % of the devices; fraud-3 on till-1\n",
        ),
        (("rollback", GROUP, *place), "number 4: fraud-1; fraud-3 on till-1\n"),
    ):
        done = invoke(*words)
        assert (done.exit_code, done.stdout) == (0, f"group {GROUP}, {line}")
    assert invoke("sync", *own).exit_code == 0
    assert centre.active(state) == "fraud-3"
    before = centre.group_file.read_bytes()
    sensors = packed(keys, tmp_path, "sensors")
    other = Keys(tmp_path, "other").private
    for words, line in (
        (("release", GROUP, sensors, *place), "is of sensors, group tills is of"),
        (("release", "a/b", centre.bundle(4), *place), "'a/b' is not 1 to 64 letters"),
        (("release", "new", centre.bundle(4), *place, "--pin", "a"), "no release yet"),
        (
            ("release", GROUP, centre.bundle(4), *place, "--pin", "a", "--canary", 5),
            "give one of them",
        ),
        (
            ("rollback", GROUP, "--store", centre.url, "--key", other),
            "the signature does not fit",
        ),
        (("rollback", GROUP, *place, "--pin", "b"), "b has no pin in group tills"),
        (("rollback", "lanes", *place), "group lanes: is not in"),
    ):
        done = invoke(*words)
        assert isinstance(done.exception, InputError)
        assert line in str(done.exception)
        assert "\n" not in str(done.exception)
    assert centre.group_file.read_bytes() == before
    assert [one.name for one in centre.store.iterdir()] == [GROUP]

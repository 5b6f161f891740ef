"""
Run a fleet of devices, some of them offline: `python -m loadtests.edge.fleet`.

Each device is two processes, `tollgate edge run` and `tollgate edge sync`, which decide
purchases all the time. The centre releases a second release; then a part of the devices
loses its way to the object store, a rollback is ordered, and some processes are killed.
The offline devices come back, and the centre collects, seals and verifies all records.

Exit status 1 if a device does not come to the ordered release within a poll of when it
can reach the store, if a number of acknowledged decisions and of sealed records differ,
or if `tollgate journal verify` has a finding.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO

import msgspec

from loadtests.edge.decider import purchases
from loadtests.harness import (
    REPOSITORY,
    Report,
    command_parser,
    run_command,
    say,
    temporary_folder,
)
from tollgate.edge.bundle import make_keys
from tollgate.edge.sync import read_active
from tollgate.errors import ServerError
from tollgate.journal.decision_record import decode_chunk
from tollgate.load.surroundings import commit, hardware
from tollgate.repair.spool_segments import read_segment
from tollgate.server.processes.redis_server import EmbeddedRedis
from tollgate_client import Client, ClientError

GROUP = "tills"
_PROGRAM = (sys.executable, "-c", "from tollgate.cli import main; main()")
_WAIT_S = 300.0  # for anything, on a machine that is busy with other work
_TIMEOUT_S = 10.0
_LOOK_S = 0.02
_PROCESSING_S = 2.0  # of a poll that finds a bundle, on a busy machine


def command(*words: object) -> str:
    """Run a command of Tollgate; return what it printed."""
    done = subprocess.run(
        [*_PROGRAM, *map(str, words)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        name = f"tollgate {words[0]} {words[1]}"
        raise ServerError(name, "failed", log=done.stderr + done.stdout)
    return done.stdout


class Centre:
    """An object store in a folder, keys, and a repository with two releases."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = folder / "store"
        self.store.mkdir()
        self.private, self.public = folder / "release.key", folder / "release.pub"
        make_keys(self.private, self.public)
        self.repository = folder / "model_repository"
        shutil.copytree(REPOSITORY, self.repository)
        decision = self.repository / "fraud_decision"
        shutil.copytree(decision / "1", decision / "2")
        policy = decision / "2" / "policy.yaml"
        policy.write_text(policy.read_text() + "# another release\n")
        self.bundles = [self._pack("first")]
        place = ("--repository", self.repository, "--product", "fraud")
        change = ("--set", "decision=2", "--reason", "a load test")
        command("release", "activate", *change, *place)
        self.bundles.append(self._pack("second"))

    def _pack(self, name: str) -> Path:
        out = self.folder / f"{name}.bundle"
        place = ("--repository", self.repository, "--key", self.private)
        command("edge", "pack", "fraud", *place, "--out", out)
        return out

    def release(self, bundle: Path) -> None:
        """Release a bundle to the group."""
        place = ("--store", self.store, "--key", self.private)
        command("edge", "release", GROUP, bundle, *place)

    def roll_back(self) -> None:
        """Take the group's release back."""
        place = ("--store", self.store, "--key", self.private)
        command("edge", "rollback", GROUP, *place)

    def pushed_ids(self) -> list[bytes]:
        """Read the transaction ids of all records in the object store."""
        return [
            one
            for path in self.store.rglob("*.spool")
            for raw in read_segment(path, path.read_bytes()).events
            for one in decode_chunk(raw).transaction_id
        ]

    def seal(self) -> dict[str, object]:
        """Collect, seal and verify all records; return the verification."""
        sealed = self.folder / "sealed"
        with EmbeddedRedis(self.folder / "redis") as redis:
            where = ("--journal-url", redis.url)
            command("edge", "collect", GROUP, "--store", self.store, *where)
            place = ("--folder", sealed, "--repository", self.repository)
            command("journal", "run", *place, *where, "--until-idle")
        verified: dict[str, object] = json.loads(
            command("journal", "verify", sealed, "--json")
        )
        return verified


class FleetDevice:
    """
    One device: two processes, and a thread that has purchases decided.

    Its way to the object store is a link, which `block` replaces by an empty file.
    """

    def __init__(self, number: int, centre: Centre, *, poll_s: float) -> None:
        self.name = f"till-{number:02d}"
        self._number = number
        self._centre = centre
        self._poll_s = poll_s
        self._folder = centre.folder / self.name
        self._folder.mkdir()
        self.state = self._folder / "state"
        self._store = self._folder / "store"
        self._store.symlink_to(centre.store)
        self._logs = ExitStack()
        self._run: subprocess.Popen[bytes] | None = None
        self._sync: subprocess.Popen[bytes] | None = None
        self._stopped = threading.Event()
        self._load: threading.Thread | None = None
        self.acknowledged: list[bytes] = []
        self.releases: set[str] = set()
        self.longest_s = 0.0  # from a purchase to its acknowledgement, with retries

    def _words(self, verb: str) -> list[str]:
        words = [*_PROGRAM, "edge", verb, "--key", str(self._centre.public)]
        return [*words, "--state", str(self.state)]

    def _sync_words(self) -> list[str]:
        words = [*self._words("sync"), "--store", str(self._store)]
        return [*words, "--group", GROUP, "--device", self.name]

    def _log(self, name: str) -> IO[bytes]:
        return self._logs.enter_context((self._folder / name).open("ab"))

    def start(self) -> None:
        """Pull the first bundle, and start both processes and the load."""
        self.sync_once()
        self.start_run()
        self._sync = subprocess.Popen(
            [*self._sync_words(), "--every", f"{self._poll_s:g}s"],
            stderr=self._log("sync.log"),
        )
        self._load = threading.Thread(target=self._decide, name=self.name)
        self._load.start()

    def start_run(self) -> None:
        """Start the process that decides."""
        self._run_log = self._folder / f"run-{time.time_ns()}.log"
        self._run = subprocess.Popen(
            [*self._words("run"), "--listen", "127.0.0.1:0", "--seal-after", "1"],
            stderr=self._log(self._run_log.name),
        )

    def sync_once(self) -> None:
        """Sync once, to its end."""
        done = subprocess.run(self._sync_words(), capture_output=True, check=False)
        if done.returncode:
            raise ServerError(self.name, "did not sync", log=done.stderr.decode())

    @property
    def _address(self) -> str:
        found = self._run_log.read_text().partition(" on ")[2]
        return found.partition(";")[0]

    @property
    def active(self) -> str:
        """Return the release that `edge sync` activated."""
        found = read_active(self.state, self._centre.public)
        return found[2].release if found else ""

    @property
    def served(self) -> str:
        """Return the release that `edge run` serves."""
        lines = [one for one in self._run_log.read_text().splitlines() if " on " in one]
        return lines[-1].partition(" of ")[0] if lines else ""

    def block(self) -> None:
        """Take the way to the object store away."""
        new = self._store.with_name("blocked")
        new.touch()
        new.replace(self._store)

    def unblock(self) -> None:
        """Give the way back."""
        new = self._store.with_name("open")
        new.symlink_to(self._centre.store)
        new.replace(self._store)

    def kill(self) -> None:
        """Kill the process that decides, and start it again."""
        assert self._run is not None
        self._run.kill()
        self._run.wait()
        self.start_run()

    def _decide(self) -> None:
        """Have a purchase decided, until it is acknowledged, and then the next one."""
        for row in purchases(self._number, 0):
            if self._stopped.wait(0.05):
                return
            began_s = time.monotonic()
            while not self._acknowledge(row):
                if time.monotonic() - began_s > _WAIT_S:
                    return
                time.sleep(0.05)
            self.longest_s = max(self.longest_s, time.monotonic() - began_s)
            self.acknowledged.append(str(row["transaction_id"][0]).encode())

    def _acknowledge(self, row: dict[str, list[object]]) -> bool:
        address = self._address
        if not address:
            return False
        try:
            with Client(address, product="fraud", timeout_s=_TIMEOUT_S) as client:
                answer = client.decide(row)
        except ClientError:
            return False
        self.releases |= set(answer.release.tolist())
        return bool(answer.decision[0])

    def stop(self) -> None:
        """Stop the load and both processes; the journal is sealed then."""
        self._stopped.set()
        if self._load is not None:
            self._load.join()
        for one in (self._run, self._sync):
            if one is not None:
                one.send_signal(signal.SIGTERM)
                one.wait(timeout=_WAIT_S)
        self._logs.close()


class FleetResult(msgspec.Struct, frozen=True):
    """
    Result of a run.

    Attributes:
        online_s: Time from the end of `tollgate edge rollback` until each online device
            had the earlier release active.
        returned_s: The same for the others, from when the store was reachable again.
        served_s: Time from active to served, of each device.
        acknowledged: Decisions that were acknowledged.
        pushed: Records in the object store.
        lost: Acknowledged decisions without a record there.
        sealed: Records that `journal verify` counts.
        missing: Numbers without a record, of all writers.
        findings: Findings of `journal verify`.
        longest_s: Longest time from a purchase to its acknowledgement, with retries.
    """

    online_s: list[float]
    returned_s: list[float]
    served_s: list[float]
    acknowledged: int
    pushed: int
    lost: int
    sealed: int
    missing: int
    findings: int
    longest_s: float

    def fine(self, poll_s: float) -> bool:
        """Return whether nothing is lost, and every device came back in time."""
        in_time = max([*self.online_s, *self.returned_s]) <= poll_s + _PROCESSING_S
        counts = {self.acknowledged, self.pushed, self.sealed}
        return (
            in_time
            and len(counts) == 1
            and not (self.lost or self.missing or self.findings)
        )


def _until(state: Callable[[], bool], what: str) -> float:
    """Wait for a state; return how long it took, in seconds."""
    began_s = time.monotonic()
    while not state():
        if time.monotonic() - began_s > _WAIT_S:
            raise ServerError("the fleet", f"did not come to this: {what}")
        time.sleep(_LOOK_S)
    return time.monotonic() - began_s


def _times(
    devices: Sequence[FleetDevice], release: str
) -> tuple[list[float], list[float]]:
    """Wait for a release; return the times until active, and from there to served."""
    began_s = time.monotonic()
    active: dict[str, float] = {}
    served: dict[str, float] = {}

    def note() -> bool:
        now_s = time.monotonic() - began_s
        for one in devices:
            if one.name not in active and one.active == release:
                active[one.name] = now_s
            if one.name not in served and one.served == release:
                served[one.name] = now_s
        return len(active) == len(served) == len(devices)

    _until(note, f"{release} on {', '.join(one.name for one in devices)}")
    later = [max(0.0, served[name] - at_s) for name, at_s in active.items()]
    return list(active.values()), later


def run_fleet(
    folder: Path,
    *,
    devices: int,
    offline: int,
    poll_s: float,
    offline_s: float,
    kills: int,
) -> FleetResult:
    """
    Run the fleet once.

    Args:
        offline: Devices that lose their way to the object store.
        offline_s: Time for which they do.
        kills: Devices whose deciding process is killed meanwhile.
    """
    centre = Centre(folder)
    first, second = "fraud-1", "fraud-2"
    centre.release(centre.bundles[0])
    fleet = [FleetDevice(number, centre, poll_s=poll_s) for number in range(devices)]
    try:
        for one in fleet:
            one.start()
        _until(lambda: all(one.acknowledged for one in fleet), "each device decides")
        centre.release(centre.bundles[1])
        _times(fleet, second)
        say(f"{devices} devices run {second}")
        away, there = fleet[:offline], fleet[offline:]
        for one in away:
            one.block()
        centre.roll_back()
        online_s, served_s = _times(there, first)
        for one in fleet[:kills]:
            one.kill()
        time.sleep(offline_s)
        for one in away:
            assert one.active == second
            one.unblock()
        returned_s, later_s = _times(away, first)
        say(f"{devices} devices run {first} again")
        time.sleep(poll_s)
    finally:
        for one in fleet:
            one.stop()
    for one in fleet:
        one.sync_once()
        assert {first, second} <= one.releases
    acknowledged = [name for one in fleet for name in one.acknowledged]
    ids = centre.pushed_ids()
    verified = centre.seal()
    missing, findings = verified["missing"], verified["findings"]
    assert isinstance(missing, dict)
    assert isinstance(findings, list)
    return FleetResult(
        online_s=online_s,
        returned_s=returned_s,
        served_s=[*served_s, *later_s],
        acknowledged=len(acknowledged),
        pushed=len(ids),
        lost=len(set(acknowledged) - set(ids)),
        sealed=int(str(verified["records"])),
        missing=sum(missing.values()),
        findings=len(findings),
        longest_s=max(one.longest_s for one in fleet),
    )


def _range(times_s: Sequence[float]) -> str:
    return f"median {statistics.median(times_s):.2f} s, at most {max(times_s):.2f} s"


def measure(options: argparse.Namespace) -> Report:
    """Run the fleet, and describe the result."""
    with temporary_folder("fleet") as folder:
        found = run_fleet(
            folder,
            devices=options.devices,
            offline=round(options.devices * options.offline / 100),
            poll_s=options.poll,
            offline_s=options.seconds,
            kills=options.kills,
        )
    lines = [
        f"{hardware()}; commit {commit()}; `{options.command}`; load average "
        f"{os.getloadavg()[0]:.1f}",
        "",
        f"* a rollback is active on {len(found.online_s)} online devices: "
        f"{_range(found.online_s)} after the order",
        f"* on {len(found.returned_s)} devices that were offline: "
        f"{_range(found.returned_s)} after their return",
        f"* from active to served: {_range(found.served_s)}; longest time to an "
        f"acknowledgement, with retries {found.longest_s:.2f} s",
        f"* {found.acknowledged:,} decisions acknowledged, {found.pushed:,} records "
        f"pushed, {found.sealed:,} sealed; {found.lost} lost, {found.missing} missing, "
        f"{found.findings} findings of the verification",
    ]
    return Report("\n".join(lines), ok=found.fine(options.poll))


def main(arguments: Sequence[str]) -> int:
    """Run the load test; return its exit status."""
    parser = command_parser("edge.fleet")
    parser.add_argument("--devices", type=int, default=20)
    parser.add_argument("--offline", type=float, default=30.0, help="percent of them")
    parser.add_argument("--poll", type=float, default=5.0, help="seconds between polls")
    parser.add_argument("--seconds", type=float, default=60.0, help="time offline")
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--out", type=Path, help="file for the report")
    least = {"devices": 2, "offline": 1, "poll": 0.5, "seconds": 0, "kills": 0}
    return run_command(parser, arguments, measure=measure, least=least)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

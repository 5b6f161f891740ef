"""Find the Python stub processes of a running Triton, from /proc."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from tollgate.schema import public_name

_PROGRAM = "triton_python_backend_stub"
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
# Fields of /proc/PID/stat after the name in brackets, from 0: proc(5).
_STATE, _PARENT, _STARTED, _RESIDENT = 0, 1, 19, 21
_STAT_BYTES = 1024
_SCAN_EVERY_S, _CLEAR_EVERY_S = 1.0, 60.0


class Step(msgspec.Struct, frozen=True, order=True):
    """One instance of one version of a Python step, which a stub runs."""

    model: str
    version: int
    instance: str


class Stub(msgspec.Struct, frozen=True):
    """
    A process that runs an instance of a Python step.

    Attributes:
        step: The instance that it runs.
        stopped: True if a signal stopped it: it lives and does nothing. A process that
            a debugger holds does not count.
        age_s: Seconds since its start.
        resident_bytes: Its resident memory, bytes.
    """

    pid: int
    step: Step
    stopped: bool
    age_s: float
    resident_bytes: int


def find_stubs(server_pid: int, *, proc: Path = Path("/proc")) -> list[Stub]:
    """List the living stubs of a tritonserver; zombies count as dead."""
    uptime_s = float((proc / "uptime").read_text().split()[0])
    found = (_stub(proc / str(pid), server_pid, uptime_s) for pid in _children(proc))
    return [stub for stub in found if stub is not None]


class StubWatch:
    """
    Follow the stubs of a server several times a second, at little cost.

    Each poll reads the state of the known stubs, through files that stay open. Once a
    second it reads the list of processes, and examines only the new ones.
    """

    def __init__(self, *, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._server_pid = 0
        self._known: dict[int, Stub] = {}
        self._files: dict[int, int] = {}  # process id to its open stat file
        self._others: set[str] = set()  # processes that are not stubs of this server
        self._scanned_s = self._cleared_s = 0.0

    def poll(self, server_pid: int) -> list[Stub]:
        """List the living stubs; a new one appears in the list within a second."""
        now_s = time.monotonic()
        if server_pid != self._server_pid or now_s - self._scanned_s >= _SCAN_EVERY_S:
            return self.scan(server_pid)
        self._poll_known(uptime_s=None)
        return list(self._known.values())

    def scan(self, server_pid: int) -> list[Stub]:
        """List the living stubs, including new ones."""
        now_s = time.monotonic()
        if server_pid != self._server_pid:
            self.close()
            self._server_pid = server_pid
        if now_s - self._cleared_s >= _CLEAR_EVERY_S:
            self._others.clear()  # their process ids may belong to other processes now
            self._cleared_s = now_s
        self._scanned_s = now_s
        uptime_s = float((self._proc / "uptime").read_text().split()[0])
        names = {name for name in os.listdir(self._proc) if name.isdigit()}
        self._others &= names
        self._poll_known(uptime_s)
        for name in names - self._others - {str(pid) for pid in self._known}:
            self._examine_new(int(name), uptime_s)
        return list(self._known.values())

    def _poll_known(self, uptime_s: float | None) -> None:
        """Remove dead stubs; with an uptime, update age and memory of the others."""
        for pid, file in list(self._files.items()):
            known = self._known[pid]
            try:
                fields = _fields(os.pread(file, _STAT_BYTES, 0).decode())
            except (OSError, IndexError):
                self._forget(pid)
                continue
            stopped = fields[_STATE] == "T"
            if fields[_STATE] in "ZX":
                self._forget(pid)
            elif uptime_s is not None:
                age_s, resident_bytes = _age_and_memory(fields, uptime_s)
                self._known[pid] = msgspec.structs.replace(
                    known, stopped=stopped, age_s=age_s, resident_bytes=resident_bytes
                )
            elif stopped != known.stopped:
                self._known[pid] = msgspec.structs.replace(known, stopped=stopped)

    def _examine_new(self, pid: int, uptime_s: float) -> None:
        try:
            file = os.open(f"{self._proc}/{pid}/stat", os.O_RDONLY)
        except OSError:
            return  # the process ended meanwhile
        try:
            fields = _fields(os.pread(file, _STAT_BYTES, 0).decode(errors="replace"))
            stub = None
            if int(fields[_PARENT]) == self._server_pid:
                # It may still become a stub: Triton forks it before the program starts.
                stub = _stub(self._proc / str(pid), self._server_pid, uptime_s)
            else:
                self._others.add(str(pid))
        except (OSError, IndexError, ValueError):
            stub = None
        if stub is None:
            os.close(file)
        else:
            self._files[pid], self._known[pid] = file, stub

    def _forget(self, pid: int) -> None:
        self._known.pop(pid, None)
        file = self._files.pop(pid, None)
        if file is not None:
            os.close(file)

    def close(self) -> None:
        """Close the files of all processes."""
        for pid in list(self._files):
            self._forget(pid)
        self._others.clear()


def _fields(stat: str) -> list[str]:
    """Split the text of a stat file into the fields after the process name."""
    return stat.rpartition(")")[2].split()


def _age_and_memory(fields: list[str], uptime_s: float) -> tuple[float, int]:
    age_s = max(0.0, uptime_s - int(fields[_STARTED]) / _TICKS_PER_S)
    return age_s, int(fields[_RESIDENT]) * _PAGE_BYTES


def is_configured(step: Step, running: Mapping[str, Any]) -> bool:
    """
    Return whether a running configuration has an instance.

    Args:
        step: The instance; on a model with GPU instances it is assumed to be
            configured.
        running: Configuration that its model runs with, in Triton's field names.
    """
    groups = running.get("instance_group", [])
    if any(group.get("kind") != "KIND_CPU" for group in groups):
        return True
    return step.instance in {
        f"{group['name']}_{number}"
        for group in groups
        for number in range(int(group["count"]))
    }


def _children(proc: Path) -> Iterator[int]:
    return (int(name) for name in os.listdir(proc) if name.isdigit())


def _stub(process: Path, server_pid: int, uptime_s: float) -> Stub | None:
    try:
        stat = _fields((process / "stat").read_text())
        if int(stat[_PARENT]) != server_pid or stat[_STATE] in "ZX":
            return None
        words = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
    except (OSError, IndexError, ValueError):
        return None  # the process ended meanwhile
    # PROGRAM REPOSITORY/MODEL/VERSION/FILE REGION … INSTANCE BACKEND
    if not words[0].endswith(_PROGRAM) or len(words) < 5:
        return None
    version = Path(words[1]).parent
    if not version.name.isdigit():
        return None
    age_s, resident_bytes = _age_and_memory(stat, uptime_s)
    return Stub(
        pid=int(process.name),
        step=Step(
            model=public_name(version.parent.name),
            version=int(version.name),
            instance=[word for word in words if word][-2],
        ),
        stopped=stat[_STATE] == "T",
        age_s=age_s,
        resident_bytes=resident_bytes,
    )

"""The Python steps of a running Triton, out of /proc."""

from __future__ import annotations

import os
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


class Step(msgspec.Struct, frozen=True, order=True):
    """One instance of one version of a Python step; what a stub stands for."""

    model: str
    version: int
    instance: str


class Stub(msgspec.Struct, frozen=True):
    """
    A process that runs an instance of a Python step.

    Attributes:
        pid: Its process id.
        step: What it runs.
        stopped: Whether a signal stopped it: it lives and does nothing. One that a
            debugger holds is not.
        age_s: Since its start.
        resident_bytes: Its resident memory.
    """

    pid: int
    step: Step
    stopped: bool
    age_s: float
    resident_bytes: int


def find_stubs(server_pid: int, *, proc: Path = Path("/proc")) -> list[Stub]:
    """
    List the living stubs of a tritonserver; zombies are dead.

    Args:
        server_pid: The server's process id.
        proc: Where the kernel shows processes.
    """
    uptime_s = float((proc / "uptime").read_text().split()[0])
    found = (_stub(proc / str(pid), server_pid, uptime_s) for pid in _children(proc))
    return [stub for stub in found if stub is not None]


def is_meant(step: Step, running: Mapping[str, Any]) -> bool:
    """
    Tell whether a running configuration has an instance.

    Args:
        step: The instance; of a GPU's it is taken for granted.
        running: The configuration of its model, Triton's own field names.
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
        stat = (process / "stat").read_text().rpartition(")")[2].split()
        if int(stat[_PARENT]) != server_pid or stat[_STATE] in "ZX":
            return None
        words = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
    except (OSError, IndexError, ValueError):
        return None  # it ended while we looked
    # PROGRAM REPOSITORY/MODEL/VERSION/FILE REGION … INSTANCE BACKEND
    if not words[0].endswith(_PROGRAM) or len(words) < 5:
        return None
    version = Path(words[1]).parent
    if not version.name.isdigit():
        return None
    return Stub(
        pid=int(process.name),
        step=Step(
            model=public_name(version.parent.name),
            version=int(version.name),
            instance=[word for word in words if word][-2],
        ),
        stopped=stat[_STATE] == "T",
        age_s=max(0.0, uptime_s - int(stat[_STARTED]) / _TICKS_PER_S),
        resident_bytes=int(stat[_RESIDENT]) * _PAGE_BYTES,
    )

"""Read processor time and memory of every serving process from /proc."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
# Fields of /proc/PID/stat after the name in brackets, from 0: proc(5).
_USER, _SYSTEM, _THREADS, _RESIDENT = 11, 12, 17, 21


class Process(msgspec.Struct, frozen=True):
    """
    Resources that a process has used so far.

    Attributes:
        process: tritonserver, redis-server, supervisor, or the name of a model.
        product: Product of the model; empty for a process that all products share.
        instance: Instance of the model; empty for a process that is not a model's.
    """

    process: str
    product: str
    instance: str
    cpu_s: float
    resident_bytes: int
    threads: int


def read_processes(
    pids: Iterator[tuple[int, str, str, str]], *, proc: Path = Path("/proc")
) -> list[Process]:
    """
    Read the resources of processes; skip one that has ended.

    Args:
        pids: Process id, and the name, product and instance to report it under.
        proc: Folder in which the kernel shows processes.
    """
    found: list[Process] = []
    for pid, process, product, instance in pids:
        try:
            stat = (proc / str(pid) / "stat").read_text().rpartition(")")[2].split()
            found.append(
                Process(
                    process=process,
                    product=product,
                    instance=instance,
                    cpu_s=(int(stat[_USER]) + int(stat[_SYSTEM])) / _TICKS_PER_S,
                    resident_bytes=int(stat[_RESIDENT]) * _PAGE_BYTES,
                    threads=int(stat[_THREADS]),
                )
            )
        except (OSError, IndexError, ValueError):
            continue  # the process ended meanwhile
    return found

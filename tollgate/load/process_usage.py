"""Read memory and processor time of the server's processes."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

import msgspec

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Use(msgspec.Struct, frozen=True):
    """
    Memory and processor time of several processes together.

    Attributes:
        pss_mb: Memory, a page that n share counted 1/n to each (10^6 bytes).
        rss_mb: Memory, shared pages counted in full by each (10^6 bytes).
        cpu_s: Processor time since they started.
        own_mb: The part of pss_mb that belongs to no file: a leak shows there, also
            when other processes share the libraries.
    """

    processes: int
    pss_mb: float
    rss_mb: float
    cpu_s: float
    own_mb: float = 0.0


def use_of(roots: Iterable[int]) -> Use:
    """Add up processes, given by their ids, and their descendants."""
    held = [use for pid in descendants(roots) if (use := _use_of_one(pid))]
    return Use(
        processes=len(held),
        pss_mb=sum(use.pss_mb for use in held),
        rss_mb=sum(use.rss_mb for use in held),
        cpu_s=sum(use.cpu_s for use in held),
        own_mb=sum(use.own_mb for use in held),
    )


def descendants(roots: Iterable[int]) -> list[int]:
    """List processes and their descendants, as of now."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int(_stat(int(entry.name))[1])
            except (FileNotFoundError, ProcessLookupError):
                continue  # the process has just ended
            children.setdefault(parent, []).append(int(entry.name))
    found = list(roots)
    for pid in found:
        found.extend(children.get(pid, ()))
    return found


def _stat(pid: int) -> list[str]:
    """Read /proc/PID/stat from field 3 on; the second may contain anything."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _use_of_one(pid: int) -> Use | None:
    """Read one process; None when it has ended, as Redis's forks soon do."""
    try:
        fields = _stat(pid)
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    kb = dict(re.findall(r"^(Pss|Pss_Anon|Rss):\s+(\d+) kB$", text, re.MULTILINE))
    if not kb:
        return None
    return Use(
        processes=1,
        pss_mb=int(kb["Pss"]) * 1024 / 1e6,
        rss_mb=int(kb["Rss"]) * 1024 / 1e6,
        own_mb=int(kb["Pss_Anon"]) * 1024 / 1e6,
        cpu_s=(int(fields[11]) + int(fields[12])) / _TICKS_PER_S,
    )

"""Describe where a figure was measured: time, commit, machine."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from collections import Counter
from datetime import datetime, timezone
from pathlib import Path

_CHECKOUT = Path(__file__).resolve().parents[2]


def measured_on() -> str:
    """Describe machine, commit and time in one line."""
    date = datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    return f"{date}, commit {commit()}, {hardware()}"


def hardware() -> str:
    """Describe this machine in one line."""
    return hardware_of(
        Path("/proc/cpuinfo").read_text(), Path("/proc/meminfo").read_text()
    )


def hardware_of(cpuinfo: str, meminfo: str) -> str:
    """Summarize /proc/cpuinfo and /proc/meminfo in one line."""
    models = Counter(re.findall(r"^model name\s*: (.+)$", cpuinfo, re.MULTILINE))
    memory = re.search(r"^MemTotal:\s*(\d+) kB$", meminfo, re.MULTILINE)
    parts = [f"{count} x {model}" for model, count in models.items()]
    if memory:
        parts.append(f"{int(memory[1]) / 2**20:.0f} GiB of memory")
    if "hypervisor" in cpuinfo.split():
        parts.append("virtual")
    usable = len(os.sched_getaffinity(0))
    if usable != sum(models.values()):
        parts.append(f"{usable} usable")
    return ", ".join([*parts, f"Linux {platform.release()}"])


def commit() -> str:
    """Return the short hash of this checkout; "+ changes" when its tree differs."""
    head = _git("rev-parse", "--short", "HEAD")
    return f"{head} + changes" if _git("status", "--porcelain") else head


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(_CHECKOUT), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError:
        return "not known"
    return done.stdout.strip() if done.returncode == 0 else "not known"

"""Describe where a figure was measured: machine, commit, versions."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from collections import Counter
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec

from tollgate.server.serving.embedded import Embedded

CHECKOUT = Path(__file__).resolve().parents[2]


class MeasurementConditions(msgspec.Struct, frozen=True):
    """
    Conditions under which a figure was measured.

    Attributes:
        date: Time in UTC, to the minute.
        commit: Short hash; "+ changes" when the tree differs from it.
        hardware: Description of the machine.
        versions: Program -> version.
    """

    date: str
    commit: str
    hardware: str
    versions: dict[str, str]


def measurement_conditions(server: Embedded, *, h2load: str) -> MeasurementConditions:
    """
    Describe this machine and what runs on it.

    Args:
        server: The running product.
        h2load: Version of h2load.
    """
    import redis

    with redis.Redis.from_url(server.store_url) as store:
        store_version = str(store.info("server")["redis_version"])
    return MeasurementConditions(
        date=datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        commit=_commit(),
        hardware=_hardware(),
        versions={
            "tollgate": version("tollgate"),
            "Triton": _triton_version(server.grpc_url),
            "onnxruntime": version("onnxruntime"),
            "Redis": store_version,
            "Python": platform.python_version(),
            "h2load": h2load,
        },
    )


def measured_with(server: Embedded) -> str:
    """Describe machine, commit, time and versions in one line."""
    around = measurement_conditions(server, h2load="")
    versions = ", ".join(
        f"{name} {value}" for name, value in around.versions.items() if value
    )
    return f"{around.date}, commit {around.commit}, {around.hardware}; {versions}"


def measured_on() -> str:
    """Describe machine, commit and time in one line."""
    date = datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    return f"{date}, commit {_commit()}, {_hardware()}"


def _hardware() -> str:
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


def _commit() -> str:
    head = _git("rev-parse", "--short", "HEAD")
    return f"{head} + changes" if _git("status", "--porcelain") else head


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(CHECKOUT), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError:
        return "not known"
    return done.stdout.strip() if done.returncode == 0 else "not known"


def _triton_version(grpc_url: str) -> str:
    from tritonclient.grpc import InferenceServerClient

    with InferenceServerClient(grpc_url) as client:
        metadata: Any = client.get_server_metadata()
    return str(metadata.version)

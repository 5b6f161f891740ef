"""Describe where a figure was measured: machine, commit, versions."""

from __future__ import annotations

import platform
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec

from tollgate.load.surroundings import commit, hardware
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
        h2load: Version of h2load.
    """
    import redis

    with redis.Redis.from_url(server.store_url) as store:
        store_version = str(store.info("server")["redis_version"])
    return MeasurementConditions(
        date=datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        commit=commit(),
        hardware=hardware(),
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


def _triton_version(grpc_url: str) -> str:
    from tritonclient.grpc import InferenceServerClient

    with InferenceServerClient(grpc_url) as client:
        metadata: Any = client.get_server_metadata()
    return str(metadata.version)

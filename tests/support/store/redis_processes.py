"""Redis processes with settings of the test's own."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from tollgate.server.processes.child import Child

REDIS = "redis-server"  # of Debian and Ubuntu


def system_redis() -> Path:
    """Find the system's redis-server, for a test that is marked to need it."""
    # An environment of pip's may have one too, which speaks no TLS.
    found = shutil.which(REDIS, path=f"/usr/bin:{os.environ.get('PATH', '')}")
    assert found is not None
    return Path(found)


def free_ports(count: int) -> list[int]:
    """Find ports that are free, and so are the ones 10,000 higher: a cluster's bus."""
    found: list[int] = []
    with contextlib.ExitStack() as stack:
        while len(found) < count:
            one = stack.enter_context(socket.socket())
            one.bind(("127.0.0.1", 0))
            port = one.getsockname()[1]
            if port > 55_000:
                continue
            other = stack.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                other.bind(("127.0.0.1", port + 10_000))
                found.append(port)
    return found


@contextlib.contextmanager
def running(
    binary: Path, folder: Path, *, port: int, options: Mapping[str, str]
) -> Iterator[Child]:
    """Run a Redis with these options until the context ends; it keeps nothing."""
    folder.mkdir(parents=True, exist_ok=True)
    usual = {
        "dir": str(folder),
        "bind": "127.0.0.1",
        "save": "",
        "appendonly": "no",
        "daemonize": "no",
        "set-proc-title": "no",
    }
    flags = [
        part
        for name, value in (usual | dict(options)).items()
        for part in (f"--{name}", value)
    ]
    child = Child(
        [str(binary), *flags],
        name="redis-server",
        env={"PATH": os.defpath, "LC_ALL": "C"},
        log=folder / "redis.log",
    )
    try:
        until = time.monotonic() + 600
        while not _listens(port):
            assert child.alive(), (folder / "redis.log").read_text()
            assert time.monotonic() < until, "redis-server does not listen"
            time.sleep(0.01)
        yield child
    finally:
        child.stop(grace_s=5)


def _listens(port: int) -> bool:
    with socket.socket() as peer:
        peer.settimeout(1.0)
        return peer.connect_ex(("127.0.0.1", port)) == 0

"""Start a service of the baseline, with one worker or several, and its own Redis."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec

from loadtests.baseline.environment import (
    FOLDER_VARIABLE,
    MODEL_VARIABLE,
    REPOSITORY_VARIABLE,
)
from loadtests.results.surroundings import CHECKOUT
from tollgate.errors import ServerError
from tollgate.schema import STORE_URL_VARIABLE
from tollgate.server.processes.child import Child
from tollgate.server.processes.environment import free_port
from tollgate.server.processes.listening_ports import listens
from tollgate.server.processes.redis_server import EmbeddedRedis

_START_S = 60.0
_GRACE_S = 10.0
LOG = "service.log"


class Service(msgspec.Struct, frozen=True):
    """
    A running service.

    Attributes:
        name: Its stage: naive, phase1, lean or gathered.
        url: "host:port", HTTP/1.1.
        folder: Folder of its files.
        workers: Its worker processes.
    """

    name: str
    url: str
    folder: Path
    workers: tuple[Child, ...]


@contextmanager
def served(
    name: str, redis: EmbeddedRedis, *, repository: Path, model: Path, folder: Path
) -> Iterator[Service]:
    """
    Serve one stage until the context ends.

    Args:
        name: Name of the stage, as in Service.
        redis: Its store, filled in the layout of the service.
        repository: The model repository.
        model: The model as XGBoost's JSON; the first two load it.
        folder: Folder for its files.

    Raises:
        ServerError: It does not start.
    """
    port = free_port()
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(CHECKOUT), *sys.path]),
        STORE_URL_VARIABLE: redis.url,
        FOLDER_VARIABLE: str(folder),
        MODEL_VARIABLE: str(model),
        REPOSITORY_VARIABLE: str(repository),
    }
    app = f"loadtests.baseline.{name}.app:app"
    with ExitStack() as stack:
        workers = []
        for _ in range(_processes(name)):
            worker = Child(
                [sys.executable, "-m", "loadtests.baseline.worker", app, str(port)],
                name=f"baseline {name}",
                env=environment,
                log=folder / LOG,
            )
            stack.callback(worker.stop, grace_s=_GRACE_S)
            workers.append(worker)
        for worker in workers:
            _wait(worker, port, folder / LOG)
        yield Service(name, f"127.0.0.1:{port}", folder, tuple(workers))


def _processes(name: str) -> int:
    """
    Return the number of workers: one for the first two, one per core for the others.
    """
    return 1 if name in ("naive", "phase1") else len(os.sched_getaffinity(0))


def _wait(worker: Child, port: int, log: Path) -> None:
    """Wait until a worker listens, which it does when its application is ready."""
    until_s = time.monotonic() + _START_S
    while time.monotonic() < until_s and worker.alive():
        if listens(worker.pid, port):
            return
        time.sleep(0.02)
    raise ServerError(worker.name, "did not start", log=log.read_text()[-2000:])

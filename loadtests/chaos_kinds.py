"""The faults of a server, and how each is injected."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from loadtests.processes import descendants
from loadtests.proxy import Proxy
from tollgate.errors import ServerError, SetupError
from tollgate.schema import public_name
from tollgate.server.embedded import Embedded

PRODUCT = "fraud"
SLOW_S = 0.1
_LOCKED_S = 30.0
_ENDING_S = 3.0  # for a server that fails to write its last log lines
_FEATURES = "fraud_features"
_STUB = "triton_python_backend_stub"


class Trouble(msgspec.Struct, frozen=True):
    """
    A fault.

    Attributes:
        name: Name of the fault in `--only`.
        words: Description for the table.
        servers: Number of addresses that the client has.
    """

    name: str
    words: str
    servers: int = 1


class Place(msgspec.Struct, frozen=True):
    """The server and the proxy that get the fault."""

    server: Embedded
    repository: Path
    proxy: Proxy


TROUBLES = (
    Trouble("none", "no trouble"),
    Trouble("killed", "the server is killed (SIGKILL), and started again"),
    Trouble("stub", "the feature step's process is killed, and the step loaded again"),
    Trouble("stalled", "the server stands still (SIGSTOP), and goes on"),
    Trouble("slow", "one of two addresses answers 100 ms later", servers=2),
)


def _nothing(place: Place) -> None:
    """Do nothing."""


def _kill_server(place: Place) -> None:
    os.kill(place.server.triton.pid, signal.SIGKILL)


def _start_server(place: Place) -> None:
    place.server.triton.stop()
    until_s = time.monotonic() + _LOCKED_S
    while True:
        try:
            place.server.triton.__enter__()
            break
        except SetupError:
            # The steps' processes hold the lock until they see their parent gone.
            if time.monotonic() > until_s:
                raise
            time.sleep(0.1)
    place.server.serving[PRODUCT].again()


def _kill_stub(place: Place) -> None:
    (stub,) = _stubs_of(place.server.triton.pid, model=_FEATURES)
    os.kill(stub, signal.SIGKILL)


def _load_step(place: Place) -> None:
    """
    Restart the step, as a supervisor does.

    A step that is killed while it holds the lock of the memory that it shares with the
    server takes the server with it (docs/supervisor.md), at the next call, which may be
    this one; then the server is started.
    """
    try:
        place.server.serving[PRODUCT].renew(_FEATURES)
    except ServerError:
        until_s = time.monotonic() + _ENDING_S
        while place.server.triton.alive():
            if time.monotonic() > until_s:
                raise
            time.sleep(0.02)
        _start_server(place)


def _stop_server(place: Place) -> None:
    os.kill(place.server.triton.pid, signal.SIGSTOP)


def _continue_server(place: Place) -> None:
    os.kill(place.server.triton.pid, signal.SIGCONT)


def _slow_down(place: Place) -> None:
    place.proxy.order(f"slow {SLOW_S}")


def _speed_up(place: Place) -> None:
    place.proxy.order("pass")


# Fault -> functions that begin and end it.
ORDERS: dict[str, tuple[Callable[[Place], None], Callable[[Place], None]]] = {
    "none": (_nothing, _nothing),
    "killed": (_kill_server, _start_server),
    "stub": (_kill_stub, _load_step),
    "stalled": (_stop_server, _continue_server),
    "slow": (_slow_down, _speed_up),
}


def _stubs_of(pid: int, *, model: str) -> list[int]:
    """
    Find the processes that run a Python step.

    Raises:
        ServerError: There is no such process.
    """
    found = list(_stubs(pid, model=model))
    if not found:
        raise ServerError(model, "no process of this step was found")
    return found


def _stubs(pid: int, *, model: str) -> Iterator[int]:
    for child in descendants([pid]):
        words = Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")
        # Our server serves the step under a private name.
        named = any(f"/{model}/" in public_name(word.decode()) for word in words)
        if words[0].endswith(_STUB.encode()) and named:
            yield child

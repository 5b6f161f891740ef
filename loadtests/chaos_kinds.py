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


class ServerFault(msgspec.Struct, frozen=True):
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


class ChaosBench(msgspec.Struct, frozen=True):
    """The server and the proxy that get the fault."""

    server: Embedded
    repository: Path
    proxy: Proxy


SERVER_FAULTS = (
    ServerFault("none", "no fault"),
    ServerFault("killed", "the server is killed (SIGKILL), and started again"),
    ServerFault(
        "stub", "the feature step's process is killed, and the step loaded again"
    ),
    ServerFault("stalled", "the server stands still (SIGSTOP), and goes on"),
    ServerFault("slow", "one of two addresses answers 100 ms later", servers=2),
)


def _nothing(bench: ChaosBench) -> None:
    """Do nothing."""


def _kill_server(bench: ChaosBench) -> None:
    os.kill(bench.server.triton.pid, signal.SIGKILL)


def _start_server(bench: ChaosBench) -> None:
    bench.server.triton.stop()
    until_s = time.monotonic() + _LOCKED_S
    while True:
        try:
            bench.server.triton.__enter__()
            break
        except SetupError:
            # The steps' processes hold the lock until they see their parent gone.
            if time.monotonic() > until_s:
                raise
            time.sleep(0.1)
    bench.server.serving[PRODUCT].again()


def _kill_stub(bench: ChaosBench) -> None:
    (stub,) = _stubs_of(bench.server.triton.pid, model=_FEATURES)
    os.kill(stub, signal.SIGKILL)


def _load_step(bench: ChaosBench) -> None:
    """
    Restart the step, as a supervisor does.

    A step that is killed while it holds the lock of the memory that it shares with the
    server takes the server with it (docs/supervisor.md), at the next call, which may be
    this one; then the server is started.
    """
    try:
        bench.server.serving[PRODUCT].renew(_FEATURES)
    except ServerError:
        until_s = time.monotonic() + _ENDING_S
        while bench.server.triton.alive():
            if time.monotonic() > until_s:
                raise
            time.sleep(0.02)
        _start_server(bench)


def _stop_server(bench: ChaosBench) -> None:
    os.kill(bench.server.triton.pid, signal.SIGSTOP)


def _continue_server(bench: ChaosBench) -> None:
    os.kill(bench.server.triton.pid, signal.SIGCONT)


def _slow_down(bench: ChaosBench) -> None:
    bench.proxy.order(f"slow {SLOW_S}")


def _speed_up(bench: ChaosBench) -> None:
    bench.proxy.order("pass")


# Fault -> functions that begin and end it.
INJECTIONS: dict[
    str, tuple[Callable[[ChaosBench], None], Callable[[ChaosBench], None]]
] = {
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

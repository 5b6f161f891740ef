"""The faults of a store, and how each is injected."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import msgspec

from loadtests.fault_table import StoreFault
from loadtests.proxy import Proxy
from loadtests.repaired import ReferenceStore
from loadtests.traffic import Traffic
from tollgate.server.embedded import Embedded
from tollgate.server.redis import EmbeddedRedis


class FaultBench(msgspec.Struct, frozen=True):
    """The server and the store that get the faults, and the store that does not."""

    server: Embedded
    redis: EmbeddedRedis
    proxy: Proxy | None
    traffic: Traffic
    fault_s: float
    spool: Path
    reference: ReferenceStore


def _nothing(bench: FaultBench) -> None:
    """Do nothing."""


def _kill(bench: FaultBench) -> None:
    os.kill(bench.redis.pid, signal.SIGKILL)


def _shut_down(bench: FaultBench) -> None:
    bench.redis.stop()


def _start_again(bench: FaultBench) -> None:
    bench.redis.stop()
    bench.redis.__enter__()


def _stop_process(bench: FaultBench) -> None:
    os.kill(bench.redis.pid, signal.SIGSTOP)


def _continue_process(bench: FaultBench) -> None:
    os.kill(bench.redis.pid, signal.SIGCONT)


def _pause(bench: FaultBench) -> None:
    import redis

    with redis.Redis.from_url(bench.redis.url) as client:
        # It ends on its own: a paused Redis refuses CLIENT UNPAUSE, too.
        client.execute_command("CLIENT", "PAUSE", round(bench.fault_s * 1e3), "ALL")


def _order(text: str) -> Callable[[FaultBench], None]:
    def give(bench: FaultBench) -> None:
        assert bench.proxy is not None
        bench.proxy.order(text)

    return give


FAULTS = (
    StoreFault("none", "no fault", behind_proxy=False),
    StoreFault("stopped", "Redis is shut down, and started again", behind_proxy=False),
    StoreFault(
        "killed", "Redis is killed (SIGKILL), and started again", behind_proxy=False
    ),
    StoreFault("hung", "Redis hangs (SIGSTOP)", behind_proxy=False),
    StoreFault(
        "paused", "Redis takes no commands (`CLIENT PAUSE`)", behind_proxy=False
    ),
    StoreFault("proxied", "no fault, behind the proxy", behind_proxy=True),
    StoreFault("slow", "every answer takes 50 ms more", behind_proxy=True),
    StoreFault("cut", "every answer is cut off half-way", behind_proxy=True),
)
# Fault -> functions that begin and end it.
INJECTIONS: dict[
    str, tuple[Callable[[FaultBench], None], Callable[[FaultBench], None]]
] = {
    "none": (_nothing, _nothing),
    "stopped": (_shut_down, _start_again),
    "killed": (_kill, _start_again),
    "hung": (_stop_process, _continue_process),
    "paused": (_pause, _nothing),
    "proxied": (_nothing, _nothing),
    "slow": (_order("slow 0.05"), _order("pass")),
    "cut": (_order("cut"), _order("pass")),
}

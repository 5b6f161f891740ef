"""
Results that callers of a client see under faults: `python -m loadtests.chaos`.

For each fault: calls of one purchase at a steady pace; the fault begins after a
quarter of them and ends after three fifths. Prints the table of docs/clients.md.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from loadtests.harness import (
    REPOSITORY,
    Population,
    Report,
    StoreContents,
    command_parser,
    run_command,
    say,
    serve_filled,
    temporary_folder,
)
from loadtests.results.markdown import markdown_table
from loadtests.results.percentiles import percentile
from loadtests.results.surroundings import measured_with
from loadtests.servers.proxy import Proxy
from tollgate.errors import ServerError, SetupError
from tollgate.load.process_usage import descendants
from tollgate.load.traffic import Traffic
from tollgate.schema import public_name
from tollgate.server.processes.environment import free_port
from tollgate.server.serving.embedded import Embedded
from tollgate_client import (
    AsyncDecisionClient,
    Band,
    Decision,
    DecisionClient,
    Fallback,
    Options,
)

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


def start_server(server: Embedded, *, product: str) -> None:
    """Start a server that ended, with what it served of a product."""
    server.triton.stop()
    until_s = time.monotonic() + _LOCKED_S
    while True:
        try:
            server.triton.__enter__()
            break
        except SetupError:
            # The steps' processes hold the lock until they see their parent gone.
            if time.monotonic() > until_s:
                raise
            time.sleep(0.1)
    server.serving[product].again()


def kill_step(server: Embedded, step: str) -> None:
    """
    Kill the process of a Python step (SIGKILL).

    Raises:
        ServerError: There is no such process.
    """
    (stub,) = _stubs_of(server.triton.pid, model=step)
    os.kill(stub, signal.SIGKILL)


def restart_step(server: Embedded, step: str, *, product: str) -> None:
    """
    Restart a step, as a supervisor does.

    A step that is killed while it holds the lock of the memory that it shares with the
    server takes the server with it (docs/supervisor.md), at the next call, which may be
    this one; then the server is started.
    """
    try:
        server.serving[product].renew(step)
    except ServerError:
        until_s = time.monotonic() + _ENDING_S
        while server.triton.alive():
            if time.monotonic() > until_s:
                raise
            time.sleep(0.02)
        start_server(server, product=product)


def _start_server(bench: ChaosBench) -> None:
    start_server(bench.server, product=PRODUCT)


def _kill_stub(bench: ChaosBench) -> None:
    kill_step(bench.server, _FEATURES)


def _load_step(bench: ChaosBench) -> None:
    restart_step(bench.server, _FEATURES, product=PRODUCT)


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


GRACE_S = 0.005
SOURCES = ("model", "cached", "fallback")


class Calls(msgspec.Struct, frozen=True, eq=False):
    """
    Results of N calls.

    Attributes:
        latency_s: Time from the call to its answer; infinite without one; float64 [N].
        source: Index in SOURCES; -1 without an answer; int8 [N].
        fault_start: Number of the first call after the fault began.
        fault_end: Number of the first call after the fault ended.
        load: Load average of the machine in the last minute.
    """

    latency_s: npt.NDArray[np.float64]
    source: npt.NDArray[np.int8]
    fault_start: int
    fault_end: int
    load: float


def to_markdown(
    rows: Sequence[tuple[ServerFault, Calls]], description: str, *, deadline_s: float
) -> str:
    """Write the table, and under it a description of the measurement."""
    head = (
        *("fault", "calls", "answered", f"within {deadline_s * 1e3:g} + 5 ms"),
        *("p50 ms", "p99 ms", "p99.9 ms", "maximum ms"),
        *("model", "cached", "fallback", "of these during the fault: model"),
        "load average",
    )
    cells = [_cells(fault, calls, deadline_s=deadline_s) for fault, calls in rows]
    return "\n".join([*markdown_table(head, cells), "", description, ""])


def _cells(fault: ServerFault, calls: Calls, *, deadline_s: float) -> list[str]:
    count = len(calls.source)
    inside = calls.latency_s <= deadline_s + GRACE_S
    us = np.sort(np.minimum(calls.latency_s * 1e6, 2.0**53).astype(np.int64))
    during = calls.source[calls.fault_start : calls.fault_end]
    return [
        fault.words,
        str(count),
        _share(calls.source >= 0),
        _share(inside),
        *(f"{percentile(us, part) / 1e3:.1f}" for part in (50, 99, 99.9, 100)),
        *(_share(calls.source == number) for number in range(len(SOURCES))),
        _share(during == 0) if len(during) else "none",
        f"{calls.load:.1f}",
    ]


def _share(chosen: npt.NDArray[np.bool_]) -> str:
    """Format a share in per cent; 100 % only for all."""
    if not len(chosen):
        return "none"
    hundredths = int(chosen.sum() * 10_000 // len(chosen))
    return f"{hundredths / 100:g} %"


RULE = Fallback(bands=(Band(below=50, decision="approve"),), otherwise="review")
_BEGINS, _ENDS = 0.25, 0.6  # shares of all calls
_AGAIN, _BEFORE = 20, 40  # each 20th call repeats the purchase of the 40th before it
_THREADS = 64
_CONNECT_S = 10.0
_WARM_CALLS = 200  # not counted
_MOST_LONGER = 10  # times the requested calls, until the model is back

Ask = Callable[[dict[str, object]], Awaitable[tuple[Decision, float]]]


def main(arguments: Sequence[str]) -> int:
    """Inject every fault, and print or write the table."""
    parser = command_parser("chaos")
    add = parser.add_argument
    add("--calls", type=int, default=10_000)
    add("--rate", type=float, default=200.0, help="calls per second")
    add("--deadline-ms", type=float, default=50.0)
    add("--client", choices=["async", "sync"], default="async")
    names = [fault.name for fault in SERVER_FAULTS]
    add("--only", choices=names, help="one fault")
    add("--out", type=Path, help="Markdown here")

    def measure(options: argparse.Namespace) -> Report:
        deadline_s = options.deadline_ms / 1e3
        return Report(to_markdown(*run_all(options), deadline_s=deadline_s))

    return run_command(parser, arguments, measure=measure)


def run_all(options: argparse.Namespace) -> tuple[list[tuple[ServerFault, Calls]], str]:
    """
    Serve the product, inject faults, and call it all the while.

    Returns:
        The calls of each fault, and a description of the measurement.
    """
    rows = []
    description = ""
    with _open_bench() as (bench, traffic):
        for fault in SERVER_FAULTS:
            if options.only not in (None, fault.name):
                continue
            description = description or _description(bench, options)
            first = len(rows) * (_MOST_LONGER * options.calls + _WARM_CALLS)
            calls = asyncio.run(_run(bench, fault, traffic, options, first=first))
            rows.append((fault, calls))
            say(f"{fault.name}: done")
    return rows, description


@contextlib.contextmanager
def _open_bench() -> Iterator[tuple[ChaosBench, Traffic]]:
    contents = StoreContents(Population(300, 600))
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(temporary_folder("chaos"))
        # Fixed ports, so that a restarted server has them too.
        server = stack.enter_context(
            serve_filled(
                contents,
                folder / "state",
                grpc_port=free_port("127.0.0.1"),
                metrics_port=free_port("127.0.0.1"),
            )
        )
        listen = f"127.0.0.1:{free_port('127.0.0.1')}"
        proxy = stack.enter_context(Proxy(server.grpc_url, listen=listen))
        yield ChaosBench(server, REPOSITORY, proxy), contents.traffic


async def _run(
    bench: ChaosBench,
    fault: ServerFault,
    traffic: Traffic,
    options: argparse.Namespace,
    *,
    first: int,
) -> Calls:
    """Call at a steady pace; begin and end the fault meanwhile."""
    purchases = _purchases(traffic, first, options.calls)
    addresses = [bench.server.grpc_url, bench.proxy.url][: fault.servers]
    fault_start, fault_end = (round(part * options.calls) for part in (_BEGINS, _ENDS))
    begin, end = INJECTIONS[fault.name]
    async with _client(addresses, options) as ask:
        for purchase in itertools.islice(purchases, _WARM_CALLS):
            await ask(purchase)
        turns = {fault_start: begin, fault_end: end}
        latency_s, source = await _pace(ask, purchases, turns, bench, options)
    return Calls(
        latency_s=latency_s,
        source=source,
        fault_start=fault_start,
        fault_end=fault_end,
        load=os.getloadavg()[0],
    )


async def _pace(
    ask: Ask,
    purchases: Iterator[dict[str, object]],
    turns: dict[int, Callable[[ChaosBench], None]],
    bench: ChaosBench,
    options: argparse.Namespace,
) -> tuple[Any, Any]:
    """Call at a steady pace; return the latency and the source of each call."""
    latency_s: list[float] = []
    source: list[int] = []

    async def answered(number: int, purchase: dict[str, object]) -> bool:
        decision, latency_s[number] = await ask(purchase)
        source[number] = SOURCES.index(decision.source)
        return source[number] == 0

    def call(number: int) -> Awaitable[bool]:
        latency_s.append(np.inf)
        source.append(-1)
        return answered(number, next(purchases))

    await pace(
        call,
        count=options.calls,
        rate=options.rate,
        turns={number: partial(do, bench) for number, do in turns.items()},
    )
    return np.array(latency_s), np.array(source, np.int8)


async def pace(
    call: Callable[[int], Awaitable[bool]],
    *,
    count: int,
    rate: float,
    turns: Mapping[int, Callable[[], None]],
) -> None:
    """
    Call at a steady pace: the requested number of calls, then until a server is back.

    A busy machine may take longer to start a server than all the requested calls.

    Args:
        call: Gets the number of a call; its result is whether a server answered it.
        count: Number of calls.
        rate: Calls per second, regardless of earlier ones.
        turns: Number of a call -> function that begins or ends a fault just before it.
    """
    running: list[asyncio.Future[bool]] = []
    orders: list[asyncio.Future[None]] = []
    over: int | None = None  # the first call after the last turn was carried out
    start_s = perf_counter()
    for number in range(_MOST_LONGER * count):
        if over is None and len(orders) == len(turns) and _all_done(orders):
            over = number
        if number >= count and over is not None and _any_answered(running[over:]):
            break
        await asyncio.sleep(max(0.0, start_s + number / rate - perf_counter()))
        if number in turns:
            # In a thread: calls must not wait for a server's start.
            orders.append(asyncio.ensure_future(asyncio.to_thread(turns[number])))
        running.append(asyncio.ensure_future(call(number)))
    await asyncio.gather(*orders, *running)


def _all_done(orders: Sequence[asyncio.Future[None]]) -> bool:
    return all(one.done() for one in orders)


def _any_answered(calls: Sequence[asyncio.Future[bool]]) -> bool:
    return any(one.done() and one.result() for one in calls)


@contextlib.asynccontextmanager
async def _client(addresses: Sequence[str], options: argparse.Namespace) -> Any:
    """Open the client to measure; yield a function that gives decision and latency."""
    settings = Options(deadline_s=options.deadline_ms / 1e3)
    if options.client == "sync":
        loop = asyncio.get_running_loop()

        def timed(purchase: dict[str, object]) -> tuple[Decision, float]:
            began_s = perf_counter()
            return client.decide(purchase), perf_counter() - began_s

        with (
            DecisionClient(addresses, fallback=RULE, options=settings) as client,
            ThreadPoolExecutor(_THREADS) as pool,
        ):
            client.wait_ready(_CONNECT_S)
            yield lambda purchase: loop.run_in_executor(pool, timed, purchase)
        return

    async def ask(purchase: dict[str, object]) -> tuple[Decision, float]:
        began_s = perf_counter()
        return await calling.decide(purchase), perf_counter() - began_s

    async with AsyncDecisionClient(
        addresses, fallback=RULE, options=settings
    ) as calling:
        await calling.wait_ready(_CONNECT_S)
        yield ask


def _purchases(traffic: Traffic, first: int, count: int) -> Iterator[dict[str, object]]:
    """Yield purchases from `first` on, without end; each 20th is an earlier one."""
    while True:
        columns = traffic.columns(first, count)
        lists = {name: column.tolist() for name, column in columns.items()}
        rows = [
            dict(zip(lists, values, strict=True))
            for values in zip(*lists.values(), strict=True)
        ]
        for number in range(_BEFORE, count, _AGAIN):
            rows[number] = rows[number - _BEFORE]
        yield from rows
        first += count


def _description(bench: ChaosBench, options: argparse.Namespace) -> str:
    return (
        f"{measured_with(bench.server)}. "
        f"`{options.command}`: the {options.client} client, {options.rate:g} calls of "
        f"one purchase a second, each 20th for the second time; the fault from "
        f"{_BEGINS:.0%} of the calls on to {_ENDS:.0%}; one run each. Client, server "
        "and store share the machine."
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

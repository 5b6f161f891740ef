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
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import perf_counter
from typing import Any

import msgspec
import numpy as np

from clients.async_client import AsyncDecisionClient
from clients.decision import Decision
from clients.decision_client import DecisionClient
from clients.fallback import Band, Fallback
from clients.options import Options as ClientOptions
from loadtests.chaos_kinds import INJECTIONS, SERVER_FAULTS, ChaosBench, ServerFault
from loadtests.chaos_table import SOURCES, Calls, to_markdown
from loadtests.filling import HISTORY_DAYS, fill_store, served_spec, simulated_history
from loadtests.proxy import Proxy
from loadtests.surroundings import CHECKOUT, measured_with
from loadtests.traffic import Traffic, traffic_of
from tollgate.errors import TollgateError
from tollgate.server.embedded import serve
from tollgate.server.environment import free_port
from tollgate.server.redis import EmbeddedRedis

RULE = Fallback(bands=(Band(below=50, decision="approve"),), otherwise="review")
_BEGINS, _ENDS = 0.25, 0.6  # shares of all calls
_AGAIN, _BEFORE = 20, 40  # each 20th call repeats the purchase of the 40th before it
_THREADS = 64
_CONNECT_S = 10.0
_WARM_CALLS = 200  # not counted
_MOST_LONGER = 10  # times the requested calls, until the model is back

Ask = Callable[[dict[str, object]], Awaitable[tuple[Decision, float]]]


class Options(msgspec.Struct, frozen=True):
    """Options of the command line."""

    calls: int
    rate_per_s: float
    deadline_s: float
    client: str
    only: str | None
    out: Path | None


def main(arguments: Sequence[str]) -> int:
    """Inject every fault, print or write the table; print a known error as one line."""
    parser = argparse.ArgumentParser(prog="python -m loadtests.chaos")
    parser.add_argument("--calls", type=int, default=10_000)
    parser.add_argument("--rate", type=float, default=200.0, help="calls per second")
    parser.add_argument("--deadline-ms", type=float, default=50.0)
    parser.add_argument("--client", choices=["async", "sync"], default="async")
    names = [fault.name for fault in SERVER_FAULTS]
    parser.add_argument("--only", choices=names, help="one fault")
    parser.add_argument("--out", type=Path, help="Markdown here")
    given = parser.parse_args(arguments)
    options = Options(
        calls=given.calls,
        rate_per_s=given.rate,
        deadline_s=given.deadline_ms / 1e3,
        client=given.client,
        only=given.only,
        out=given.out,
    )
    command = " ".join(["python -m loadtests.chaos", *arguments])
    try:
        rows, description = run_all(options, command=command)
    except TollgateError as error:
        print(f"loadtests.chaos: {error}", file=sys.stderr)
        return error.exit_status
    text = to_markdown(rows, description, deadline_s=options.deadline_s)
    if options.out is None:
        print(text, end="")
    else:
        options.out.write_text(text)
    return 0


def run_all(
    options: Options, *, command: str
) -> tuple[list[tuple[ServerFault, Calls]], str]:
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
            description = description or _description(bench, options, command=command)
            first = len(rows) * (_MOST_LONGER * options.calls + _WARM_CALLS)
            calls = asyncio.run(_run(bench, fault, traffic, options, first=first))
            rows.append((fault, calls))
            print(f"{fault.name}: done", file=sys.stderr, flush=True)
    return rows, description


@contextlib.contextmanager
def _open_bench() -> Iterator[tuple[ChaosBench, Traffic]]:
    repository = CHECKOUT / "model_repository"
    spec = served_spec(repository)
    history = simulated_history(spec, customers=300, terminals=600, days=HISTORY_DAYS)
    with contextlib.ExitStack() as stack:
        folder = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="tollgate-chaos-"))
        )
        redis = stack.enter_context(EmbeddedRedis(folder / "store"))
        fill_store(spec, history, store_url=redis.url)
        # A fixed port, so that a restarted server has it too.
        server = stack.enter_context(
            serve(
                repository,
                state=folder / "state",
                store_url=redis.url,
                grpc_port=free_port("127.0.0.1"),
                metrics_port=free_port("127.0.0.1"),
            )
        )
        listen = f"127.0.0.1:{free_port('127.0.0.1')}"
        proxy = stack.enter_context(Proxy(server.grpc_url, listen=listen))
        bench = ChaosBench(server=server, repository=repository, proxy=proxy)
        yield bench, traffic_of(history, days=HISTORY_DAYS)


async def _run(
    bench: ChaosBench,
    fault: ServerFault,
    traffic: Traffic,
    options: Options,
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
    options: Options,
) -> tuple[Any, Any]:
    """
    Call at a steady pace: the requested number of calls, then until the model is back.

    A busy machine may take longer to start a server than all the requested calls.
    """
    latency_s: list[float] = []
    source: list[int] = []

    async def one(number: int, purchase: dict[str, object]) -> None:
        decision, seconds = await ask(purchase)
        latency_s[number] = seconds
        source[number] = SOURCES.index(decision.source)

    running: list[asyncio.Future[None]] = []
    orders: list[asyncio.Future[None]] = []
    over: int | None = None  # the first call after the fault's end was carried out
    start_s = perf_counter()
    for number in range(_MOST_LONGER * options.calls):
        if over is None and len(orders) == len(turns) and orders[-1].done():
            over = number
        if number >= options.calls and over is not None and 0 in source[over:]:
            break
        due_s = start_s + number / options.rate_per_s
        await asyncio.sleep(max(0.0, due_s - perf_counter()))
        if number in turns:
            # In a thread: calls must not wait for a server's start.
            order = asyncio.to_thread(turns[number], bench)
            orders.append(asyncio.ensure_future(order))
        latency_s.append(np.inf)
        source.append(-1)
        running.append(asyncio.ensure_future(one(number, next(purchases))))
    await asyncio.gather(*orders, *running)
    return np.array(latency_s), np.array(source, np.int8)


@contextlib.asynccontextmanager
async def _client(addresses: Sequence[str], options: Options) -> Any:
    """
    Open the client to measure; yield a function that returns decision and latency.
    """
    settings = ClientOptions(deadline_s=options.deadline_s)
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


def _description(bench: ChaosBench, options: Options, *, command: str) -> str:
    return (
        f"{measured_with(bench.server)}. "
        f"`{command}`: the {options.client} client, {options.rate_per_s:g} calls of "
        f"one purchase a second, each 20th for the second time; the fault from "
        f"{_BEGINS:.0%} of the calls on to {_ENDS:.0%}; one run each. Client, server "
        "and store share the machine."
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

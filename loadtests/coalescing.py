"""
Benefit of coalescing calls into requests: `python -m loadtests.coalescing`.

Many callers in one asyncio process, each sending its next call as soon as the last is
answered, with coalescing on and off in turn, against one server that runs throughout.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from time import perf_counter, process_time

import msgspec
import numpy as np
import numpy.typing as npt

from clients.async_client import AsyncDecisionClient
from clients.coalescing import Coalescing
from clients.fallback import Fallback
from clients.options import Options as ClientOptions
from loadtests.filling import HISTORY_DAYS, fill_store, served_spec, simulated_history
from loadtests.latency import percentile
from loadtests.processes import use_of
from loadtests.surroundings import CHECKOUT, look_around
from loadtests.traffic import Traffic, traffic_of
from tollgate.errors import ServerError, TollgateError
from tollgate.server.embedded import Embedded, serve
from tollgate.server.redis import EmbeddedRedis

MODES = {"off": None, "on": Coalescing()}
_REVIEW_ALL = Fallback(otherwise="review")
# Long, so that both modes answer all requests and queues show as latency.
_DEADLINE_S = 30.0
_WARM_S = 0.5
_AT_ONCE = 10_000  # purchases per write


class Options(msgspec.Struct, frozen=True):
    """Options of the command line."""

    callers: int
    rounds: int
    seconds: float
    out: Path | None


class Block(msgspec.Struct, frozen=True, eq=False):
    """
    Results of one mode in one block.

    Attributes:
        seconds: Measured time, without the warm-up, s.
        latency_us: Latency per decision of the model; int64 [N].
        requests: Requests that reached the server.
        client_cpu_s: Processor time of this process, s.
        server_cpu_s: Processor time of server and store, s.
    """

    seconds: float
    latency_us: npt.NDArray[np.int64]
    requests: int
    client_cpu_s: float
    server_cpu_s: float

    @property
    def rate_per_s(self) -> float:
        """Return the decisions per second."""
        return len(self.latency_us) / self.seconds

    def latency_ms(self, percent: float) -> float:
        """Return a percentile of the latency, ms; it is a sample that occurred."""
        return percentile(np.sort(self.latency_us), percent) / 1e3


def main(arguments: Sequence[str]) -> int:
    """Measure, and print or write the table; a known error prints one line."""
    parser = argparse.ArgumentParser(prog="python -m loadtests.coalescing")
    parser.add_argument("--callers", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each block")
    parser.add_argument("--out", type=Path, help="Markdown here")
    given = parser.parse_args(arguments)
    options = Options(given.callers, given.rounds, given.seconds, given.out)
    command = " ".join(["python -m loadtests.coalescing", *arguments])
    try:
        blocks, told = run_all(options, command=command)
    except TollgateError as error:
        print(f"loadtests.coalescing: {error}", file=sys.stderr)
        return error.exit_status
    text = to_markdown(blocks, told)
    if options.out is None:
        print(text, end="")
    else:
        options.out.write_text(text)
    return 0


def run_all(options: Options, *, command: str) -> tuple[dict[str, list[Block]], str]:
    """
    Serve the product and call it in both modes, block by block in turn.

    Returns:
        The blocks of each mode, and a description of the measurement.
    """
    blocks: dict[str, list[Block]] = {mode: [] for mode in MODES}
    with _served() as (server, traffic):
        around = look_around(server, h2load="not used")
        purchases = _purchases(traffic)
        for number in range(options.rounds):
            for mode in MODES:
                block = asyncio.run(_block(server, purchases, mode, options=options))
                blocks[mode].append(block)
                rate = f"{block.rate_per_s:.0f} decisions/s"
                print(f"{number} {mode}: {rate}", file=sys.stderr, flush=True)
    told = (
        f"{around.date}, commit {around.commit}, {around.hardware}; Triton "
        f"{around.versions['Triton']}, Python {around.versions['Python']}. "
        f"`{command}`: {options.callers} callers in one process, closed loop, "
        f"{options.rounds} blocks of {options.seconds:g} s each after "
        f"{_WARM_S:g} s of warm-up, in turn; medians of blocks and their range. "
        "Client, server and store share the machine."
    )
    return blocks, told


@contextlib.contextmanager
def _served() -> Iterator[tuple[Embedded, Traffic]]:
    repository = CHECKOUT / "model_repository"
    spec = served_spec(repository)
    history = simulated_history(spec, customers=300, terminals=600, days=HISTORY_DAYS)
    with contextlib.ExitStack() as stack:
        folder = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="tollgate-join-"))
        )
        redis = stack.enter_context(EmbeddedRedis(folder / "store"))
        fill_store(spec, history, store_url=redis.url)
        server = stack.enter_context(
            serve(repository, state=folder / "state", store_url=redis.url)
        )
        # Its processor time counts as the server's.
        yield (
            msgspec.structs.replace(server, redis=redis),
            traffic_of(history, days=HISTORY_DAYS),
        )


def _purchases(traffic: Traffic) -> Iterator[dict[str, object]]:
    """Yield purchases without end; no two are alike."""
    for first in itertools.count(0, _AT_ONCE):
        columns = traffic.columns(first, _AT_ONCE)
        lists = [column.tolist() for column in columns.values()]
        for values in zip(*lists, strict=True):
            yield dict(zip(columns, values, strict=True))


async def _block(
    server: Embedded,
    purchases: Iterator[dict[str, object]],
    mode: str,
    *,
    options: Options,
) -> Block:
    """Let all callers send requests in a closed loop for some seconds."""
    ended_us: list[int] = []
    latency_us: list[int] = []
    stop = False

    async with AsyncDecisionClient(
        [server.grpc_url],
        fallback=_REVIEW_ALL,
        options=ClientOptions(deadline_s=_DEADLINE_S),
        coalescing=MODES[mode],
    ) as client:
        await client.wait_ready(_DEADLINE_S)

        async def caller() -> None:
            while not stop:
                purchase = next(purchases)
                began_s = perf_counter()
                decision = await client.decide(purchase)
                ended_s = perf_counter()
                if decision.source != "model":
                    raise ServerError("tritonserver", decision.why)
                ended_us.append(round(ended_s * 1e6))
                latency_us.append(round((ended_s - began_s) * 1e6))

        callers = [asyncio.ensure_future(caller()) for _ in range(options.callers)]
        await asyncio.sleep(_WARM_S)
        roots = [server.triton.pid, *([server.redis.pid] if server.redis else [])]
        used = (process_time(), use_of(roots).cpu_s)
        requests = client.counters["calls", "answered"]
        begun_s = perf_counter()
        await asyncio.sleep(options.seconds)
        seconds = perf_counter() - begun_s
        requests = client.counters["calls", "answered"] - requests
        cpu_s = process_time() - used[0], use_of(roots).cpu_s - used[1]
        stop = True
        await asyncio.gather(*callers)
    ended = np.array(ended_us, np.int64) - round(begun_s * 1e6)
    inside = (ended >= 0) & (ended < seconds * 1e6)
    return Block(
        seconds=seconds,
        latency_us=np.array(latency_us, np.int64)[inside],
        requests=requests,
        client_cpu_s=cpu_s[0],
        server_cpu_s=cpu_s[1],
    )


def to_markdown(blocks: dict[str, list[Block]], told: str) -> str:
    """Write a row per mode, one of the ratios, and a description of the measurement."""
    head = (
        *("coalescing", "decisions/s", "p50 ms", "p99 ms", "rows per request"),
        *("client CPU ms per 1,000", "server CPU ms per 1,000"),
    )
    lines = ["| " + " | ".join(head) + " |", "|---|" + "---:|" * (len(head) - 1)]
    figures = {
        mode: [_figures(block) for block in done] for mode, done in blocks.items()
    }
    for mode, rows in figures.items():
        cells = [_with_range(column) for column in zip(*rows, strict=True)]
        lines.append("| " + " | ".join([mode, *cells]) + " |")
    ratios = [
        [on / off for on, off in zip(*pair, strict=True)]
        for pair in zip(figures["on"], figures["off"], strict=True)
    ]
    cells = [_with_range(column, digits=2) for column in zip(*ratios, strict=True)]
    lines.append("| " + " | ".join(["on / off", *cells]) + " |")
    return "\n".join([*lines, "", told, ""])


def _figures(block: Block) -> tuple[float, ...]:
    decided = len(block.latency_us)
    return (
        block.rate_per_s,
        block.latency_ms(50),
        block.latency_ms(99),
        decided / block.requests,
        block.client_cpu_s / decided * 1e6,
        block.server_cpu_s / decided * 1e6,
    )


def _with_range(values: Sequence[float], *, digits: int | None = None) -> str:
    def shown(value: float) -> str:
        places = digits if digits is not None else (0 if value >= 100 else 1)
        return f"{value:,.{places}f}"

    return f"{shown(median(values))} ({shown(min(values))} … {shown(max(values))})"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

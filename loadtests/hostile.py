"""
Send hostile requests at the same time as good ones: `python -m loadtests.hostile`.

`tollgate up` behind the gateway. One caller sends fuzzed requests, another sends good
ones at a steady rate. The command reports how many good requests were lost, how the
gateway handled the fuzzed ones, and whether tritonserver is still the same process.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import shutil
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import grpc
import msgspec

from loadtests.harness import (
    REPOSITORY,
    Report,
    command_parser,
    run_command,
    temporary_folder,
)
from loadtests.requests.steady_caller import SteadyCaller
from tollgate.errors import InputError, SetupError
from tollgate.gateway.certificates import make_certificates
from tollgate.gateway.gateway_metrics import GatewayMetrics, outcomes_of
from tollgate.gateway.keys import add_key
from tollgate.gateway.nginx import Nginx
from tollgate.gateway.template import SUSPENSIONS_FOLDER, Gateway
from tollgate.load.bodies import unframe
from tollgate.load.hostile_requests import (
    Hostile,
    hostile_requests,
    post,
)
from tollgate.server.processes.environment import free_port
from tollgate.testing.supervised import Supervised, supervised
from tollgate_client.addresses import CHANNEL_OPTIONS, open_channel
from tollgate_client.options import bearer, tls_from

_TIMEOUT_S = 10.0
_SETTLE_S = 2.0  # time in which good requests continue after the last hostile one
_SENDERS = 4
_RAW_SENDERS = 2
_SUSPENDED = "suspended for"  # text of inspection.js


class GatewayBench(msgspec.Struct, frozen=True):
    """
    A gateway and its two callers.

    Attributes:
        authority: Certificate authority of the gateway's certificate.
        good, hostile: Keys of the callers.
    """

    gateway: Gateway
    authority: Path
    good: str
    hostile: str


class Figures(msgspec.Struct, frozen=True):
    """
    Results of all requests.

    Attributes:
        good_answered: Number of these with a decision for each row.
        good_lost: The others, by status and message.
        outcomes: The gateway's metrics of the hostile caller, by outcome and status; a
            request that found its caller suspended was sent again.
        passed: Kinds of fuzzed requests that were answered with OK.
        pids: Process id of tritonserver, before and after.
        recovered: Parts that the supervisor recovered.
    """

    good_sent: int
    good_answered: int
    good_lost: Counter[str]
    hostile_sent: int
    outcomes: Counter[tuple[str, str]]
    passed: Counter[str]
    pids: tuple[int, int]
    recovered: list[str]
    seconds: float

    @property
    def ok(self) -> bool:
        """Return whether nothing was lost and tritonserver is the same process."""
        return not self.good_lost and self.pids[0] == self.pids[1]


def main(arguments: Sequence[str]) -> int:
    """Send and report; exit status 1 if a good request was lost."""
    parser = command_parser("hostile")
    parser.add_argument("--requests", type=int, default=20_000, help="fuzzed ones")
    parser.add_argument("--rate", type=float, default=200.0, help="fuzzed ones/s")
    parser.add_argument("--good-rate", type=float, default=200.0, help="good ones/s")
    parser.add_argument("--seed", type=int, default=1)
    return run_command(parser, arguments, measure=measure)


def measure(options: argparse.Namespace) -> Report:
    """Serve the product behind a gateway, and send both kinds of requests."""
    if shutil.which("nghttp") is None:
        raise SetupError("no nghttp on PATH", remedy="apt-get install nghttp2-client")
    with (
        temporary_folder("hostile") as folder,
        supervised(REPOSITORY, state=folder / "state") as product,
    ):
        bench = make_bench(folder / "gateway", upstream=product.grpc_url)
        nginx = Nginx(bench.gateway)
        try:
            figures = _measure(options, product, bench)
        finally:
            nginx.stop()
    return Report(to_text(figures), ok=figures.ok)


def make_bench(folder: Path, *, upstream: str) -> GatewayBench:
    """Create certificates, keys and the description of a gateway."""
    make_certificates(folder, names=["127.0.0.1"], callers=[], days=2)
    keys = folder / "keys"
    good, hostile = (add_key(keys, caller) for caller in ("good", "hostile"))
    gateway = Gateway(
        state=folder / "state",
        upstream=upstream,
        listen=f"127.0.0.1:{free_port()}",
        health_listen=f"127.0.0.1:{free_port()}",
        tls_cert=folder / "server.pem",
        tls_key=folder / "server.key",
        keys=keys,
        requests=folder / "requests.log",
        # A slow machine must not refuse good requests as too many.
        rate=100_000,
        in_flight=400,
        caller_in_flight=300,
    )
    return GatewayBench(gateway, folder / "ca.pem", good, hostile)


def _measure(
    options: argparse.Namespace, product: Supervised, bench: GatewayBench
) -> Figures:
    metrics = GatewayMetrics(bench.gateway.requests, limits=bench.gateway.limits)
    with contextlib.closing(metrics):
        before = product.pid("tritonserver")
        began_s = perf_counter()
        sender = Sender(bench, folder=bench.gateway.state)
        asyncio.run(_send_both(sender, metrics, options=options))
        seconds = perf_counter() - began_s
        product.wait(product.ready)
        return Figures(
            good_sent=sender.good.sent,
            good_answered=len(sender.good.answered),
            good_lost=sender.good.lost,
            hostile_sent=options.requests,
            outcomes=outcomes_of(metrics, caller="hostile"),
            passed=sender.passed,
            pids=(before, product.pid("tritonserver")),
            recovered=product.recovered_parts(),
            seconds=seconds,
        )


class Sender:
    """
    Sends requests of both kinds through a gateway, and records their results.

    Args:
        folder: Folder for the bodies of nghttp.

    Attributes:
        good: Sends the good requests.
        passed: Hostile requests with the status OK, by kind.
    """

    def __init__(self, bench: GatewayBench, *, folder: Path) -> None:
        self._bench = bench
        self._folder = folder
        self._raw = asyncio.Semaphore(_RAW_SENDERS)
        self.good = SteadyCaller(
            "good-", timeout_s=_TIMEOUT_S, metadata=bearer(bench.good)
        )
        self.passed: Counter[str] = Counter()

    def channel(self) -> Any:
        """Open a new connection to the gateway."""
        own = (*CHANNEL_OPTIONS, ("grpc.use_local_subchannel_pool", 1))
        tls = tls_from(authority=self._bench.authority)
        return open_channel(
            self._bench.gateway.listen, grpc.aio, tls=tls, arguments=own
        )

    async def send_hostile(self, channel: Any, one: Hostile) -> str:
        """
        Send a hostile request, and lift its caller's suspension if there is one.

        Returns:
            The status that the caller got, such as INVALID_ARGUMENT.
        """
        while True:
            status, words = await self._send(channel, one)
            if not words.startswith(_SUSPENDED):
                break
            lift_suspensions(self._bench.gateway)
        if status == "OK":
            self.passed[one.kind] += 1
        return status

    async def _send(self, channel: Any, one: Hostile) -> tuple[str, str]:
        try:
            message = unframe(one.body)
        except InputError:
            return await self._send_raw(one)
        call = channel.unary_unary(one.path)
        try:
            await call(
                message, timeout=_TIMEOUT_S, metadata=bearer(self._bench.hostile)
            )
        except grpc.RpcError as error:
            return str(error.code().name), str(error.details())
        return "OK", ""

    async def _send_raw(self, one: Hostile) -> tuple[str, str]:
        """Post a body unchanged: no gRPC client writes such frames."""
        async with self._raw:
            return await post(
                self._bench.gateway.listen,
                one,
                key=self._bench.hostile,
                folder=self._folder,
            )


def lift_suspensions(gateway: Gateway) -> None:
    """Admit suspended callers again, so that a fuzzer's requests are inspected."""
    for record in (gateway.state / SUSPENSIONS_FOLDER).iterdir():
        record.unlink(missing_ok=True)


async def _send_both(
    sender: Sender, metrics: GatewayMetrics, *, options: argparse.Namespace
) -> None:
    """Send good requests while hostile ones are sent."""
    ended = asyncio.Event()
    channel = sender.channel()
    good = asyncio.create_task(
        sender.good.send_all(channel, rate=options.good_rate, ended=ended)
    )
    counting = asyncio.create_task(_count(metrics, ended=ended))
    requests = _some(hostile_requests(options.seed), options.requests)
    try:
        await asyncio.gather(
            *(_hostile(sender, requests, options=options) for _ in range(_SENDERS))
        )
        await asyncio.sleep(_SETTLE_S)
    finally:
        ended.set()
    await good
    await channel.close()
    await counting
    await asyncio.sleep(_SETTLE_S)  # nginx writes its counts after a second
    metrics.update()


def _some(requests: Iterator[Hostile], count: int) -> Iterator[Hostile]:
    for number in range(count):
        if number and number % 2000 == 0:
            print(f"{number} fuzzed requests", file=sys.stderr, flush=True)
        yield next(requests)


async def _hostile(
    sender: Sender, requests: Iterator[Hostile], *, options: argparse.Namespace
) -> None:
    """Send one after the other, at most at this sender's share of the rate."""
    step_s = _SENDERS / options.rate
    channel = sender.channel()
    due_s = perf_counter()
    for one in requests:
        await sender.send_hostile(channel, one)
        due_s = max(due_s + step_s, perf_counter() - 1.0)
        await asyncio.sleep(max(0.0, due_s - perf_counter()))
    await channel.close()


async def _count(metrics: GatewayMetrics, *, ended: asyncio.Event) -> None:
    while not ended.is_set():
        metrics.update()
        await asyncio.sleep(1.0)


def to_text(figures: Figures) -> str:
    """Write the report."""
    lost = figures.good_lost.total()
    lines = [
        f"good      {figures.good_sent:,} sent, {figures.good_answered:,} answered, "
        f"{lost:,} lost, {figures.good_sent / figures.seconds:.0f}/s"
    ]
    lines += [
        f"          {count:,} x {words}" for words, count in figures.good_lost.items()
    ]
    lines.append(f"fuzzed    {figures.hostile_sent:,} sent in {figures.seconds:.0f} s")
    for (outcome, status), count in sorted(figures.outcomes.items()):
        lines.append(f"          {count:,} x {outcome} {status}")
    passed = ", ".join(f"{kind} {n:,}" for kind, n in sorted(figures.passed.items()))
    lines.append(f"          answered with OK: {passed or 'none'}")
    before, after = figures.pids
    same = "the same process" if before == after else "another process"
    lines.append(f"triton    pid {before} before and {after} after: {same}")
    lines.append(f"recovered {', '.join(figures.recovered) or 'nothing'}")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

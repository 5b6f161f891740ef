"""
Cost of the gateway: `python -m loadtests.gateway`.

The same requests to one server, in turn directly, through nginx without TLS, with TLS
and a key with and without the inspection, and with mTLS; closed loop, by one asyncio
process.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import grpc
import msgspec
import numpy as np

from loadtests.harness import (
    Population,
    Report,
    StoreContents,
    command_parser,
    run_command,
    say,
    serve_filled,
    temporary_folder,
)
from loadtests.requests.bodies import bodies_of
from loadtests.results.percentiles import percentile
from loadtests.results.surroundings import measured_with
from tollgate.errors import ServerError
from tollgate.gateway.certificates import make_certificates
from tollgate.gateway.keys import add_key
from tollgate.gateway.nginx import Nginx, find_nginx
from tollgate.gateway.template import TEMPLATE, Gateway
from tollgate.load.bodies import unframe
from tollgate.server.processes.environment import free_port
from tollgate_client import Tls, tls_from
from tollgate_client.addresses import CHANNEL_OPTIONS, open_channel
from tollgate_client.options import bearer

DIRECT = "direct"
_UNLIMITED = 1_000_000  # a limit that is counted but never reached


class GatewayPath(msgspec.Struct, frozen=True):
    """
    One path to the server.

    Attributes:
        name: Name in the table.
        address: host:port.
        server: Version of nginx; empty without nginx.
        token: Key to send; None without one.
        authority: Certificate authority of the gateway's certificate; None without TLS.
        certificate, private_key: Files of the caller; None without mTLS.
    """

    name: str
    address: str
    server: str = ""
    token: str | None = None
    authority: Path | None = None
    certificate: Path | None = None
    private_key: Path | None = None


@contextlib.contextmanager
def open_paths(upstream: str, *, folder: Path) -> Iterator[list[GatewayPath]]:
    """
    Run a gateway of each kind before a server until the context ends.

    Raises:
        SetupError: There is no nginx, or no openssl.
        ServerError: One does not start.
    """
    make_certificates(folder, names=["127.0.0.1"], callers=["caller"], days=2)
    token = add_key(folder / "keys", "caller")
    version = _version()
    clear = folder / "clear.conf"
    clear.write_text(TEMPLATE.read_text().replace(" ssl http2 ", " http2 "))
    uninspected = folder / "uninspected.conf"
    passed = TEMPLATE.read_text().replace(
        "js_content inspection.inspect;", "grpc_pass grpc://tollgate;"
    )
    uninspected.write_text(passed)
    authority = folder / "ca.pem"
    own = (folder / "caller.pem", folder / "caller.key")
    with contextlib.ExitStack() as stack:

        def run(template: Path = TEMPLATE, **changes: Any) -> str:
            gateway = _gateway(upstream, folder, changes)
            stack.callback(Nginx(gateway, template=template).stop)
            return gateway.listen

        yield [
            GatewayPath(DIRECT, upstream),
            GatewayPath("nginx, clear, key", run(clear), version, token),
            GatewayPath(
                "nginx, TLS, key, no inspection",
                run(uninspected),
                version,
                token,
                authority,
            ),
            GatewayPath("nginx, TLS, key", run(), version, token, authority),
            GatewayPath(
                "nginx, mTLS",
                run(auth="mtls", client_ca=authority),
                version,
                None,
                authority,
                *own,
            ),
        ]


def _gateway(upstream: str, folder: Path, changes: dict[str, Any]) -> Gateway:
    port, health_port = free_port(), free_port()
    options = {
        "state": folder / str(port),
        "upstream": upstream,
        "listen": f"127.0.0.1:{port}",
        "health_listen": f"127.0.0.1:{health_port}",
        "tls_cert": folder / "server.pem",
        "tls_key": folder / "server.key",
        "keys": folder / "keys",
        "rate": _UNLIMITED,
        "burst": _UNLIMITED,
    }
    return Gateway(**(options | changes))


def _version() -> str:
    done = subprocess.run(
        [str(find_nginx()), "-v"], capture_output=True, text=True, check=False
    )
    return done.stderr.strip().rpartition(": ")[2]


_METHOD = "/inference.GRPCInferenceService/"
_TIMEOUT_S = 30.0
_WARM_S = 0.5
_AT_ONCE = 20_000  # bodies per write
_CONNECTIONS = 20  # opened in each block


class Block(msgspec.Struct, frozen=True):
    """
    Results of one path in one round.

    Attributes:
        p50_ms, p99_ms: Latency of requests.
        rate_per_s: Answered requests per second.
        connect_ms: Median time of a new connection and its first answer.
    """

    p50_ms: float
    p99_ms: float
    rate_per_s: float
    connect_ms: float


Blocks = dict[tuple[int, str], list[Block]]


def main(arguments: Sequence[str]) -> int:
    """Measure, and print or write the table."""
    parser = command_parser("gateway")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each block")
    parser.add_argument("--in-flight", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--out", type=Path, help="Markdown here")
    return run_command(parser, arguments, measure=measure)


def measure(options: argparse.Namespace) -> Report:
    """
    Serve the product, open the paths to it, and load each in turn.
    """
    blocks: Blocks = {}
    contents = StoreContents(Population(300, 600))
    with (
        temporary_folder("gate") as folder,
        serve_filled(contents, folder / "state") as server,
        open_paths(server.grpc_url, folder=folder / "gateway") as paths,
    ):
        bodies = _bodies(contents)
        for number in range(options.rounds):
            for in_flight, path in itertools.product(options.in_flight, paths):
                block = asyncio.run(_block(path, bodies, in_flight, options=options))
                blocks.setdefault((in_flight, path.name), []).append(block)
                say(f"{number} {path.name} {in_flight}: p50 {block.p50_ms:.2f} ms")
        where = measured_with(server)
        nginx = paths[-1].server
    description = (
        f"{where}, {nginx}. `{options.command}`: {options.rounds} rounds, in each "
        f"every path for {options.seconds:g} s after {_WARM_S:g} s of warm-up; closed "
        "loop, one purchase a request, one connection. Caller, gateway, server and "
        "store share the machine."
    )
    return Report(to_markdown(blocks, description))


def _bodies(contents: StoreContents) -> Iterator[bytes]:
    """Yield requests without end; no two are alike."""
    for first in itertools.count(0, _AT_ONCE):
        columns = contents.traffic.columns(first, _AT_ONCE)
        for body in bodies_of(columns, rows=1, deadline_s=_TIMEOUT_S):
            yield unframe(body.tobytes())


async def _block(
    path: GatewayPath,
    bodies: Iterator[bytes],
    in_flight: int,
    *,
    options: argparse.Namespace,
) -> Block:
    """Send requests by one path for some seconds."""
    latency_s: list[float] = []
    begun_s = perf_counter() + _WARM_S
    ended_s = begun_s + options.seconds
    channel = _channel(path)
    infer = channel.unary_unary(f"{_METHOD}ModelInfer")

    async def caller() -> None:
        while (sent_s := perf_counter()) < ended_s:
            await _ask(infer, next(bodies), path)
            if sent_s >= begun_s:
                latency_s.append(perf_counter() - sent_s)

    await asyncio.gather(*(caller() for _ in range(in_flight)))
    await channel.close()
    connect_s = []
    for _ in range(_CONNECTIONS):
        sent_s = perf_counter()
        fresh = _channel(path, ("grpc.use_local_subchannel_pool", 1))
        await _ask(fresh.unary_unary(f"{_METHOD}ServerLive"), b"", path)
        connect_s.append(perf_counter() - sent_s)
        await fresh.close()
    ordered = np.sort((np.array(latency_s) * 1e6).astype(np.int64))
    return Block(
        p50_ms=percentile(ordered, 50) / 1e3,
        p99_ms=percentile(ordered, 99) / 1e3,
        rate_per_s=len(ordered) / options.seconds,
        connect_ms=median(connect_s) * 1e3,
    )


def _channel(path: GatewayPath, *more: tuple[str, object]) -> Any:
    tls: Tls | None = None
    if path.authority is not None:
        tls = tls_from(
            authority=path.authority, certificate=path.certificate, key=path.private_key
        )
    return open_channel(
        path.address, grpc.aio, tls=tls, arguments=(*CHANNEL_OPTIONS, *more)
    )


async def _ask(call: Any, body: bytes, path: GatewayPath) -> None:
    try:
        await call(body, timeout=_TIMEOUT_S, metadata=bearer(path.token))
    except grpc.RpcError as error:
        raise ServerError(path.name, f"{error.code()}: {error.details()}") from error


def to_markdown(blocks: Blocks, description: str) -> str:
    """Write a line for each path: medians of rounds, and ratios within rounds."""
    lines = [
        description,
        "",
        "| in flight | path | p50 ms | against direct | p99 ms | against direct "
        "| requests/s | new connection ms |",
        "|---:|---|---:|---:|---:|---:|---:|---:|",
    ]
    for (in_flight, name), rounds in blocks.items():
        direct = next(own for (size, _), own in blocks.items() if size == in_flight)
        cells = [str(in_flight), name]
        for part in ("p50_ms", "p99_ms"):
            values = [getattr(block, part) for block in rounds]
            ratios = [
                getattr(block, part) / getattr(base, part)
                for block, base in zip(rounds, direct, strict=True)
            ]
            cells.append(f"{median(values):.2f}")
            span = f"{min(ratios):.2f} … {max(ratios):.2f}"
            cells.append(f"{median(ratios):.2f} ({span})")
        cells.append(f"{median(block.rate_per_s for block in rounds):,.0f}")
        cells.append(f"{median(block.connect_ms for block in rounds):.2f}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

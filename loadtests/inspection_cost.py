"""
Measure the processor time that the gateway takes to inspect a request.

    python -m loadtests.inspection_cost

h2load posts one good request again and again through two gateways in turn: one
unchanged, one with the inspection removed. Behind them nginx answers at once, so the
result contains no time of a server. The figure is the processor time of the gateway's
processes, which a busy machine changes little.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

from loadtests.bodies import frame
from loadtests.gateway_ways import free_port
from loadtests.hostile_requests import MODEL_INFER, good_request
from tollgate.errors import ServerError, SetupError, TollgateError
from tollgate.gateway.certificates import make_certificates
from tollgate.gateway.keys import add_key
from tollgate.gateway.nginx import Nginx, find_nginx
from tollgate.gateway.template import TEMPLATE, Gateway

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_BEHIND = """
daemon off; pid {folder}/behind.pid; error_log stderr; worker_processes 1;
events {{ worker_connections 4096; }}
http {{
    access_log off; client_body_temp_path {folder}/b; proxy_temp_path {folder}/p;
    fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
    server {{
        listen 127.0.0.1:{port} http2; keepalive_requests 100000000;
        location / {{
            default_type application/grpc; add_header grpc-status 0; return 200 "";
        }}
    }}
}}
"""


def main(arguments: Sequence[str]) -> int:
    """Measure, and print a line for each size of request."""
    parser = argparse.ArgumentParser(prog="python -m loadtests.inspection_cost")
    parser.add_argument("--requests", type=int, default=20_000, help="of each turn")
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args(arguments)
    try:
        measure(given.requests, rounds=given.rounds)
    except TollgateError as error:
        print(f"loadtests.inspection_cost: {error}", file=sys.stderr)
        return error.exit_status
    return 0


def measure(requests: int, *, rounds: int) -> None:
    """Post in turns through both gateways, and print microseconds a request."""
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        folder.chmod(0o755)
        upstream = stack.enter_context(_behind(folder))
        make_certificates(folder, names=["127.0.0.1"], callers=[], days=2)
        key = add_key(folder / "keys", "caller")
        plain = folder / "plain.conf"
        text = TEMPLATE.read_text()
        plain.write_text(
            text.replace("js_content inspection.inspect;", "grpc_pass grpc://tollgate;")
        )
        ways = {}
        for way, template in (("without", plain), ("with", TEMPLATE)):
            gateway = _gateway(folder, upstream)
            nginx = Nginx(gateway, template=template)
            stack.callback(nginx.stop)
            ways[way] = (gateway, nginx)
        for rows in (1, 32):
            body = folder / f"{rows}.bin"
            message = good_request(rows, tag="cost").SerializeToString()
            body.write_bytes(frame(message))
            costs: dict[str, list[float]] = {way: [] for way in ways}
            for _ in range(rounds):
                for way, (gateway, nginx) in ways.items():
                    cost = _cost_us(nginx, gateway, body, key=key, requests=requests)
                    costs[way].append(cost)
            more = [
                after - before
                for before, after in zip(costs["without"], costs["with"], strict=True)
            ]
            print(
                f"{rows} rows, {len(message):,} bytes: "
                + ", ".join(f"{way} {_span(found)}" for way, found in costs.items())
                + f", inspection {_span(more)} µs of processor time a request"
            )


def _span(values: list[float]) -> str:
    return f"{median(values):.1f} ({min(values):.1f} … {max(values):.1f})"


def _cost_us(
    nginx: Nginx, gateway: Gateway, body: Path, *, key: str, requests: int
) -> float:
    """Post a body `requests` times; return the processor time of a gateway for each."""
    before = _seconds(nginx)
    done = subprocess.run(
        [
            *("h2load", "-n", str(requests), "-c", "8", "-m", "4", "-d", str(body)),
            *("-H", "content-type: application/grpc", "-H", "te: trailers"),
            *("-H", f"authorization: Bearer {key}"),
            f"https://{gateway.listen}{MODEL_INFER}",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    if f"status codes: {requests} 2xx" not in done.stdout:
        raise ServerError("h2load", "not all were answered", log=done.stdout[-1500:])
    log = nginx.log.read_text()
    if '"refused"' in log:
        raise ServerError("nginx", "refused a request", log=log[-1000:])
    return (_seconds(nginx) - before) / requests * 1e6


def _seconds(nginx: Nginx) -> float:
    total = 0
    for pid in nginx.workers:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])  # user and system
    return total / _TICKS_PER_S


def _gateway(folder: Path, upstream: str) -> Gateway:
    port = free_port()
    return Gateway(
        state=folder / str(port),
        upstream=upstream,
        listen=f"127.0.0.1:{port}",
        health_listen=f"127.0.0.1:{free_port()}",
        tls_cert=folder / "server.pem",
        tls_key=folder / "server.key",
        keys=folder / "keys",
        rate=1_000_000,
        burst=1_000_000,
        in_flight=1000,
        caller_in_flight=1000,
        workers=1,
    )


@contextlib.contextmanager
def _behind(folder: Path) -> Iterator[str]:
    """Run an nginx that answers at once."""
    port = free_port()
    path = folder / "behind.conf"
    path.write_text(_BEHIND.format(folder=folder, port=port))
    process = subprocess.Popen(
        [str(find_nginx()), "-c", str(path), "-e", "stderr"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        if process.poll() is not None:
            raise SetupError("nginx does not start", remedy=str(path))
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

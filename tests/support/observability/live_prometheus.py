"""A server under a little load, its workers, and a Prometheus that scrapes them all."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.checkout import CHECKOUT
from tests.support.gateway.gateways import make_place
from tollgate.observability.dashboards import Query, expr_of
from tollgate.server.processes.environment import free_port
from tollgate.stream.redis_streams import RedisFeed
from tollgate.testing.supervised import Supervised, supervised
from tollgate_client.client import Client
from tollgate_client.options import tls_from

REPOSITORY = CHECKOUT / "model_repository"
RULES = CHECKOUT / "helm" / "tollgate" / "files" / "alerts"
TOLLGATE = (sys.executable, "-c", "from tollgate.cli import main; main()")
SCRAPES = 12  # one a second
OUTCOMES = "approve,review,decline"
PATIENCE_S = 60.0
# What Grafana fills in; a server that runs for seconds has no hours behind it.
FILLED = {
    "$__rate_interval": "30s",
    "$__range": "1m",
    "$namespace": "",
    "$job": ".*",
    "[1h:1m]": "[10s:1s]",
}


class Prometheus:
    """A running Prometheus."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/api/v1"

    def ask(self, query: str) -> list[Any]:
        """Ask for the values of now: labels and value of each series."""
        told = self.get("/query?" + urllib.parse.urlencode({"query": query}))
        return list(told["result"])

    def get(self, path: str) -> Any:
        """Ask its interface; a query that it does not take raises."""
        with urllib.request.urlopen(self._url + path, timeout=10) as answer:
            return json.loads(answer.read())["data"]


class Watched(NamedTuple):
    """A supervised server, a client of the gateway before it, and who watches all."""

    product: Supervised
    client: Client
    prometheus: Prometheus


@contextlib.contextmanager
def watched(folder: Path, history: Path) -> Iterator[Watched]:
    """
    Serve fraud, load it a little, and watch all of it.

    Args:
        folder: For everything that is left behind.
        history: Purchases to put on the feed.
    """
    with contextlib.ExitStack() as stack:
        state = folder / "state"
        product = stack.enter_context(supervised(REPOSITORY, state=state))
        chosen = ["--state", str(state), "--repository", str(REPOSITORY)]
        workers = {
            ("journal", "run", "--seal-after", "2s"): free_port(),
            ("stream",): free_port(),
            ("challenger", "run"): free_port(),
            ("alarms", "run", "--report", "every", "--outcomes", OUTCOMES): free_port(),
        }
        for command, port in workers.items():
            stack.enter_context(
                running([*command, *chosen, "--metrics-port", str(port)])
            )
        pages = [product.metrics_url, product.health_url]
        targets = [page.removeprefix("http://").partition("/")[0] for page in pages]
        port = free_port()
        client = stack.enter_context(gated(folder, chosen, metrics_port=port))
        targets += [f"127.0.0.1:{port}" for port in (*workers.values(), port)]
        found = stack.enter_context(prometheus(folder, targets))
        decide(client, found, scrapes=3)
        # Once a scrape was before it: a histogram that began full has no rate.
        feed = [*TOLLGATE, "feed", str(history), *chosen]
        subprocess.run(feed, check=True, capture_output=True)
        with contextlib.closing(
            RedisFeed(product.address.store_url, feed="tollgate.fraud.readings")
        ) as readings:
            decide(client, found, scrapes=SCRAPES, readings=readings)
        yield Watched(product, client, found)


@contextlib.contextmanager
def gated(
    folder: Path, chosen: Sequence[str], *, metrics_port: int
) -> Iterator[Client]:
    """Run the gateway before the server of a state folder, and call it by TLS."""
    (folder / "gateway").mkdir()
    place = make_place(folder / "gateway")
    port = free_port()
    command = [
        *("gateway", "run", *chosen[:2], "--api-keys", str(place.keys)),
        *("--tls-cert", str(place.pem("server"))),
        *("--tls-key", str(place.folder / "server.key")),
        *("--listen", f"127.0.0.1:{port}"),
        *("--health-listen", f"127.0.0.1:{free_port()}"),
        *("--metrics-port", str(metrics_port)),
    ]
    with running(command):
        until_s = time.monotonic() + PATIENCE_S
        while True:
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", port)).close()
                break
            assert time.monotonic() < until_s
            time.sleep(0.1)
        tls = tls_from(authority=place.pem("ca"))
        with Client(
            f"127.0.0.1:{port}", timeout_s=20, tls=tls, token=place.shop
        ) as client:
            yield client


def decide(
    client: Client,
    found: Prometheus,
    *,
    scrapes: int,
    readings: RedisFeed | None = None,
) -> None:
    """Ask for decisions until every page was scraped so often from now on."""
    until = scraped(found) + scrapes
    until_s = time.monotonic() + PATIENCE_S
    while scraped(found) < until:
        client.decide(purchases(f"t{time.monotonic_ns()}-"))
        if readings is not None:
            columns = purchases(f"r{time.monotonic_ns()}-")
            rows = zip(*columns.values(), strict=True)
            events = [json.dumps(dict(zip(columns, row, strict=True))) for row in rows]
            readings.send([b"c"] * 4, [event.encode() for event in events])
        assert time.monotonic() < until_s
        time.sleep(0.05)


def filled(query: Query, *, product: str = "fraud") -> str:
    """Fill in what Grafana would."""
    text = expr_of(query)
    chosen = {"${product}": product, "$product": product}
    for name, one in {**chosen, **FILLED}.items():
        text = text.replace(name, one)
    assert "$" not in text
    return text


def scraped(found: Prometheus) -> int:
    """Tell how often every page was scraped."""
    counts = found.ask("count_over_time(up[10m])")
    return min((int(one["value"][1]) for one in counts), default=0)


def purchases(name: str) -> dict[str, list[object]]:
    """Columns of four purchases."""
    return {
        "transaction_id": [f"{name}{row}" for row in range(4)],
        "customer_id": [f"c{row}" for row in range(4)],
        "terminal_id": [f"m{row}" for row in range(4)],
        "amount": [10.0 + row for row in range(4)],
        "event_time": [time.time_ns() // 1000] * 4,
    }


@contextlib.contextmanager
def running(arguments: Sequence[str]) -> Iterator[None]:
    """Run a command of tollgate until the context ends."""
    process = subprocess.Popen(
        [*TOLLGATE, *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield
        assert process.poll() is None, arguments
    finally:
        process.terminate()
        process.wait(20)


@contextlib.contextmanager
def prometheus(folder: Path, targets: Sequence[str]) -> Iterator[Prometheus]:
    """Scrape targets each second, with our rules."""
    config = folder / "prometheus.yml"
    listed = ", ".join(f'"{one}"' for one in targets)
    config.write_text(
        "global: {scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}\n"
        f"rule_files: ['{RULES}/*.yaml']\n"
        "scrape_configs:\n  - job_name: tollgate\n"
        f"    static_configs: [{{targets: [{listed}]}}]\n"
    )
    port = free_port()
    log = (folder / "prometheus.log").open("wb")
    process = subprocess.Popen(
        [
            "prometheus",
            f"--config.file={config}",
            f"--storage.tsdb.path={folder / 'tsdb'}",
            f"--web.listen-address=127.0.0.1:{port}",
            "--log.level=warn",
        ],
        stdout=log,
        stderr=log,
    )
    found = Prometheus(port)
    try:
        until_s = time.monotonic() + PATIENCE_S
        while True:
            with contextlib.suppress(OSError):
                found.ask("up")
                break
            assert process.poll() is None, (folder / "prometheus.log").read_text()
            assert time.monotonic() < until_s
            time.sleep(0.1)
        yield found
    finally:
        process.terminate()
        process.wait(20)
        log.close()

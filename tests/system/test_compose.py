"""The commands of docker/compose.yaml, run in its order, fill the dashboards."""

from __future__ import annotations

import contextlib
import math
import os
import re
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.support.checkout import CHECKOUT
from tests.support.observability.live_prometheus import (
    PATIENCE_S,
    REPOSITORY,
    RULES,
    TOLLGATE,
    Prometheus,
    filled,
    scraped,
)
from tollgate.observability.dashboards import BOARDS, Board
from tollgate.server.processes.environment import free_port
from tollgate_client.client import Client

pytestmark = pytest.mark.system("prometheus", "redis-server")

DOCKER = CHECKOUT / "docker"
SERVICES: dict[str, Any] = msgspec.yaml.decode((DOCKER / "compose.yaml").read_bytes())[
    "services"
]
ORDER = ("redis", "server", "journal", "monitor", "prometheus")
WINDOW = 2500  # decisions that the monitor compares at once
SCRAPES = 8  # one a second: a rate needs two
BATCH = 32  # rows of a request, at most
# What other services, and other profiles, would export.
ABSENT = re.compile(r"tollgate_(gateway|feed|stream|trial|alarms|webhook)_")


class Machine:
    """
    This machine in place of the containers: its folders, and ports that are free.

    Args:
        folder: For everything that the services write.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ports: dict[str, str] = {}
        for part in ("folder", "keys", "anchor"):  # a volume each
            (folder / "journal" / part).mkdir(parents=True)

    def port(self, inside: int) -> int:
        """Return the port that stands for one of compose.yaml."""
        return int(self._ports.setdefault(str(inside), str(free_port())))

    def put(self, text: str) -> str:
        """Put this machine's folders, hosts and ports in place of a container's."""
        for inside, outside in (
            ("/etc/prometheus", self.folder),
            ("=/prometheus", f"={self.folder}/series"),
            ("=/journal", f"={self.folder}/journal"),
            ("/data", self.folder),
            ("0.0.0.0", "127.0.0.1"),
            ("--every=60s", "--every=1s"),  # a test does not wait that long
        ):
            text = text.replace(inside, str(outside))
        return re.sub(
            r"(\b(?:redis|server|journal|monitor|127\.0\.0\.1):|-port=)(\d{4})\b",
            lambda found: (
                ("-port=" if found[1] == "-port=" else "127.0.0.1:")
                + str(self.port(int(found[2])))
            ),
            text,
        )

    @contextlib.contextmanager
    def runs(self, name: str) -> Iterator[None]:
        """Run a service's command until the context ends, once its check passes."""
        service = SERVICES[name]
        command = service["command"]
        words = command.split() if isinstance(command, str) else command
        program = {"redis": (), "prometheus": ("prometheus",)}.get(name, TOLLGATE)
        words = [*program, *map(self.put, words), *self._own_options(name)]
        log = (self.folder / f"{name}.log").open("wb")
        process = subprocess.Popen(
            words, env=os.environ | self._environment(name), stdout=log, stderr=log
        )
        try:
            until_s = time.monotonic() + PATIENCE_S
            while not self._healthy(service["healthcheck"]["test"]):
                said = (self.folder / f"{name}.log").read_text()
                assert process.poll() is None, said
                assert time.monotonic() < until_s, said
                time.sleep(0.1)
            yield
            assert process.poll() is None, (self.folder / f"{name}.log").read_text()
        finally:
            process.terminate()
            process.wait(60)
            log.close()

    def _own_options(self, name: str) -> list[str]:
        """Name the ports that a program takes if its command names none, and a wait."""
        return {
            "redis": ["--port", str(self.port(6379))],
            "server": [
                f"--grpc-port={self.port(8001)}",
                f"--metrics-port={self.port(8002)}",
                f"--side-port={self.port(8003)}",
            ],
            "journal": ["--seal-after=2s"],
            "prometheus": [f"--web.listen-address=127.0.0.1:{self.port(9090)}"],
        }.get(name, [])

    def _environment(self, name: str) -> dict[str, str]:
        """Add the image's settings to the service's own."""
        own = SERVICES[name].get("environment", {})
        return {key: self.put(value) for key, value in own.items()} | {
            "TOLLGATE_REPOSITORY": str(REPOSITORY),
            "TOLLGATE_STATE": str(self.folder / f"state-{name}"),
        }

    def _healthy(self, test: list[str]) -> bool:
        """Do what a health check does, without the programs of its image."""
        (page,) = re.findall(r"http://[^\"]+", self.put(test[-1])) or [""]
        try:
            if page:
                return bool(urllib.request.urlopen(page, timeout=5).status == 200)
            socket.create_connection(("127.0.0.1", self.port(6379))).close()
            return True
        except OSError:
            return False


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """All services under load, until the monitor has compared a window."""
    machine = Machine(tmp_path_factory.mktemp("compose"))
    config = machine.put((DOCKER / "prometheus.yml").read_text())
    config = config.replace("rules/", f"{RULES}/").replace("val: 5s", "val: 1s")
    (machine.folder / "prometheus.yml").write_text(config)
    with contextlib.ExitStack() as stack:
        for name in ORDER:
            stack.enter_context(machine.runs(name))
        client = stack.enter_context(
            Client(f"127.0.0.1:{machine.port(8001)}", timeout_s=20)
        )
        found = Prometheus(machine.port(9090))
        until_s = time.monotonic() + 2 * PATIENCE_S
        sent = 0
        while sent < WINDOW or scraped(found) < SCRAPES or not compared(found):
            client.decide(purchases(sent))
            sent += BATCH
            assert time.monotonic() < until_s
            if sent > WINDOW:
                time.sleep(0.2)
        yield found


def compared(found: Prometheus) -> bool:
    """Return whether the monitor has judged a window."""
    return bool(found.ask('tollgate_monitor_psi{product="fraud"}'))


def purchases(first: int) -> dict[str, object]:
    """Columns of a full request of purchases of now."""
    rows = range(first, first + BATCH)
    return {
        "transaction_id": [f"p{row}" for row in rows],
        "customer_id": [f"c{row % 700}" for row in rows],
        "terminal_id": [f"m{row % 90}" for row in rows],
        "amount": [5.0 + row % 113 for row in rows],
        "event_time": [time.time_ns() // 1000 + row for row in rows],
    }


def test_prometheus_reaches_every_target(prometheus: Prometheus) -> None:
    """Each page of prometheus.yml is up: two of the server, one of each worker."""
    up = {
        one["metric"]["process"]: one["value"][1]
        for one in prometheus.ask('up{job="tollgate"}')
    }
    assert up.pop("alarms", "0") == "0"  # of another profile
    assert up == dict.fromkeys(("triton", "supervisor", "journal", "monitor"), "1")


def test_prometheus_works_out_the_mounted_rules(prometheus: Prometheus) -> None:
    """The chart's alerts are loaded from the folder that compose mounts."""
    groups = prometheus.get("/rules")["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert len(rules) > 40
    assert {rule["health"] for rule in rules} <= {"ok", "unknown"}


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: str(board.uid))
def test_every_panel_of_these_services_has_data(
    board: Board, prometheus: Prometheus
) -> None:
    """A number for each query, those of the monitor among them."""
    wrong = []
    for panel in board.panels:
        for query in panel.queries:
            text = filled(query)
            if ABSENT.search(text):
                continue
            if query.empty and query.empty != "no monitor reads the journal":
                continue
            series = prometheus.ask(text)
            if not any(not math.isnan(float(one["value"][1])) for one in series):
                wrong.append(f"{panel.title}: {text}")
    assert not wrong, "\n".join(wrong)

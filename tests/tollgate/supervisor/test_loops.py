"""The supervisor's loops survive unexpected errors."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from http.server import ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tollgate import worker
from tollgate.errors import RepositoryError, ServerError
from tollgate.server.triton.control import Endpoint
from tollgate.supervisor import health_probe as heartbeat_module
from tollgate.supervisor import product_supervisor, supervisor
from tollgate.supervisor import reconciler as converging
from tollgate.supervisor import version_detection as arrivals_module
from tollgate.supervisor.admin_port import serve_admin_port
from tollgate.supervisor.health_probe import HealthProbe
from tollgate.supervisor.product_supervisor import SupervisedProduct
from tollgate.supervisor.reconciler import Reconciler
from tollgate.supervisor.recycling import Recycling
from tollgate.supervisor.supervisor import Supervisor
from tollgate.supervisor.supervisor_metrics import SupervisorMetrics
from tollgate.supervisor.version_detection import VersionDetector
from tollgate.worker import tallies


class UnforeseenError(RuntimeError):
    """No code of ours knows it."""


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr(worker, "MOST_PAUSE_S", 0.01)
    monkeypatch.setattr(converging, "INTERVAL_S", 0.001)
    monkeypatch.setattr(converging, "_MOST_RETRY_S", 0.01)
    monkeypatch.setattr(arrivals_module, "INTERVAL_S", 0.001)
    monkeypatch.setattr(supervisor, "TICK_S", 0.001)


def wait_until(holds: Callable[[], bool]) -> None:
    """Wait until something holds."""
    until_s = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < until_s, "it never did"
        time.sleep(0.001)


class Source:
    """A repository whose every look ends as the test wants."""

    release_name = "fraud/release.json"
    folder = Path("nowhere")

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.looks = 0

    def look(self) -> str:
        """Look once."""
        self.looks += 1
        if self.error is not None:
            raise self.error
        return str(self.looks)

    def read(self) -> bytes:
        """There is nothing to read."""
        raise RepositoryError(self.release_name, "is not there")


def converger_of(source: Source, product: str = "fraud") -> Reconciler:
    """Follow a source with a server that serves nothing."""
    serving: Any = SimpleNamespace(release="", active=None)
    return Reconciler(serving, source=source, product=product)  # type: ignore[arg-type]


def test_a_release_that_fails_for_a_day_is_still_retried() -> None:
    """2 to the 1,025th is no float: by then, 17 hours, the server must still look."""
    reconciler = converger_of(Source())
    for number in range(1, 1_101):
        reconciler._retry_at_s = 0.0
        reconciler.reconcile()
        # A new release.json begins a new count, so this one stays the same.
        reconciler._source.looks = 0  # type: ignore[attr-defined]
        assert reconciler.status.attempts == number
    assert reconciler.status.state == "failed"
    pause_s = reconciler._retry_at_s - time.monotonic()
    assert pause_s <= converging._MOST_RETRY_S


def test_steps_that_fail_for_a_day_are_still_restarted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A minute apart at most, however often it was in vain."""
    clock = SimpleNamespace(now_s=1_000.0)
    monkeypatch.setattr(product_supervisor.time, "monotonic", lambda: clock.now_s)
    one = SupervisedProduct(
        SimpleNamespace(active=object()),  # type: ignore[arg-type]
        health_probe=SimpleNamespace(product="fraud"),  # type: ignore[arg-type]
        reconciler=SimpleNamespace(problem=""),  # type: ignore[arg-type]
    )
    assert one.may_restart_steps()
    pauses = []
    for _ in range(1_100):
        began_s = clock.now_s
        while not one.may_restart_steps():
            clock.now_s += 5.0
        pauses.append(clock.now_s - began_s)
    assert pauses[:5] == [5.0, 10.0, 20.0, 40.0, 60.0]
    assert set(pauses[5:]) == {60.0}


def test_the_reconciler_survives_and_reports_the_failure() -> None:
    """It reports the release as failed, and retries until the error is gone."""
    source = Source()
    source.error = UnforeseenError("x")
    reconciler = converger_of(source, "follows")
    reconciler.start()
    wait_until(lambda: tallies()["converge-follows"].failures >= 3)
    assert reconciler.status.state == "failed"
    assert "unforeseen" in reconciler.problem
    source.error = None
    wait_until(lambda: tallies()["converge-follows"].failures == 0)
    reconciler.stop()
    assert "is not there" in reconciler.problem  # what it came to foresee


def test_the_health_probe_survives_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    """The product is not ready while its probe fails, and ready right after."""
    broken = threading.Event()
    broken.set()

    def ask(*args: object, **named: object) -> str:
        if broken.is_set():
            raise KeyError("unforeseen")
        return "fraud-1"

    monkeypatch.setattr(heartbeat_module.Prober, "ask", ask)
    health_probe = HealthProbe(Endpoint("127.0.0.1:1"), "beats", interval_s=0.001)
    health_probe.start()
    wait_until(lambda: health_probe.failures > 2)
    assert not health_probe.ready
    broken.clear()
    wait_until(lambda: health_probe.ready)
    assert health_probe.failures == 0
    assert tallies()["heartbeat-beats"].errors > 2
    health_probe.stop()


def test_the_version_detector_survives_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A version may be copied in after an error, too."""
    broken = threading.Event()
    broken.set()
    looks: list[int] = []

    def read(*args: object) -> object:
        looks.append(1)
        if broken.is_set():
            raise OverflowError("unforeseen")
        return SimpleNamespace(model_step="m", steps=("m",))

    monkeypatch.setattr(arrivals_module, "read_product", read)
    monkeypatch.setattr(arrivals_module, "unreleased_versions", lambda *a, **k: [])
    with VersionDetector(tmp_path, product="arrive", quiet_s=1.0):
        wait_until(lambda: tallies()["arrivals-arrive"].failures > 2)
        broken.clear()
        wait_until(lambda: tallies()["arrivals-arrive"].failures == 0)
    assert len(looks) > 3


class Product:
    """A product under supervision whose parts end as the test wants."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.error: Exception | None = None
        self.looked = 0
        self.loaded = self.ready = True
        self.release = "r-1"
        self.problem = ""
        self.health_probe = SimpleNamespace(
            product=name, ready=True, release="r-1", reset_failures=lambda: None
        )
        self.serving = SimpleNamespace(steps=(), active=None)

    @property
    def failures(self) -> int:
        """Count the probes that failed; read by its supervisor at each check."""
        self.looked += 1
        if self.error is not None:
            raise self.error
        return 0

    def start(self) -> None:
        """Begin nothing."""

    def stop(self) -> None:
        """End nothing."""


class Triton:
    """A server that lives, or cannot say."""

    pid = 2**22  # of no process

    def __init__(self) -> None:
        self.error: Exception | None = None

    def alive(self) -> bool:
        """Say whether it lives."""
        if self.error is not None:
            raise self.error
        return True


class Supervised:
    """A supervisor that runs in a thread, with stand-ins for what it watches."""

    def __init__(self, *names: str) -> None:
        self.products = [Product(name) for name in names]
        self.triton = Triton()
        served: Any = SimpleNamespace(triton=self.triton, redis=None)
        self.supervisor = Supervisor(
            served,
            products=self.products,  # type: ignore[arg-type]
            recycling=Recycling(),
            fault=lambda fault: None,
        )
        self.stopped = threading.Event()
        self.ended_with: Exception | None = None
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            self.supervisor.run(self.stopped)
        except ServerError as error:
            self.ended_with = error

    def __enter__(self) -> Supervised:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopped.set()
        self._thread.join(60)
        assert not self._thread.is_alive()


@pytest.fixture(autouse=True)
def _no_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("poll", "scan"):
        monkeypatch.setattr(supervisor.StubWatch, name, lambda self, pid: [])


def test_the_supervisor_survives_errors() -> None:
    """After an error in its own check, it checks again."""
    with Supervised("one") as held:
        wait_until(lambda: held.products[0].looked > 0)
        before = tallies()["supervisor"].errors
        held.triton.error = UnforeseenError("x")
        wait_until(lambda: tallies()["supervisor"].failures > 2)
        held.triton.error = None
        looked = held.products[0].looked
        wait_until(lambda: held.products[0].looked > looked + 2)
        assert tallies()["supervisor"].errors >= before + 3
    assert held.ended_with is None


def test_errors_of_one_product_supervisor_leave_the_others_alone() -> None:
    """One fails; those of the other products and the supervisor continue."""
    with Supervised("broken", "whole") as held:
        broken, whole = held.products
        broken.error = OverflowError("int too large to convert to float")
        wait_until(lambda: tallies()["keep-broken"].failures > 2)
        looked = whole.looked
        wait_until(lambda: whole.looked > looked + 2)
        assert tallies()["keep-whole"].errors == 0
        assert tallies()["supervisor"].failures == 0
        broken.error = None
        wait_until(lambda: tallies()["keep-broken"].failures == 0)
    assert held.ended_with is None


def test_a_part_that_is_given_up_ends_the_supervisor() -> None:
    """A product supervisor gives up by raising a ServerError."""
    with Supervised("ends") as held:
        held.products[0].error = ServerError("ends", "gives up")
        wait_until(lambda: held.ended_with is not None)
    assert "gives up" in str(held.ended_with)


def test_the_admin_port_survives_errors_and_names_stuck_loops(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In the JSON of /readyz and as a metric; the product itself stays ready."""
    import urllib.request

    def get(path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}") as answer:
            return str(answer.read().decode())

    source = Source()
    source.error = UnforeseenError("x")
    reconciler = converger_of(source, "stuck")
    reconciler.start()
    held = Supervised("ports")
    held.products[0].reconciler = reconciler  # type: ignore[attr-defined]
    with serve_admin_port(
        held.supervisor, SupervisorMetrics(), host="127.0.0.1", port=0
    ) as port:
        wait_until(lambda: "converge-stuck" in get("/readyz"))
        page = json.loads(get("/readyz"))
        assert page["ready"]
        assert page["stuck_loops"]["converge-stuck"].endswith(": UnforeseenError")
        wanted = 'tollgate_background_failures{loop="converge-stuck"} '
        lines = [x for x in get("/metrics").splitlines() if x.startswith(wanted)]
        assert float(lines[0].rpartition(" ")[2]) >= 5
        assert 'tollgate_background_errors_total{loop="converge-stuck"}' in get(
            "/metrics"
        )

        def unforeseen(self: object) -> None:
            if broken.is_set():
                raise UnforeseenError("the selector failed")

        broken = threading.Event()
        broken.set()
        server = ThreadingHTTPServer
        monkeypatch.setattr(server, "service_actions", unforeseen)
        monkeypatch.setattr(
            server, "_handle_request_noblock", lambda self: unforeseen(self)
        )
        with pytest.raises(OSError, match=r"timed out|refused|reset|closed"):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/livez", timeout=1)
        wait_until(lambda: tallies()["side-port"].errors > 0)
        broken.clear()
        monkeypatch.undo()
        assert get("/livez") == "live\n"
    reconciler.stop()

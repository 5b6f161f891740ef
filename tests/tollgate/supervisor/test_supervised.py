"""A supervised product, whose processes are killed and stopped one by one."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tollgate.errors import ServerError
from tollgate.server.address import find_server
from tollgate.server.processes.redis_server import EmbeddedRedis
from tollgate.server.serving.embedded import serve
from tollgate.server.triton.control import Endpoint
from tollgate.server.triton.launcher import region_prefix
from tollgate.server.triton.probe import probe
from tollgate.supervisor.fault_log import Fault
from tollgate.supervisor.health_probe import HealthProbe
from tollgate.supervisor.product_supervisor import ProductSupervisor
from tollgate.supervisor.recovery import Flapping, Recovery
from tollgate.supervisor.replicas import query_replica
from tollgate.supervisor.stubs import find_stubs
from tollgate.testing.supervised import Supervised
from tollgate.testing.supervised import supervised as supervised_up

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).parents[3] / "model_repository"


@pytest.fixture(scope="module")
def supervised(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Supervised]:
    """One for all tests; each leaves it ready."""
    state = tmp_path_factory.mktemp("up") / "state"
    with supervised_up(REPOSITORY, state=state) as product:
        yield product


@pytest.mark.parametrize(
    ("part", "number"),
    [
        ("fraud_features", signal.SIGKILL),
        ("fraud_model", signal.SIGKILL),
        ("fraud_decision", signal.SIGKILL),
        ("fraud_decision", signal.SIGSTOP),
        ("redis-server", signal.SIGKILL),
        ("tritonserver", signal.SIGKILL),
        ("tritonserver", signal.SIGSTOP),
    ],
)
def test_a_process_that_dies_or_hangs_is_restarted(
    supervised: Supervised, part: str, number: signal.Signals
) -> None:
    """Without help, the product decides again, and the fault is recorded."""
    before = supervised.recovered_parts()
    os.kill(supervised.pid(part), number)
    supervised.wait_recovered(len(before) + 1)
    assert part in supervised.recovered_parts()[len(before) :]


def test_two_steps_that_die_at_once_are_both_restarted(supervised: Supervised) -> None:
    """One dies while the other is being repaired."""
    before = supervised.recovered_parts()
    for part in ("fraud_model", "fraud_features"):
        os.kill(supervised.pid(part), signal.SIGKILL)
    supervised.wait_recovered(len(before) + 2)
    mended = set(supervised.recovered_parts()[len(before) :])
    assert mended >= {"fraud_features", "fraud_model"}


def test_a_fused_product_that_dies_or_hangs_is_restarted(tmp_path: Path) -> None:
    """Its only process is killed and stopped; the server is not restarted."""
    words = ("up", "--form", "fused")
    product = Supervised(REPOSITORY, tmp_path / "state", words=words)
    try:
        product.wait(lambda: bool(product.health_url) and product.ready())
        server = product.pid("tritonserver")
        for number in (signal.SIGKILL, signal.SIGSTOP):
            before = product.recovered_parts()
            os.kill(product.pid("fraud"), number)
            product.wait_recovered(len(before) + 1)
        assert product.recovered_parts() == ["fraud", "fraud"]
        assert product.pid("tritonserver") == server
        metrics = product.get("/metrics")[1]
        assert 'tollgate_step_resident_bytes{instance="fraud_0_0"' in metrics
        os.kill(server, signal.SIGKILL)
        product.wait_recovered(3)
        assert [
            stub.step.model for stub in find_stubs(product.pid("tritonserver"))
        ] == ["fraud"]
    finally:
        status = product.stop()
    assert status == 0


def test_the_admin_port_reports_health_releases_and_metrics(
    supervised: Supervised,
) -> None:
    """Live, ready per product, and metrics of the repairs."""
    assert supervised.get("/livez")[0] == 200
    status, text = supervised.get("/readyz/fraud")
    assert status == 200
    assert json.loads(text)["products"]["fraud"]["release"]
    assert supervised.get("/readyz/absent")[0] == 404
    assert supervised.get("/elsewhere")[0] == 404
    metrics = supervised.get("/metrics")[1]
    assert 'tollgate_ready{product="fraud",release="fraud-1"} 1.0' in metrics
    assert 'tollgate_step_resident_bytes{instance="fraud_model_0_0"' in metrics
    assert "tollgate_probe_seconds_count" in metrics


def test_a_bare_path_names_the_pages(supervised: Supervised) -> None:
    """Each path of the list answers, and so does the metrics port's."""
    status, text = supervised.get("/")
    lines = [line for line in text.splitlines() if line.startswith("/")]
    named = {line.split()[0] for line in lines}
    assert status == 200
    assert named == {
        *("/livez", "/readyz", "/readyz/PRODUCT"),
        *("/releases", "/versions", "/metrics", "/console"),
    }
    assert all(len(line.split()) > 2 for line in lines)
    for path in named:
        assert supervised.get(path.replace("PRODUCT", "fraud"))[0] == 200
    metrics = supervised.metrics_url
    with urllib.request.urlopen(metrics.removesuffix("metrics"), timeout=5) as answer:
        assert "\n/metrics " in answer.read().decode()


def test_steps_reserve_the_shared_memory_that_is_reported(
    supervised: Supervised,
) -> None:
    """The kernel shows a region of that size for each step, all of it allocated."""
    supervised.wait(supervised.ready)
    words = supervised.output.read_text().partition("limits ")[2]
    megabytes = int(words.partition(" MiB for each Python step")[0].split()[-1])
    folder = Path("/dev/shm")
    regions = list(folder.glob(f"{region_prefix(supervised.state)}*"))
    assert len(regions) >= 3
    for region in regions:
        assert region.stat().st_size == megabytes << 20
        assert region.stat().st_blocks * 512 == megabytes << 20
    assert "connections" in words


def test_probes_use_one_connection(supervised: Supervised) -> None:
    """The kernel shows the same client port before and after several probes.

    A probe that fails closes its connection, so a busy machine may need a few tries.
    """

    def probes() -> float:
        lines = supervised.get("/metrics")[1].splitlines()
        (line,) = [x for x in lines if x.startswith("tollgate_probe_seconds_count")]
        return float(line.split()[1])

    port = int(supervised.grpc_url.rpartition(":")[2])

    def lasts() -> bool:
        before, at_first = client_ports(port), probes()
        supervised.wait(lambda: probes() >= at_first + 3)
        return bool(before & client_ports(port))

    supervised.wait(lasts)


def client_ports(server_port: int) -> set[int]:
    """Name the local ports of this machine's connections to a port, as in proc(5)."""
    found = set()
    # gRPC connects through sockets of IPv6, also to an address of IPv4.
    tables = [Path(f"/proc/net/{name}").read_text() for name in ("tcp", "tcp6")]
    for line in (line for one in tables for line in one.splitlines()[1:]):
        _, local, remote, state, *_ = line.split()
        if state == "01" and int(remote.rpartition(":")[2], 16) == server_port:
            found.add(int(local.rpartition(":")[2], 16))
    return found


def test_sigterm_ends_it_and_everything_it_started(tmp_path: Path) -> None:
    """Exit status 0; no process and no address is left."""
    product = Supervised(REPOSITORY, tmp_path / "state")
    try:
        product.wait(lambda: bool(product.health_url) and product.ready())
        server = product.pid("tritonserver")
        stubs = [stub.pid for stub in find_stubs(server)]
    finally:
        status = product.stop()
    assert status == 0
    assert len(stubs) == 3
    assert not any(Path(f"/proc/{pid}").exists() for pid in (server, *stubs))
    assert find_server(tmp_path / "state") is None


def test_all_ports_can_be_of_ipv6(tmp_path: Path) -> None:
    """As the chart's `server.host`; other processes find it there."""
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no ::1")
    with EmbeddedRedis(tmp_path / "store") as redis:
        words = ("serve", "--host", "::1", "--store-url", redis.url)
        product = Supervised(REPOSITORY, tmp_path / "state", words=words)
        try:
            product.wait(lambda: bool(product.health_url) and product.ready())
            found = find_server(tmp_path / "state")
            assert found is not None
            (fraud,) = query_replica(found.side_port_url)
            with urllib.request.urlopen(product.metrics_url, timeout=5) as page:
                assert b"nv_inference_request_success" in page.read()
        finally:
            status = product.stop()
    assert (fraud.running, status) == ("fraud-1", 0)


def test_a_product_that_answers_others_is_overloaded_and_a_hung_one_is_not(
    tmp_path: Path,
) -> None:
    """Only decisions after the first failed probe count."""
    with serve(REPOSITORY, state=tmp_path / "state") as server:
        health_probe = HealthProbe(server.triton, "fraud", timeout_s=0.5)
        health_probe.send()
        assert health_probe.ready
        (stub,) = (
            one
            for one in find_stubs(server.triton.pid)
            if one.step.model == "fraud_decision"
        )
        os.kill(stub.pid, signal.SIGSTOP)
        try:
            health_probe.send()
            assert health_probe.failures == 1
            assert not health_probe.others_get_answers()
        finally:
            os.kill(stub.pid, signal.SIGCONT)
        probe(server.triton, "fraud", rows=[1])  # somebody else
        assert health_probe.others_get_answers()
        health_probe.send()
        assert health_probe.ready


def test_a_failed_repair_is_retried_after_a_second() -> None:
    """Until then, nothing is tried and nothing is counted."""
    tried: list[str] = []
    faults: list[Fault] = []

    def fail() -> None:
        tried.append("x")
        raise ServerError("x", "no")

    recovery = Recovery([], fault=faults.append, flapping=Flapping(most=1))
    recovery.repair("x", "died", fail)
    recovery.repair("x", "died", fail)
    assert tried == ["x"]
    assert [(one.mended_s, one.outcome) for one in faults] == [(None, "x: no")]
    recovery._retry_at_s.clear()
    recovery.repair("x", "died", fail)
    recovery._retry_at_s.clear()
    with pytest.raises(ServerError, match="gives up: x failed 2 times in a row"):
        recovery.repair("x", "died", fail)
    assert tried == ["x", "x"]
    assert faults[-1].outcome.startswith("given up")


def test_a_failing_product_is_skipped_for_a_while_if_another_one_decides() -> None:
    """It is retried later; as the only product it would end the supervisor."""
    nowhere = Endpoint("127.0.0.1:1")
    sick, well = HealthProbe(nowhere, "sick"), HealthProbe(nowhere, "well")
    faults: list[Fault] = []
    recovery = Recovery([sick, well], fault=faults.append, flapping=Flapping(most=0))
    recovery.repair("step", "died", lambda: None, product="sick")
    well._answered_s = time.monotonic()
    recovery.repair("step", "died", lambda: None, product="sick")
    assert faults[-1].outcome.startswith("left for 60 s: step failed 1 times in a row")
    recovery._retry_at_s.clear()
    recovery.repair("step", "died", lambda: None, product="sick")
    assert faults[-1].outcome == "mended"
    assert well.ready
    recovery._retry_at_s.clear()
    well.reset_failures()  # repaired a moment ago: not known to fail
    recovery.repair("step", "died", lambda: None, product="sick")
    assert faults[-1].outcome.startswith("left for 60 s")
    recovery._retry_at_s.clear()
    recovery.repair("step", "died", lambda: None, product="sick")
    recovery._retry_at_s.clear()
    well.failures = 1
    with pytest.raises(ServerError, match="gives up"):
        recovery.repair("step", "died", lambda: None, product="sick")


@pytest.mark.parametrize(
    ("other", "restarts"),
    [
        ({"failures": 0}, False),  # repaired a moment ago, and not yet probed
        ({"failures": 2}, True),
        ({"failures": 2, "answers": True}, False),
        ({"failures": 0, "loaded": False}, True),
    ],
)
def test_the_server_is_restarted_only_where_no_other_product_decides(
    other: dict[str, Any], restarts: bool
) -> None:
    """A step of one product could not be restarted."""

    def renew(model: str) -> None:
        raise ServerError(model, "did not load")

    def product(
        name: str, *, failures: int, loaded: bool = True, answers: bool = False
    ) -> Any:
        return SimpleNamespace(
            name=name,
            loaded=loaded,
            failures=failures,
            ready=False,
            others_get_answers=lambda: answers,
            serving=SimpleNamespace(renew=renew, steps=("step",)),
        )

    restarted: list[str] = []
    supervisor = ProductSupervisor(
        product("sick", failures=1),
        others=[product("other", **other)],
        triton=SimpleNamespace(),  # type: ignore[arg-type]
        recovery=Recovery([], fault=lambda _: None, flapping=Flapping()),
        restart=restarted.append,
    )
    supervisor._restart_step("step", "a step died")
    assert restarted == (["step could not be restarted"] if restarts else [])

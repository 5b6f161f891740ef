"""`tollgate budget`: each layer of a running server against its slo.yaml."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.support.products.small_shop import release_shop, write_shop
from tollgate.features.spec.feature_spec import all_fields, load_spec, wire_inputs
from tollgate.latency_budget.layers import MEASURED
from tollgate.latency_budget.step_batches import record_batches
from tollgate.load.arrivals import evenly
from tollgate.load.asyncio_sender import send
from tollgate.load.bodies import with_id
from tollgate.load.synthetic import synthetic_purchases
from tollgate.server.address import find_server
from tollgate.supervisor.stubs import find_stubs
from tollgate.testing.supervised import Supervised, supervised
from tollgate_client.inputs import check_columns
from tollgate_client.wire import requests_of

pytestmark = pytest.mark.slow

CHECKOUT = Path(__file__).parents[3]
LAYERS = ["request", "features", "model", "post_processing", "response"]
STEPS = ("fraud_features", "fraud_model", "fraud_decision")
LOAD = ("--rate", "50", "--seconds", "5")
# For machines that do much else: what is judged here is the command.
ROOM = ("--room", "400")


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The committed product."""
    folder = tmp_path_factory.mktemp("budget") / "model_repository"
    leave = shutil.ignore_patterns("__pycache__")
    return Path(shutil.copytree(CHECKOUT / "model_repository", folder, ignore=leave))


@pytest.fixture(scope="module")
def served(repository: Path) -> Iterator[Supervised]:
    """One server for the tests of this module."""
    with supervised(repository, state=repository.parent / "state") as server:
        yield server


def stub_pids(served: Supervised) -> set[int]:
    """Return the process ids of the steps."""
    server = find_server(served.state)
    assert server is not None
    return {stub.pid for stub in find_stubs(server.pid)}


def budget(state: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the command."""
    command = "from tollgate.cli import main; main()"
    return subprocess.run(
        [sys.executable, "-c", command, "budget", "--state", str(state), *words],
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_product_within_its_budget(served: Supervised) -> None:
    """Every layer is measured and has its limit; nothing is left behind."""
    done = budget(served.state, *LOAD, *ROOM, "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert [one["layer"] for one in result["layers"]] == LAYERS
    assert [one["limit_ms"] for one in result["layers"]] == [800, 6000, 8000, 1200, 800]
    request, *others = result["layers"]
    assert (request["p50_ms"], request["p99_ms"]) == (None, None)
    assert request["mean_ms"] > 0
    assert all(0 < one["p50_ms"] <= one["p99_ms"] for one in others)
    # A request waits 4.5 ms before the features, unless others fill its batch.
    assert result["layers"][1]["p99_ms"] > 4.5
    assert result["broken"] == []
    assert list((served.state / "traces").iterdir()) == []
    assert result["lost_batches"] == 0
    assert result["sender"] == ("compiled" if shutil.which("cc") else "asyncio")


def test_layers_add_up_to_what_triton_counted(served: Supervised) -> None:
    """The three in the middle are the latency in the server, and it is Triton's own.

    Triton's time of a request begins before the feature step has it in its queue and
    ends after the decision: it lies between the three layers and all five. Heartbeats
    are in Triton's mean, too, so a twentieth is left for them.
    """
    done = budget(served.state, *LOAD, *ROOM, "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    mean_ms = {one["layer"]: one["mean_ms"] for one in result["layers"]}
    inside_ms = sum(mean_ms[one] for one in ("features", "model", "post_processing"))
    assert result["in_server"]["mean_ms"] == pytest.approx(inside_ms)
    assert 0.95 * inside_ms < result["triton_mean_ms"] < 1.05 * sum(mean_ms.values())
    # Each layer has in it what Triton counted of its step.
    for layer, step in (
        ("features", "fraud_features"),
        ("model", "fraud_model"),
        ("post_processing", "fraud_decision"),
    ):
        queue_ms = result["steps"][step]["queue_ms"]
        assert mean_ms[layer] > 0.95 * queue_ms > 0
    assert sum(result["busy_together"]) == pytest.approx(1)


def test_a_request_is_in_one_step_at_a_time(
    served: Supervised, repository: Path
) -> None:
    """Each step reports it once, in their order: what works at once are others."""
    spec = load_spec(repository / "fraud_features/1/features.yaml")
    first_us = time.time_ns() // 1000 - 10_000_000
    columns = synthetic_purchases(spec, 200, seed=3, first_us=first_us)
    fields = all_fields(spec)
    checked = check_columns(columns, inputs=wire_inputs(spec), fields=fields)
    requests = list(
        requests_of(checked, product="fraud", size=1, dry_run=True, deadline_s=10)
    )
    requests = [with_id(one, str(number)) for number, one in enumerate(requests)]
    with record_batches(served.state, STEPS) as found:
        url = served.grpc_url
        at_s = evenly(len(requests), rate_per_s=400)
        sent = asyncio.run(send(requests, at_s=at_s, grpc_url=url, timeout_s=10))
    assert sent.answered.all()
    (result,) = found
    assert result.lost == 0
    at_us = np.zeros((3, 2, len(requests)))
    for place in range(3):
        of = result.step[result.batch] == place
        assert sorted(result.request[of].tolist()) == list(range(len(requests)))
        at_us[place, 0, result.request[of]] = result.start_us[result.batch[of]]
        at_us[place, 1, result.request[of]] = result.end_us[result.batch[of]]
    assert (np.diff(at_us.reshape(6, -1), axis=0) >= 0).all()


def test_a_killed_measurement_costs_the_server_nothing(served: Supervised) -> None:
    """Nobody reads the pipe that the steps write to: no step ends, the next one looks.

    A step that died of it would be restarted, as another process.
    """
    before = stub_pids(served)
    command = "from tollgate.cli import main; main()"
    words = ("--rate", "200", "--seconds", "30", "--state", str(served.state))
    one = subprocess.Popen([sys.executable, "-c", command, "budget", *words])
    pipe = served.state / "traces/batches"
    until_s = time.monotonic() + 600
    while not pipe.exists() and time.monotonic() < until_s:
        time.sleep(0.05)
    time.sleep(2)
    one.kill()
    one.wait()
    assert pipe.exists()
    done = budget(served.state, *LOAD, *ROOM)
    assert done.returncode == 0, done.stderr
    assert stub_pids(served) == before


def test_the_layer_that_broke_it_is_named(served: Supervised, repository: Path) -> None:
    """And no other; exit status 1. A table for people has it, too."""
    slo = repository / "fraud/slo.yaml"
    before = slo.read_text()
    slo.write_text("budget_ms: {features: 0.001}\n")
    try:
        done = budget(served.state, *LOAD, *ROOM)
    finally:
        slo.write_text(before)
    assert done.returncode == 1
    assert done.stderr.startswith("broken: features takes ")
    assert "response" not in done.stderr
    (line,) = [one for one in done.stdout.splitlines() if one.startswith("features")]
    assert line.rstrip().endswith("broken")


def test_what_cannot_be_measured_is_one_line(
    served: Supervised, repository: Path, tmp_path: Path
) -> None:
    """No server; too few requests; no aim to judge by."""
    assert "no server runs" in budget(tmp_path).stderr
    few = budget(served.state, "--rate", "1", "--seconds", "3")
    assert (few.returncode, few.stderr.count("\n")) == (2, 1)
    assert "1 requests that count are fewer than 100" in few.stderr
    for much in (("--rate", "1e9"), ("--seconds", "inf")):
        done = budget(served.state, *much)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert "so many requests are more than 2,000,000" in done.stderr
    slo = repository / "fraud/slo.yaml"
    before = slo.read_text()
    slo.write_text("{}\n")
    try:
        done = budget(served.state, "--target")
    finally:
        slo.write_text(before)
    assert "slo.yaml has no target_ms" in done.stderr


def test_answers_are_judged_from_outside(
    served: Supervised, repository: Path, tmp_path: Path
) -> None:
    """An address and a repository do; the layers are not measured."""
    url = ("--grpc-url", f"dns:///{served.grpc_url}", "--repository", str(repository))
    done = budget(tmp_path, *url, *LOAD, *ROOM, "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["answered_percent"] == result["in_time_percent"] == 100
    assert 5 < result["p50_ms"] <= result["p99_ms"] <= result["within_ms"] == 20_000
    slo = repository / "fraud/slo.yaml"
    before = slo.read_text()
    slo.write_text("latency_objective_ms: 0.01\n")
    try:
        done = budget(tmp_path, *url, *LOAD)
    finally:
        slo.write_text(before)
    assert done.returncode == 1, done.stderr
    assert "0.00 % decided within 0.01 ms, 99.9 % are promised" in done.stdout
    assert "broken: too few were decided in time" in done.stderr
    nobody = ("--grpc-url", "127.0.0.1:1", "--repository", str(repository))
    done = budget(tmp_path, *nobody, *LOAD)
    assert done.returncode == 1
    assert "nobody answers at 127.0.0.1:1" in done.stderr


@pytest.mark.parametrize("form", ["ensemble", "fused"])
def test_a_product_that_ranks_has_its_layers(tmp_path: Path, form: str) -> None:
    """The table of 100 ms; the search for candidates is a layer between two others."""
    repository = tmp_path / "models"
    spec = write_shop(repository)
    config = repository / "shop_candidates/config.pbtxt"
    text = config.read_text()
    config.write_text(text.replace('string_value: "20"', 'string_value: "5000"'))
    (repository / "shop/slo.yaml").write_text("latency_objective_ms: 100\n")
    release_shop(repository, spec)
    words = ("up", "--product", "shop", "--form", form)
    with supervised(repository, state=tmp_path / "state", words=words) as server:
        for apply in ((), ("--apply",)):
            chosen = ("--product", "shop", *LOAD, *ROOM, *apply, "--json")
            done = budget(server.state, *chosen)
            assert done.returncode == 0, done.stderr
            result = json.loads(done.stdout)
            limits = {one["layer"]: one["limit_ms"] for one in result["layers"]}
            assert list(limits) == list(MEASURED)
            assert list(limits.values()) == [1600, 4000, 4800, 16000, 8000, 1600]
            mean_ms = {one["layer"]: one["mean_ms"] for one in result["layers"]}
            assert all(mean_ms.values())
            inside = ("features", "candidates", "model", "post_processing")
            inside_ms = sum(mean_ms[one] for one in inside)
            assert result["in_server"]["mean_ms"] == pytest.approx(inside_ms)
            whole_ms = sum(mean_ms.values())
            assert 0.95 * inside_ms < result["triton_mean_ms"] < 1.05 * whole_ms
            steps = ["shop_candidates", "shop_model", "shop_ranking"]
            assert list(result["steps"]) == steps
            assert result["lost_batches"] == 0
        grpc = ("--grpc-url", server.grpc_url, "--repository", str(repository))
        done = budget(server.state, "--product", "shop", *LOAD, *ROOM, *grpc)
        assert done.returncode == 0, done.stderr
        assert "decided within 40000 ms" in done.stdout

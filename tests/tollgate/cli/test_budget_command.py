"""`tollgate budget`: each layer of a running server against its slo.yaml."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from loadtests.supervised import Supervised, supervised

pytestmark = pytest.mark.slow

CHECKOUT = Path(__file__).parents[3]
LAYERS = ["request", "features", "model", "post_processing", "response"]
LOAD = ("--rate", "50", "--seconds", "5")
# For machines that do much else: what is judged here is the command.
ROOM = ("--room", "40")


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
    told = json.loads(done.stdout)
    assert [one["layer"] for one in told["layers"]] == LAYERS
    assert [one["limit_ms"] for one in told["layers"]] == [80, 600, 800, 120, 80]
    assert all(0 < one["p50_ms"] <= one["p99_ms"] for one in told["layers"])
    # Requests wait 4.5 ms before the features.
    assert told["layers"][1]["p50_ms"] > 4.5
    assert told["broken"] == []
    assert list((served.state / "traces").iterdir()) == []


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
    """An address and a repository do; layers are not told, a promise may be broken."""
    url = ("--grpc-url", f"dns:///{served.grpc_url}", "--repository", str(repository))
    done = budget(tmp_path, *url, *LOAD, *ROOM, "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["answered_percent"] == told["in_time_percent"] == 100
    assert 5 < told["p50_ms"] <= told["p99_ms"] <= told["within_ms"] == 2000
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

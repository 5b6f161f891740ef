"""Two products on one server: what happens to one does not reach the other."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import redis
from typer.testing import CliRunner

from tests.support.products.committed_product import copy_product
from tests.support.products.second_product import (
    add_product,
    release_first,
)
from tollgate.cli.app import app
from tollgate.errors import RepositoryError
from tollgate.repository.releases.release_file import release_path
from tollgate.server.address import Address, find_server
from tollgate.server.processes.redis_server import EmbeddedRedis
from tollgate.server.serving.copy_slots import Slots
from tollgate.supervisor.fault_log import Fault, read_faults
from tollgate.supervisor.stubs import find_stubs
from tollgate.testing.supervised import Supervised
from tollgate_client.client import Client

pytestmark = pytest.mark.slow

BROKEN = 'raise RuntimeError("torn")\n'


class Pair(msgspec.Struct):
    """fraud and credit, supervised."""

    server: Supervised
    repository: Path
    store_url: str
    at_start: dict[str, Any]  # what /readyz said while credit could not be loaded

    @property
    def address(self) -> Address:
        """Where they are served."""
        found = find_server(self.server.state)
        assert found is not None
        return found

    def pids(self, product: str) -> dict[str, int]:
        """Name the processes of a product's steps, and of the server."""
        server = self.server.pid("tritonserver")
        found = {
            stub.step.model: stub.pid
            for stub in find_stubs(server)
            if stub.step.model.startswith(f"{product}_")
        }
        return {"tritonserver": server, **found}

    def ready(self, product: str) -> bool:
        """Return whether a product decides."""
        return self.server.get(f"/readyz/{product}")[0] == 200

    def status_of(self, product: str) -> dict[str, Any]:
        """Return the reconciliation state of a product."""
        found = json.loads(self.server.get("/releases")[1])
        return next(one for one in found if one["product"] == product)

    def faults(self) -> list[Fault]:
        """Read what went wrong so far."""
        return read_faults(self.server.state)


@pytest.fixture(scope="module")
def pair(
    tmp_path_factory: pytest.TempPathFactory, redis_server: EmbeddedRedis
) -> Iterator[Pair]:
    """One server for all tests; credit comes to it when its release is mended."""
    folder = tmp_path_factory.mktemp("pair")
    repository = copy_product(folder / "models")
    add_product(repository, "credit")
    step = repository / "credit_decision/1/model.py"
    good = step.read_text()
    step.write_text(BROKEN)
    release_first(repository, "credit")
    with redis.Redis.from_url(redis_server.url) as store:
        store.flushall()
    words = ("serve", "--store-url", redis_server.url)
    both = ("--product", "fraud", "--product", "credit")
    server = Supervised(repository, folder / "state", words=(*words, *both))
    try:
        server.wait(lambda: bool(server.health_url))
        server.wait(lambda: server.get("/readyz/fraud")[0] == 200)
        at_start = json.loads(server.get("/readyz")[1])
        step.write_text(good)
        release_first(repository, "credit")
        server.wait(server.ready)
        yield Pair(server, repository, redis_server.url, at_start)
    finally:
        server.stop()


def test_one_that_does_not_load_at_start_leaves_the_other(pair: Pair) -> None:
    """It says why, and is there as soon as its release can be served."""
    assert not pair.at_start["ready"]
    assert pair.at_start["products"]["fraud"]["ready"]
    problem = pair.at_start["products"]["credit"]["problem"]
    assert "is not loaded: credit_decision: did not load" in problem
    assert "torn" in problem
    pair.server.wait(lambda: pair.status_of("credit")["running"] == "credit-1")
    assert pair.address.products == ("fraud", "credit")


def test_a_dead_step_is_mended_and_the_other_product_not_touched(pair: Pair) -> None:
    """No process of the other one is another, and it is ready all the while."""
    before, faults = pair.pids("fraud"), len(pair.faults())
    os.kill(pair.pids("credit")["credit_features"], signal.SIGKILL)
    while len(pair.faults()) == faults or not pair.ready("credit"):
        assert pair.ready("fraud")
    assert pair.pids("fraud") == before
    found = {fault.part: fault for fault in pair.faults()[faults:]}
    assert {fault.product for fault in found.values()} == {"credit"}
    fault = found["credit_features"]
    assert (fault.outcome, fault.release) == ("mended", "credit-1")
    metrics = pair.server.get("/metrics")[1]
    counted = 'mended="true",part="credit_features",product="credit"}'
    assert f"tollgate_faults_total{{{counted}" in metrics


def test_one_that_cannot_be_mended_holds_up_no_other(
    pair: Pair, tmp_path: Path
) -> None:
    """The other is mended while it loads; the server is not restarted for it."""
    gate = tmp_path / "gate"
    before, faults = pair.pids("fraud"), len(pair.faults())
    slots = pair.server.state / "served/credit_decision"
    (slot,) = slots.glob("1[0-9][0-9][0-9]")
    step = slot / "model.py"
    good = step.read_text()
    waits = f"while not os.path.exists({str(gate)!r}): time.sleep(0.05)"
    step.write_text(f"import os, time\n{waits}\n{BROKEN}")
    os.kill(pair.pids("credit")["credit_decision"], signal.SIGKILL)
    pair.server.wait(lambda: not pair.ready("credit"))
    os.kill(pair.pids("fraud")["fraud_model"], signal.SIGKILL)
    pair.server.wait(lambda: len(pair.faults()) > faults and pair.ready("fraud"))
    gate.touch()
    pair.server.wait(lambda: len(pair.faults()) > faults + 1)
    first, second = pair.faults()[faults : faults + 2]
    assert (first.part, first.outcome) == ("fraud_model", "mended")
    assert (second.part, second.mended_s) == ("credit_decision", None)
    assert "torn" in second.outcome
    assert pair.ready("fraud")
    step.write_text(good)
    pair.server.wait(pair.server.ready)
    after = pair.pids("fraud")
    assert before.pop("fraud_model") != after.pop("fraud_model")
    assert after == before


def test_a_bad_release_is_one_products_affair(pair: Pair) -> None:
    """It is not taken; both go on as they were."""
    path = release_path(pair.repository, "credit")
    good = path.read_bytes()
    path.write_bytes(good.replace(b'"credit-1"', b'"credit-2"').replace(b": 1", b": 9"))
    pair.server.wait(lambda: pair.status_of("credit")["state"] == "failed")
    assert pair.status_of("credit")["running"] == "credit-1"
    assert pair.status_of("fraud")["state"] == "converged"
    assert pair.server.ready()
    path.write_bytes(good)
    pair.server.wait(lambda: pair.status_of("credit")["state"] == "converged")


def test_a_server_that_died_comes_back_with_both(pair: Pair) -> None:
    """From its own copies, at the same ports."""
    address, faults = pair.address, len(pair.faults())
    os.kill(address.pid, signal.SIGKILL)
    pair.server.wait(lambda: len(pair.faults()) > faults)
    pair.server.wait(pair.server.ready)
    fault = pair.faults()[faults]
    assert (fault.product, fault.part) == ("", "tritonserver")
    assert fault.release == "fraud-1, credit-1"
    assert pair.address.grpc_url == address.grpc_url


def test_the_same_ids_are_different_purchases(pair: Pair, tmp_path: Path) -> None:
    """No window, earlier decision or record of one is the other's."""
    now_us = time.time_ns() // 1000
    for product, amount in (("fraud", 10.0), ("credit", 20.0), ("fraud", 10.0)):
        with Client(pair.address.grpc_url, product=product, timeout_s=20) as client:
            decided = client.decide(
                {
                    "transaction_id": ["t1"],
                    "customer_id": ["c1"],
                    "terminal_id": ["x1"],
                    "amount": [amount],
                    "event_time": [now_us],
                }
            )
        assert decided.error.tolist() == [""]
        assert decided.release.tolist() == [f"{product}-1"]
    with redis.Redis.from_url(pair.store_url) as store:
        keys = {key.split(b":")[1] for key in store.scan_iter("tollgate:*")}
    assert keys == {b"fraud", b"credit"}
    for product in ("fraud", "credit"):
        state = ("--state", str(pair.server.state), "--product", product)
        _run("journal", "run", "--until-idle", *state)
        folder = pair.server.state / "journal" / product
        assert "as sealed" in _run("journal", "verify", str(folder))
        text = _run("explain", "t1", *state, "--repository", str(pair.repository))
        assert f"{product}-1" in text


def test_two_products_cannot_have_a_step_in_common(tmp_path: Path) -> None:
    """Each would unload what the other one needs."""
    slots = Slots(tmp_path / "served")
    slots.claim("fraud_model", product="fraud")
    slots.claim("fraud_model", product="fraud")
    with pytest.raises(RepositoryError, match="is a step of fraud and of credit"):
        slots.claim("fraud_model", product="credit")


def _run(*arguments: str) -> str:
    """Run a command that must succeed; its output in one line."""
    done = CliRunner().invoke(app, [*arguments])
    assert done.exit_code == 0, done.output + repr(done.exception)
    return " ".join(done.output.split())

"""A challenger's model answers a share of the customers, in its own name."""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import redis
from onnx import TensorProto, helper, numpy_helper

from tollgate.engine.decision_stage import in_share
from tollgate.errors import RepositoryError
from tollgate.journal.decision_record import decode_chunk
from tollgate.journal.stream_entries import stream_key
from tollgate.repository.hashes import hash_version
from tollgate.repository.releases.release_file import (
    Challenger,
    Release,
    read_release,
)
from tollgate.repository.releases.serving_plan import plan_serving
from tollgate.repository.snapshot import RepositorySnapshot
from tollgate.server.serving.embedded import Embedded, serve
from tollgate.server.triton import control
from tollgate_client import Client, Decisions, join

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).parents[3] / "model_repository"
STEP = "fraud_model"
SEED = 11
CONSTANT = 0.625  # what the challenger says of everything
ROWS = 200
PATIENCE_S = 600.0
NOW_US = time.time_ns() // 1000


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The committed product; its model has a second version that says a constant."""
    copy = tmp_path_factory.mktemp("canary") / "model_repository"
    shutil.copytree(REPOSITORY, copy, ignore=shutil.ignore_patterns("__pycache__"))
    config = copy / "fraud_features/config.pbtxt"  # a busy machine's store is late
    config.write_text(config.read_text().replace('_value: "5"', '_value: "5000"'))
    second = copy / STEP / "2"
    second.mkdir()
    content = constant_model()
    (second / "model.onnx").write_bytes(content)
    fields = json.loads((copy / STEP / "1" / "artifact.json").read_text())
    fields["sha256"] = hashlib.sha256(content).hexdigest()
    fields.pop("files", None)
    (second / "artifact.json").write_text(json.dumps(fields))
    return copy


def constant_model() -> bytes:
    """softmax(0 features + b), which is CONSTANT for fraud."""
    margin = np.log(CONSTANT / (1 - CONSTANT))
    bias = np.array([0.0, margin], np.float32)
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["features", "zero"], ["nothing"]),
            helper.make_node("Add", ["nothing", "bias"], ["margin"]),
            helper.make_node("Softmax", ["margin"], ["probabilities"]),
        ],
        "constant",
        [value("features", TensorProto.FLOAT, ["n", 15])],
        [value("probabilities", TensorProto.FLOAT, ["n", 2])],
        [
            numpy_helper.from_array(np.zeros((15, 2), np.float32), "zero"),
            numpy_helper.from_array(bias, "bias"),
        ],
    )
    opsets = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    content: bytes = model.SerializeToString()
    return content


@pytest.fixture(scope="module", params=["ensemble", "fused"])
def served(repository: Path, request: pytest.FixtureRequest) -> Iterator[Embedded]:
    """A server in each form for the tests of this module; they run in their order."""
    state = repository.parent / request.param
    with serve(repository, state=state, form=request.param) as server:
        yield server


def with_canary(repository: Path, *, percent: float, **other: int) -> Release:
    """Describe the release with a canary."""
    release = read_release(repository, product="fraud")
    challenger = Challenger(
        release="fraud-2",
        versions={**release.versions, STEP: 2, **other},
        spec_hash=release.spec_hash,
        mode="canary",
        percent=percent,
        seed=SEED,
        actor="test",
        reason="test",
        time="2026-01-01T00:00:00Z",
    )
    hashes = release.hashes | hash_version(repository, STEP, version=2)
    return release.__class__(
        **{
            name: getattr(release, name)
            for name in release.__struct_fields__
            if name not in ("challenger", "hashes")
        },
        challenger=challenger,
        hashes=hashes,
    )


def go(served: Embedded, repository: Path, release: Release) -> None:
    """Have the server go there."""
    serving = served.serving["fraud"]
    plan = plan_serving(RepositorySnapshot(repository), release, form=serving.form)
    serving.switch(plan, progress=lambda _: None)


def decide(served: Embedded, *, dry_run: bool = True) -> tuple[list[bytes], Decisions]:
    """Ask for each customer once; dry, all asking finds the same."""
    kind = "dry" if dry_run else "t"
    customers = [b"c%d" % row for row in range(ROWS)]
    with Client(served.grpc_url, timeout_s=20) as client:
        parts = client.decide_many(
            {
                "transaction_id": [f"{kind}{row}" for row in range(ROWS)],
                "customer_id": [one.decode() for one in customers],
                "terminal_id": [f"m{row}" for row in range(ROWS)],
                "amount": [20.0] * ROWS,
                "event_time": [NOW_US] * ROWS,
            },
            dry_run=dry_run,
        )
        return customers, join(list(parts))


def of_challenger(answer: Decisions) -> np.ndarray:
    """Tell which rows the challenger answered, by the release they name."""
    return np.array([name == "fraud-2" for name in answer.release])


def test_a_share_of_the_customers_gets_the_challengers_answers(
    served: Embedded, repository: Path
) -> None:
    """Just those of the share, and a larger share holds all of a smaller one."""
    _, before = decide(served)
    assert set(before.release) == {"fraud-1"}
    last = np.zeros(ROWS, bool)
    for percent in (0.0, 25.0, 60.0, 100.0):
        go(served, repository, with_canary(repository, percent=percent))
        customers, answer = decide(served)
        chosen = of_challenger(answer)
        assert (
            chosen.tolist() == in_share(customers, percent=percent, seed=SEED).tolist()
        )
        assert not (last & ~chosen).any()
        score = np.asarray(answer.score)
        np.testing.assert_allclose(score[chosen], CONSTANT, rtol=1e-6)
        np.testing.assert_array_equal(score[~chosen], np.asarray(before.score)[~chosen])
        last = chosen
    assert last.all()


def test_the_journal_keeps_each_answer_under_its_own_release(
    served: Embedded, repository: Path
) -> None:
    """Its score too; every decision once."""
    go(served, repository, with_canary(repository, percent=50.0))
    _, answer = decide(served, dry_run=False)
    kept: dict[bytes, tuple[str, float]] = {}
    until_s = time.monotonic() + PATIENCE_S
    with redis.Redis.from_url(served.store_url) as store:
        while len(kept) < ROWS:
            assert time.monotonic() < until_s, f"{len(kept)} of {ROWS}"
            chunks = [
                decode_chunk(entry[b"c"])
                for _, entry in store.xrange(stream_key("fraud"))
                if b"c" in entry
            ]
            assert sum(len(chunk) for chunk in chunks) <= ROWS
            kept = {
                one: (chunk.release, float(score))
                for chunk in chunks
                for one, score in zip(
                    chunk.transaction_id, chunk.score.tolist(), strict=True
                )
            }
    for row in range(ROWS):
        found = kept[b"t%d" % row]
        assert found == (answer.release[row], float(answer.score[row]))
    names = {name for name, _ in kept.values()}
    assert names == {"fraud-1", "fraud-2"}


def test_without_it_nothing_of_it_is_left(served: Embedded, repository: Path) -> None:
    """The second model is unloaded, and nobody asks it."""
    go(served, repository, read_release(repository, product="fraud"))
    _, answer = decide(served)
    assert set(answer.release) == {"fraud-1"}
    if served.serving["fraud"].form == "ensemble":
        assert control.ready_versions(served.triton, STEP) == [1]


def test_a_canary_changes_the_model_only(repository: Path) -> None:
    """Another policy or other features are for a shadow."""
    shutil.copytree(repository / "fraud_decision/1", repository / "fraud_decision/2")
    try:
        release = with_canary(repository, percent=5.0, fraud_decision=2)
        with pytest.raises(RepositoryError, match="a canary has the features and the"):
            plan_serving(RepositorySnapshot(repository), release)
    finally:
        shutil.rmtree(repository / "fraud_decision/2")


def test_a_step_that_cannot_take_it_is_named(repository: Path) -> None:
    """A configuration of before canaries: the input is missing."""
    config = repository / "fraud_decision/config.pbtxt"
    before = config.read_text()
    lines = [line for line in before.splitlines() if "challenger_prob" not in line]
    config.write_text("\n".join(lines).replace("[ 966 ] },", "[ 966 ] }"))
    try:
        with pytest.raises(RepositoryError, match="has no optional input challenger_"):
            plan_serving(
                RepositorySnapshot(repository), with_canary(repository, percent=5.0)
            )
    finally:
        config.write_text(before)

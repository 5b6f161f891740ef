"""Declared fields on a real Triton: optional inputs of one product, batched or not."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tollgate.features.spec.feature_spec import FeatureSpec, load_spec
from tollgate.repository.hashes import hash_file
from tollgate.repository.lint.product_rules import check
from tollgate.repository.releases.activation import compose_release
from tollgate.repository.releases.release_file import spec_hash_text, write_release
from tollgate.repository.snapshot import RepositorySnapshot
from tollgate.schema import Degraded
from tollgate.server.serving.embedded import Embedded, serve
from tollgate.server.triton import control
from tollgate_client import Client, Decisions
from tollgate_client.addresses import infer_method
from tollgate_client.contract import FRAUD_INPUTS
from tollgate_client.inputs import check_columns
from tollgate_client.wire import decisions_of, requests_of

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).parents[3] / "model_repository"
NOW_US = time.time_ns() // 1000
FIELDS = {"channel": "BYTES", "items": "FP64"}
CHANNELS = ["web", "app", "shop"]
DECLARED = """\
fields:
  - {name: channel, type: category, vocabulary: [web, app, shop]}
  - {name: items, type: number, range: [0, 1000]}
"""
FEATURES = """\
  - {name: channel, category: channel}
  - {name: items, field: items, default: 1}
  - {name: customer_items_1d, entity: customer, aggregate: sum, of: items, window: 1d}
  - {name: channels_1d, entity: customer, aggregate: distinct, of: channel, window: 1d}
  - {name: triple, hook: triple, default: 3}
hook: hook.py
"""
HOOK = """\
def hook(request, features):
    return {"triple": request["items"] * 3}
"""
# Of the five, in the model's probability.
WEIGHTS = (0.05, 0.001, 0.0005, 0.02, 0.0001)
INPUTS = (
    '  { name: "channel" data_type: TYPE_STRING dims: [ 1 ] optional: true },\n'
    '  { name: "items"   data_type: TYPE_FP64   dims: [ 1 ] optional: true },\n'
    '  { name: "amount" '
)


def edit(path: Path, *changes: tuple[str, str]) -> None:
    """Replace texts, which must be there, everywhere in a file."""
    text = path.read_text()
    for old, new in changes:
        assert old in text, f"{path} has no {old!r}"
        text = text.replace(old, new)
    path.write_text(text)


def write_model(folder: Path, spec: FeatureSpec) -> None:
    """Write a model whose probability shows the five new features, and its record."""
    weights = np.zeros((len(spec.features), 1), np.float32)
    weights[-5:, 0] = WEIGHTS
    nodes = [
        helper.make_node("MatMul", ["features", "weights"], ["sum"]),
        helper.make_node("Add", ["sum", "base"], ["fraud"]),
        helper.make_node("Sub", ["one", "fraud"], ["fine"]),
        helper.make_node("Concat", ["fine", "fraud"], ["probabilities"], axis=1),
    ]
    graph = helper.make_graph(
        nodes,
        "shows",
        [
            helper.make_tensor_value_info(
                "features", TensorProto.FLOAT, ["N", len(spec.features)]
            )
        ],
        [helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["N", 2])],
        [
            numpy_helper.from_array(weights, "weights"),
            numpy_helper.from_array(np.array([[0.2]], np.float32), "base"),
            numpy_helper.from_array(np.array([[1.0]], np.float32), "one"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 9
    onnx.save(model, folder / "model.onnx")
    record = json.loads((folder / "artifact.json").read_text())
    record |= {
        "sha256": hash_file(folder / "model.onnx"),
        "spec_hash": spec_hash_text(spec.spec_hash),
        "features": list(spec.feature_names),
    }
    record["files"] = {}  # what explains the committed model explains no other
    (folder / "artifact.json").write_text(json.dumps(record))


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The committed product with two fields, a hook, and a model of five features."""
    copy = tmp_path_factory.mktemp("fields") / "model_repository"
    shutil.copytree(
        REPOSITORY, copy, ignore=shutil.ignore_patterns("__pycache__", "*.npz")
    )
    path = copy / "fraud_features/1/features.yaml"
    edit(path, ("entities:\n", f"{DECLARED}\nentities:\n"))
    path.write_text(path.read_text() + FEATURES)
    path.with_name("hook.py").write_text(HOOK)
    spec = load_spec(path)
    assert len(spec.features) == 20
    for step in ("fraud_features", "fraud_model", "fraud_decision"):
        edit(copy / step / "config.pbtxt", ("dims: [ 15 ]", "dims: [ 20 ]"))
        if step != "fraud_model":  # 8 bytes more for each field
            edit(copy / step / "config.pbtxt", ("dims: [ 966 ]", "dims: [ 982 ]"))
    config = copy / "fraud_features/config.pbtxt"
    edit(config, ('  { name: "amount" ', INPUTS), ('_value: "5"', '_value: "2000"'))
    mapped = "".join(
        f'      input_map {{ key: "{name}" value: "{name}" }}\n' for name in FIELDS
    )
    anchor = '      output_map { key: "features" value: "features" }\n'
    edit(
        copy / "fraud/config.pbtxt",
        ('  { name: "amount" ', INPUTS),
        (anchor, mapped + anchor),
    )
    write_model(copy / "fraud_model/1", spec)
    release = compose_release(
        RepositorySnapshot(copy),
        product="fraud",
        versions={"fraud_features": 1, "fraud_model": 1, "fraud_decision": 1},
        actor="test",
        reason="fields",
        spec_hash=spec_hash_text(spec.spec_hash),
    )
    write_release(copy, release)
    return copy


@pytest.fixture(scope="module")
def served(
    repository: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Embedded]:
    """That product, served."""
    assert [
        str(finding)
        for finding in check(RepositorySnapshot(repository), product="fraud")
    ] == []
    with serve(repository, state=tmp_path_factory.mktemp("state")) as server:
        yield server


def rows(name: str, count: int) -> dict[str, object]:
    """Columns of purchases of customers of their own."""
    return {
        "transaction_id": [f"{name}-{row}" for row in range(count)],
        "customer_id": [f"{name}-{row}" for row in range(count)],
        "terminal_id": ["m"] * count,
        "amount": [10.0] * count,
        "event_time": [NOW_US] * count,
    }


def shown(code: float, items: float, total: float, channels: float) -> float:
    """Compute the model's probability of these four features, and the hook's."""
    vector = (code, items, total, channels, 3 * items)
    return 0.2 + sum(w * one for w, one in zip(WEIGHTS, vector, strict=True))


def test_fields_are_served_and_may_be_left_out(served: Embedded) -> None:
    """Codes, values, sums, counts, a hook's column; defaults and a bit if not sent."""
    with Client(served.grpc_url, fields=FIELDS, timeout_s=20) as client:
        whole = client.decide(
            rows("a", 3) | {"channel": ["web", "shop", "fax"], "items": [3, 10, 0]}
        )
        again = client.decide(
            rows("a", 3)
            | {"transaction_id": ["a2", "a3", "a4"], "event_time": [NOW_US + 1] * 3}
            | {"channel": ["app", None, "fax"], "items": [None, 5, 1]}
        )
        bare = client.decide(rows("b", 2))
        wrong = client.decide(rows("c", 2) | {"items": [1e9, 1.0]})
    missing = Degraded.FIELD_MISSING
    assert wrong.error.tolist() == ["items: 1000000000.0: is not within 0 … 1000", ""]
    np.testing.assert_allclose(
        whole.score, [shown(0, 3, 3, 1), shown(2, 10, 10, 1), shown(-2, 0, 0, 1)], 1e-6
    )
    assert (whole.degraded & missing).astype(bool).tolist() == [False, False, True]
    np.testing.assert_allclose(
        again.score, [shown(1, 1, 3, 2), shown(-1, 5, 15, 1), shown(-2, 1, 1, 1)], 1e-6
    )
    assert (again.degraded & missing).astype(bool).tolist() == [True, True, True]
    np.testing.assert_allclose(bare.score, [shown(-1, 1, 0, 0)] * 2, 1e-6)
    assert (bare.degraded & missing).all()


@pytest.mark.parametrize("always", [False, True])
def test_requests_with_and_without_fields_are_answered_together(
    served: Embedded, always: bool
) -> None:
    """
    Every other of 200 has values: all are right, and a client's share batches.

    Triton makes no batch of requests with other optional inputs than the first has.
    So the client always sends them, with nothing in them; others need not.
    """
    requests = []
    for number in range(200):
        columns = rows(f"{always}{number}", 1)
        if number % 2:
            columns |= {"channel": [CHANNELS[number % 3]], "items": [number]}
        fields = FIELDS if always or number % 2 else {}
        checked = check_columns(columns, inputs=FRAUD_INPUTS, fields=fields)
        requests += requests_of(
            checked, product="fraud", size=1, dry_run=False, deadline_s=20
        )
    with grpc.insecure_channel(served.grpc_url) as channel:
        infer = infer_method(channel)
        before = batches(served)
        futures = [infer.future(one, timeout=20) for one in requests]
        answers = [decisions_of(one.result(), latency_s=0.0) for one in futures]
        if always:
            assert batches(served) - before < len(requests) * 0.9
    for number, answer in enumerate(answers):
        assert_shows(answer, number)


def assert_shows(answer: Decisions, number: int) -> None:
    """Demand the answer to request `number`."""
    vector = (-1, 1, 0, 0)
    if number % 2:
        vector = (number % 3, number, number, 1)
    assert answer.error.tolist() == [""]
    np.testing.assert_allclose(answer.score, [shown(*vector)], 1e-5)
    missing = bool(answer.degraded[0] & Degraded.FIELD_MISSING)
    assert missing == (number % 2 == 0)


def batches(served: Embedded) -> int:
    """Count the batches that the feature step ran."""
    counts = control.statistics(served.triton, "fraud_features")
    return int(counts["fraud_features"]["execution_count"])

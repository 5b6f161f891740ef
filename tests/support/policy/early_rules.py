"""A release of the fraud product in which a rule decides before the model."""

from __future__ import annotations

import shutil
from pathlib import Path

import onnx
from onnx import TensorProto, helper

from tests.support.server.next_release import next_release
from tollgate.repository.hashes import hash_file
from tollgate.repository.releases.release_file import Release

UNSCORABLE = 9_000_000.0  # amount above which the model fails; a request may have it
CODE = "CARD_REPORTED_STOLEN"
_AFTER = f"    at_least: decline\n    code: {CODE}\n    stop: true\n"
_BEFORE = f"    before_model: decline\n    code: {CODE}\n"


def decide_early(policy: Path) -> None:
    """Let the rule for stolen cards decide before the model."""
    text = policy.read_text()
    assert text.count(_AFTER) == 1
    policy.write_text(text.replace(_AFTER, _BEFORE))


def release_early_rule(repository: Path, *, version: int = 2) -> Release:
    """
    Release that rule, and a model that fails on a batch with a huge amount.

    Every other answer of the model stays as it is.
    """
    for step in ("fraud_model", "fraud_decision"):
        shutil.copytree(repository / step / "1", repository / step / str(version))
    decide_early(repository / f"fraud_decision/{version}/policy.yaml")
    _fail_on_huge_amounts(repository / f"fraud_model/{version}/model.onnx")
    return next_release(repository, fraud_model=version, fraud_decision=version)


def _fail_on_huge_amounts(path: Path) -> None:
    """Look up a table of one entry at a place that is outside for such a row."""
    before = hash_file(path)
    model = onnx.load(path)
    graph = model.graph
    (last,) = (one for one in graph.node if "probabilities" in one.output)
    last.output[0] = "scored"
    tensor = helper.make_tensor
    graph.initializer.extend(
        [
            tensor("amount_column", TensorProto.INT64, [1], [0]),
            tensor("huge", TensorProto.FLOAT, [1], [UNSCORABLE]),
            tensor("only_entry", TensorProto.FLOAT, [1], [0.0]),
        ]
    )
    make = helper.make_node
    graph.node.extend(
        [
            make("Gather", ["features", "amount_column"], ["amounts"], axis=1),
            make("Greater", ["amounts", "huge"], ["too_large"]),
            make("Cast", ["too_large"], ["place"], to=TensorProto.INT64),
            make("Gather", ["only_entry", "place"], ["nothing"]),
            make("Add", ["scored", "nothing"], ["probabilities"]),
        ]
    )
    onnx.save(model, path)
    artifact = path.with_name("artifact.json")
    artifact.write_text(artifact.read_text().replace(before, hash_file(path)))

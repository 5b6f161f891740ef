"""Files of the pinned versions that do not fit are named, with the reason."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tollgate.errors import PolicyError, RepositoryError, SpecError
from tollgate.repository.lint.product_rules import check, require_sound
from tollgate.repository.snapshot import RepositorySnapshot

FEATURES = "fraud_features/config.pbtxt"
MODEL = "fraud_model/config.pbtxt"
DECISION = "fraud_decision/config.pbtxt"

Edit = Callable[[str, str, str], None]
Lines = Callable[[], list[str]]


def test_context_of_another_size_is_found(
    repository: Path, lines: Lines, edit: Edit
) -> None:
    """The context must have the size of the record that the steps share."""
    edit(FEATURES, "[ 966 ]", "[ 500 ]")
    edit(DECISION, "[ 966 ]", "[ 500 ]")
    assert lines() == [
        f"{repository / FEATURES}: output context: TYPE_UINT8 [500] (config.pbtxt) "
        "must be TYPE_UINT8 [966] by features.yaml"
    ]


def test_vector_of_another_length_is_found(
    repository: Path, lines: Lines, edit: Edit
) -> None:
    """Fourteen features everywhere still disagree with spec and model."""
    for file in (FEATURES, MODEL, DECISION):
        edit(
            file,
            "TYPE_FP32  dims: [ 15 ]" if file != MODEL else "dims: [ 15 ] }",
            "TYPE_FP32  dims: [ 14 ]" if file != MODEL else "dims: [ 14 ] }",
        )
    found = lines()
    assert found == [
        f"{repository / FEATURES}: output features: TYPE_FP32 [14] (config.pbtxt) "
        "must be TYPE_FP32 [15] by features.yaml",
        f"{repository}/fraud_model/1/model.onnx: input features: TYPE_FP32 [15] (model)"
        " does not fit TYPE_FP32 [14] (config.pbtxt)",
    ]


@pytest.mark.parametrize("content", [b"", b"not a model", b"\x08\x09"])
def test_corrupt_model_is_one_line(
    repository: Path, lines: Lines, content: bytes
) -> None:
    """A model.onnx that does not load is named first, with the loader's reason."""
    path = repository / "fraud_model/1/model.onnx"
    path.write_bytes(content)
    first, *others = lines()
    assert first.startswith(f"{path}: onnxruntime ")
    assert "cannot load it: " in first
    assert "\n" not in first
    assert any(
        "fraud/release.json: hashes: fraud_model/1/model.onnx" in o for o in others
    )


def test_truncated_model_is_one_line(repository: Path) -> None:
    """Half a file, as an interrupted copy leaves it, is found too."""
    path = repository / "fraud_model/1/model.onnx"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(
        RepositoryError, match=r"model\.onnx: onnxruntime .* cannot load"
    ):
        require_sound(RepositorySnapshot(repository), product="fraud")


def _model(path: Path, *, output: str, shape: list[str | int]) -> None:
    """Write a tiny model: features [shape] times 15 x 2 weights."""
    weights = numpy_helper.from_array(np.ones((15, 2), np.float32), "weights")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["features", "weights"], [output])],
        "tiny",
        [helper.make_tensor_value_info("features", TensorProto.FLOAT, [*shape, 15])],
        [helper.make_tensor_value_info(output, TensorProto.FLOAT, [*shape, 2])],
        [weights],
    )
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), path)


def test_model_that_the_record_does_not_mean_is_found(
    repository: Path, lines: Lines
) -> None:
    """A model that would serve, but is not the one that artifact.json describes."""
    _model(repository / "fraud_model/1/model.onnx", output="probabilities", shape=["N"])
    start = f"{repository}/fraud_model/1/artifact.json: sha256: model.onnx has changed"
    assert lines()[0].startswith(start)


@pytest.mark.parametrize(
    ("data", "words"),
    [(None, "is missing: artifact.json names it"), (b"x", "has SHA-256 2d711642b726…")],
)
def test_explanation_that_the_record_does_not_mean_is_found(
    repository: Path, lines: Lines, data: bytes | None, words: str
) -> None:
    """Files that are read later are compared with the record, as the model is."""
    path = repository / "fraud_model/1/explain.npz"
    record = path.with_name("artifact.json")
    named = {"files": {path.name: hashlib.sha256(b"trees").hexdigest()}}
    record.write_text(json.dumps(json.loads(record.read_text()) | named))
    path.unlink()
    if data is not None:
        path.write_bytes(data)
    assert lines()[0].startswith(f"{path}: {words}")
    path.write_bytes(b"trees")
    assert not any(line.startswith(str(path)) for line in lines())


def test_model_without_the_output_is_found(repository: Path, lines: Lines) -> None:
    """The finding lists what the model has instead."""
    path = repository / "fraud_model/1/model.onnx"
    _model(path, output="scores", shape=["N"])
    found = lines()
    expected = "output probabilities: the model has no such output; it has scores"
    assert found[0] == f"{path}: {expected}"


def test_model_with_a_fixed_batch_is_found(repository: Path, lines: Lines) -> None:
    """A model exported for one row cannot take a batch."""
    path = repository / "fraud_model/1/model.onnx"
    _model(path, output="probabilities", shape=[1])
    found = lines()
    problem = "TYPE_FP32 [1, 15] has no free first dimension for the batch"
    assert found[0] == f"{path}: input features: {problem}"


@pytest.mark.parametrize(
    "file",
    [
        "fraud_features/1/model.py",
        "fraud_decision/1/model.py",
        "fraud_model/1/model.onnx",
        "fraud_model/1/artifact.json",
    ],
)
def test_missing_file_is_found(repository: Path, lines: Lines, file: str) -> None:
    """A version directory without its file is named, and by the release too."""
    (repository / file).unlink()
    found = lines()
    assert found[0].startswith(f"{repository / file}: ")
    assert found[-1] == (
        f"{repository}/fraud/release.json: hashes: {file}: the file is not there"
    )


def test_spec_and_policy_errors_pass_through(repository: Path, edit: Edit) -> None:
    """The readers of features.yaml and policy.yaml say what is wrong with them."""
    edit("fraud_decision/1/policy.yaml", "version: 1", "version: 99")
    with pytest.raises(PolicyError, match=r"policy\.yaml: line 2: version: 99"):
        check(RepositorySnapshot(repository), product="fraud")
    edit("fraud_features/1/features.yaml", "version: 1", "version: 99")
    with pytest.raises(SpecError, match=r"features\.yaml: version: 99"):
        check(RepositorySnapshot(repository), product="fraud")

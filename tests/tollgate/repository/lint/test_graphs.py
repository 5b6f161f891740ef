"""Models that the server's onnxruntime would refuse are named before it does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from tollgate.repository.lint.linting import Question, lint
from tollgate.repository.lint.model_rules import Header, read_header
from tollgate.repository.models.targets import OURS, TARGETS

Write = Callable[[Mapping[str, str]], Path]

CONFIG = 'backend: "onnxruntime" max_batch_size: 8'


def model_bytes(*, opset: int, ml_opset: int, ir: int) -> bytes:
    """Make a model of one node that claims these versions."""
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 2])
    answer = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 2])
    node = helper.make_node("Identity", ["x"], ["y"])
    opsets = [
        helper.make_opsetid("", opset),
        helper.make_opsetid("ai.onnx.ml", ml_opset),
    ]
    graph = helper.make_graph([node], "one", [value], [answer])
    model = helper.make_model(graph, opset_imports=opsets, ir_version=ir)
    return bytes(model.SerializeToString())


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 300), st.integers(1, 300), st.integers(1, 300))
def test_the_header_is_what_onnx_writes(
    tmp_path_factory: pytest.TempPathFactory, opset: int, ml_opset: int, ir: int
) -> None:
    """Numbers of one byte and of two."""
    path = tmp_path_factory.mktemp("header") / "model.onnx"
    path.write_bytes(model_bytes(opset=opset, ml_opset=ml_opset, ir=ir))
    assert read_header(path) == Header(
        ir=ir, opsets={"": opset, "ai.onnx.ml": ml_opset}
    )


def test_the_committed_model_has_the_header_that_onnx_reads() -> None:
    """The real one, with its trees passed over."""
    checkout = Path(__file__).resolve().parents[4]
    path = checkout / "model_repository" / "fraud_model" / "1" / "model.onnx"
    model = onnx.load(path)
    opsets = {one.domain: one.version for one in model.opset_import}
    assert read_header(path) == Header(ir=model.ir_version, opsets=opsets)


@settings(deadline=None, max_examples=50)
@given(st.binary(max_size=80))
def test_anything_else_is_no_model(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    """It never fails, and hardly ever takes noise for a model."""
    path = tmp_path_factory.mktemp("noise") / "model.onnx"
    path.write_bytes(b"\x07" + content)  # no field of protobuf begins so
    assert read_header(path) is None
    assert read_header(path.with_name("none")) is None


def codes(folder: Path, *, release: str) -> list[tuple[str, str]]:
    """Lint: code and file of what is grave."""
    found = lint(Question(repository=folder, cores=2, release=release)).issues
    return [
        (issue.rule.code, issue.problem.partition(":")[0])
        for issue in found
        if issue.rule.code == "TG405"
    ]


@pytest.mark.parametrize("release", sorted(TARGETS))
def test_what_a_release_does_not_read_is_found(write: Write, release: str) -> None:
    """One above the newest of each; the newest itself is read."""
    target = TARGETS[release]
    folder = write({"net/config.pbtxt": CONFIG, "net/1/model.onnx": ""})
    path = folder / "net/1/model.onnx"
    newest = {"opset": target.opset, "ml_opset": target.ml_opset, "ir": target.ir}
    path.write_bytes(model_bytes(**newest))
    assert codes(folder, release=release) == []
    for key, words in {
        "opset": f"operator set ai.onnx {target.opset + 1}",
        "ml_opset": f"operator set ai.onnx.ml {target.ml_opset + 1}",
        "ir": f"IR version {target.ir + 1}",
    }.items():
        path.write_bytes(model_bytes(**newest | {key: newest[key] + 1}))
        assert codes(folder, release=release) == [("TG405", words)]


def test_a_release_between_two_known_ones_reads_what_the_newer_does(
    write: Write,
) -> None:
    """Nothing is named that it may read; of a release after all, nothing at all."""
    folder = write({"net/config.pbtxt": CONFIG, "net/1/model.onnx": ""})
    path = folder / "net/1/model.onnx"
    path.write_bytes(model_bytes(opset=OURS.opset + 1, ml_opset=1, ir=OURS.ir))
    assert len(codes(folder, release="24.10")) == 1
    assert codes(folder, release="25.02") == codes(folder, release="99.01") == []


def test_only_what_onnxruntime_runs_is_read(write: Write) -> None:
    """By backend, by platform, or by its file; under the name that it has."""
    new = model_bytes(opset=OURS.opset + 1, ml_opset=1, ir=OURS.ir)
    for config, name in (
        ('platform: "onnxruntime_onnx"', "model.onnx"),
        ("max_batch_size: 4", "model.onnx"),
        (CONFIG + ' default_model_filename: "my.onnx"', "my.onnx"),
    ):
        folder = write({"net/config.pbtxt": config, f"net/1/{name}": ""})
        (folder / "net/1" / name).write_bytes(new)
        assert len(codes(folder, release="24.10")) == 1
    write({"net/config.pbtxt": 'backend: "python"'})
    assert codes(folder, release="24.10") == []


def test_a_file_that_is_no_model_is_found(write: Write) -> None:
    """An LFS pointer, for example, that nobody fetched."""
    folder = write(
        {"net/config.pbtxt": CONFIG, "net/1/model.onnx": "version https://git-lfs"}
    )
    assert codes(folder, release="24.10") == [
        ("TG405", "cannot be read as an ONNX model")
    ]

"""Tests of opening a model.onnx and of checking its wiring."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tollgate.engine.onnx_session import OnnxSession, check_wiring
from tollgate.errors import RepositoryError


@pytest.fixture
def session(tmp_path: Path, doubling: bytes) -> OnnxSession:
    """The doubling model, opened."""
    path = tmp_path / "model.onnx"
    path.write_bytes(doubling)
    return OnnxSession(path, intra_op_threads=1)


def _config(**changes: Any) -> dict[str, Any]:
    tensor = {"name": "x", "data_type": "TYPE_FP32", "dims": ["2"]}
    config = {
        "max_batch_size": 32,
        "input": [tensor],
        "output": [tensor | {"name": "y"}],
    }
    return config | changes


def test_it_computes_what_the_graph_says(session: OnnxSession) -> None:
    """Outputs come in the order in which they were asked for."""
    x = np.float32([[1, 2], [3, 4]])
    total, y = session.run(["sum", "y"], {"x": x})
    np.testing.assert_array_equal(y, x + x)
    np.testing.assert_array_equal(total, [[3], [7]])


@pytest.mark.parametrize("content", [b"", b"this is no model"])
def test_a_corrupt_file_is_named(tmp_path: Path, content: bytes) -> None:
    """The message is one line that begins with the file."""
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    with pytest.raises(RepositoryError) as caught:
        OnnxSession(path, intra_op_threads=1)
    message = str(caught.value)
    assert message.startswith(f"{path}: onnxruntime ")
    assert "\n" not in message


def test_a_truncated_file_is_named(tmp_path: Path, doubling: bytes) -> None:
    """Half a model is refused, too."""
    path = tmp_path / "model.onnx"
    path.write_bytes(doubling[: len(doubling) // 2])
    with pytest.raises(RepositoryError, match=r"model\.onnx: onnxruntime .* cannot"):
        OnnxSession(path, intra_op_threads=1)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """No file is said as such."""
    with pytest.raises(RepositoryError, match=r"model\.onnx: no such file"):
        OnnxSession(tmp_path / "model.onnx", intra_op_threads=1)


@pytest.mark.parametrize(
    "config",
    [
        _config(),
        _config(output=[{"name": "sum", "data_type": "TYPE_FP32", "dims": ["1"]}]),
        _config(output=[{"name": "y", "data_type": "TYPE_FP32", "dims": ["-1"]}]),
        _config(
            output=[
                {
                    "name": "sum",
                    "data_type": "TYPE_FP32",
                    "dims": ["5"],
                    "reshape": {"shape": ["1"]},
                }
            ]
        ),
    ],
)
def test_a_configuration_that_fits_passes(
    session: OnnxSession, config: dict[str, Any]
) -> None:
    """Any subset of outputs will do; a free dimension fits all; reshape counts."""
    check_wiring(session, config)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (
            _config(output=[{"name": "z", "data_type": "TYPE_FP32", "dims": ["2"]}]),
            "has no output z; it has sum, y",
        ),
        (
            _config(output=[{"name": "y", "data_type": "TYPE_FP64", "dims": ["2"]}]),
            "output y is TYPE_FP32, config.pbtxt says TYPE_FP64",
        ),
        (
            _config(input=[{"name": "x", "data_type": "TYPE_FP32", "dims": ["3"]}]),
            r"input x has shape \[-1, 2\], config.pbtxt says \[-1, 3\]",
        ),
        (_config(input=[]), "lacks the model's input x"),
    ],
)
def test_a_configuration_that_does_not_fit_is_named(
    session: OnnxSession, config: dict[str, Any], words: str
) -> None:
    """File, tensor and both sides stand in the message."""
    with pytest.raises(RepositoryError, match=rf"model\.onnx: .*{words}"):
        check_wiring(session, config)


def test_a_zipmap_output_says_how_to_convert(tmp_path: Path) -> None:
    """A sequence of maps, which Triton cannot carry, is refused with the remedy."""
    from onnx import TensorProto, helper

    entry = helper.make_map_type_proto(
        TensorProto.INT64, helper.make_tensor_type_proto(TensorProto.FLOAT, None)
    )
    maps = helper.make_sequence_type_proto(entry)
    graph = helper.make_graph(
        [
            helper.make_node(
                "ZipMap", ["x"], ["m"], domain="ai.onnx.ml", classlabels_int64s=[0, 1]
            )
        ],
        "zipped",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 2])],
        [helper.make_value_info("m", maps)],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    session = OnnxSession(path, intra_op_threads=1)
    output = [{"name": "m", "data_type": "TYPE_FP32", "dims": ["2"]}]
    with pytest.raises(RepositoryError, match=r"seq\(map.*zipmap=False"):
        check_wiring(session, _config(output=output))

"""A model's speed is measured, at every batch, or it is said why it cannot be."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from tollgate.errors import RepositoryError
from tollgate.repository.models.speed import BATCHES, made_up_rows, us_per_row


def matrix_product(columns: int, *, size: int, feature: str = "features") -> bytes:
    """softmax(tanh(x W) V) with a hidden layer of some size."""
    value = helper.make_tensor_value_info
    chance = np.random.default_rng(0)
    first = chance.normal(size=(columns, size)).astype(np.float32)
    second = chance.normal(size=(size, 2)).astype(np.float32)
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", [feature, "W"], ["a"]),
            helper.make_node("Tanh", ["a"], ["b"]),
            helper.make_node("MatMul", ["b", "V"], ["c"]),
            helper.make_node("Softmax", ["c"], ["probabilities"]),
        ],
        "product",
        [value(feature, TensorProto.FLOAT, ["n", columns])],
        [value("probabilities", TensorProto.FLOAT, ["n", 2])],
        [numpy_helper.from_array(first, "W"), numpy_helper.from_array(second, "V")],
    )
    opsets = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    content: bytes = model.SerializeToString()
    return content


@pytest.mark.parametrize("from_file", [True, False])
def test_a_file_and_its_bytes_are_timed_at_the_three_batches(
    tmp_path: Path, from_file: bool
) -> None:
    """There is a time for 1, 8 and 32 rows, and all of them are finite."""
    content = matrix_product(4, size=8)
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    found = us_per_row(path if from_file else content, measure_s=0.01)
    assert tuple(found) == BATCHES == (1, 8, 32)
    assert all(0 < us < float("inf") for us in found.values())


def test_a_far_larger_model_takes_longer() -> None:
    """What is timed is the model: 100,000 hidden units cost more than 8."""
    small = us_per_row(matrix_product(4, size=8), measure_s=0.05)
    large = us_per_row(matrix_product(4, size=100_000), measure_s=0.05)
    assert all(large[rows] > small[rows] for rows in BATCHES)


def test_made_up_rows_are_always_the_same_and_begin_with_zeros() -> None:
    """32 different rows of whole and broken values below 100."""
    rows = made_up_rows(15)
    np.testing.assert_array_equal(rows, made_up_rows(15))
    assert rows.shape == (32, 15)
    assert rows.dtype == np.float32
    assert not rows[0].any()
    assert len(np.unique(rows, axis=0)) == 32
    assert 0 <= rows.min() < rows.max() < 100
    whole = rows == np.floor(rows)
    assert 0 < whole.mean() < 1


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"not a model", "model.onnx: onnxruntime "),
        (matrix_product(4, size=8, feature="x"), r"takes \['x'\], not features alone"),
        (matrix_product(4, size=8)[:-40], "model.onnx: onnxruntime "),
    ],
)
def test_what_cannot_be_run_is_refused_with_the_file(
    tmp_path: Path, content: bytes, words: str
) -> None:
    """One line names the file and what is wrong with it."""
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    with pytest.raises(RepositoryError, match=words) as caught:
        us_per_row(path, measure_s=0.01)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    """The path stands in the line."""
    with pytest.raises(RepositoryError, match=r"gone\.onnx: no such file"):
        us_per_row(tmp_path / "gone.onnx")


def test_importing_it_loads_no_onnxruntime() -> None:
    """Who only needs the names does not pay for the runtime."""
    code = "import sys, tollgate.repository.models.speed as s; s.made_up_rows(3); "
    code += "print('onnxruntime' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"

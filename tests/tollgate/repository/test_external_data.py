"""A model that keeps weights outside of its file is found, wherever it says so."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tollgate.errors import RepositoryError
from tollgate.repository.models.candidate import require_whole

CHECKOUT = Path(__file__).resolve().parents[3]


def _outside(place: str) -> TensorProto:
    """Make weights that lie in another file."""
    tensor = numpy_helper.from_array(np.ones((15, 2), np.float32), "weights")
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    entry = tensor.external_data.add()
    entry.key, entry.value = "location", place
    return tensor


def _save(path: Path, graph: onnx.GraphProto) -> Path:
    path.write_bytes(helper.make_model(graph).SerializeToString())
    return path


@pytest.mark.parametrize("place", ["w.bin", "../w.bin", "/etc/passwd"])
def test_weights_in_another_file_are_refused(tmp_path: Path, place: str) -> None:
    """Beside it, above it or anywhere: the message names the file."""
    graph = helper.make_graph([], "g", [], [], [_outside(place)])
    path = _save(tmp_path / "model.onnx", graph)
    with pytest.raises(RepositoryError) as caught:
        require_whole(path)
    assert str(caught.value).startswith(f"{path}: keeps weights in another file")
    assert f"({place})" in str(caught.value)


def test_weights_hidden_in_a_branch_are_found(tmp_path: Path) -> None:
    """An If inside an If: the constant of a node of the innermost graph."""
    constant = helper.make_node("Constant", [], ["c"], value=_outside("deep.bin"))
    graph = helper.make_graph([constant], "inner", [], [])
    for name in ("middle", "outer"):
        node = helper.make_node("If", ["x"], ["y"], then_branch=graph)
        graph = helper.make_graph([node], name, [], [])
    with pytest.raises(RepositoryError, match=r"\(deep\.bin\)"):
        require_whole(_save(tmp_path / "model.onnx", graph))


def test_weights_hidden_in_the_default_of_a_function_are_found(tmp_path: Path) -> None:
    """An attribute of a model's own function may have a tensor as its default."""
    model = helper.make_model(helper.make_graph([], "g", [], []))
    default = helper.make_attribute("weights", _outside("default.bin"))
    model.functions.add(name="Own", domain="own").attribute_proto.append(default)
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(RepositoryError, match=r"\(default\.bin\)"):
        require_whole(path)


def test_whole_models_pass() -> None:
    """The model of this repository is one file."""
    require_whole(CHECKOUT / "model_repository" / "fraud_model" / "1" / "model.onnx")


@pytest.mark.parametrize("content", [pickle.dumps({"a": 1}), b"words", b"\x3a\x7f"])
def test_other_files_are_no_onnx(tmp_path: Path, content: bytes) -> None:
    """A pickle in disguise, a text, the beginning of a model."""
    (tmp_path / "model.onnx").write_bytes(content)
    with pytest.raises(RepositoryError, match="is not an ONNX model, or only a part"):
        require_whole(tmp_path / "model.onnx")

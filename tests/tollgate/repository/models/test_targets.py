"""The table of releases says what their images carry and what our own reads."""

import sys
from importlib.metadata import version

import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from tollgate.errors import InputError
from tollgate.repository.models.targets import ML_DOMAIN, OURS, TARGETS, target


def test_the_table_holds_nvidias_versions():
    """Python and onnxruntime per release, as its compatibility table has them."""
    here = "1.20.1" if sys.version_info >= (3, 13) else "1.19.2"
    assert {
        name: (one.python, one.onnxruntime, one.trtllm_tensorrt)
        for name, one in TARGETS.items()
    } == {
        "24.10": ("3.10", here, "10.4.0"),
        "25.10": ("3.12", "1.23.1", "10.11.0.33"),
        "26.07": ("3.12", "1.27.0", "10.14.1.48"),
    }
    for name, one in TARGETS.items():
        assert target(name) is one
        assert one.release == name


def test_ours_is_the_onnxruntime_that_is_installed():
    """The row of this project's server is what its extra pins."""
    assert version("onnxruntime") == OURS.onnxruntime


def test_an_unknown_release_is_refused_with_the_known_ones():
    """One line, exit status 2."""
    with pytest.raises(InputError) as caught:
        target("26.7")
    assert str(caught.value) == (
        "target: '26.7' is not in the table; it has 24.10, 25.10, 26.07"
    )
    assert caught.value.exit_status == 2


def model(*, opset: int = 15, ml_opset: int = 1, ir: int = 8) -> bytes:
    """Write a graph that does nothing, with these versions."""
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Identity", ["a"], ["b"])],
        "nothing",
        [value("a", TensorProto.FLOAT, ["N", 1])],
        [value("b", TensorProto.FLOAT, ["N", 1])],
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid(ML_DOMAIN, ml_opset)]
    made: onnx.ModelProto = helper.make_model(
        graph, ir_version=ir, opset_imports=opsets
    )
    return bytes(made.SerializeToString())


def loads(content: bytes) -> bool:
    """Tell whether the installed onnxruntime reads a model."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        onnxruntime.InferenceSession(
            content, options, providers=["CPUExecutionProvider"]
        )
    except Exception as error:
        if not type(error).__module__.startswith("onnxruntime."):
            raise
        return False
    return True


@pytest.mark.parametrize("part", ["opset", "ml_opset", "ir"])
def test_our_onnxruntime_reads_up_to_the_table_and_no_further(part):
    """The newest of the table loads, the next does not."""
    newest = getattr(OURS, part)
    assert loads(model(**{part: newest}))
    assert not loads(model(**{part: newest + 1}))

"""A plan is refused with the reason wherever it cannot be built."""

import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from converters.tensorize import tensorize
from converters.tensorrt import PROFILES, engine_from_onnx, require_device
from tollgate.errors import ConversionError, DeviceError, InputError

FRAUD = Path(__file__).parents[2] / "model_repository" / "fraud_model"


@pytest.fixture
def plain(tmp_path):
    """The served model as plain operators, in a file."""
    path = tmp_path / "plain.onnx"
    model = (FRAUD / "1" / "model.onnx").read_bytes()
    path.write_bytes(tensorize(model).model)
    return path


def test_trees_are_refused_with_the_way_out(tmp_path):
    """The operators are checked before a GPU is looked for."""
    with pytest.raises(ConversionError, match=r"TreeEnsembleRegressor.*tensorize"):
        engine_from_onnx(FRAUD / "1" / "model.onnx", tmp_path / "model.plan")


HEAVY = "sklearn skl2onnx onnxmltools xgboost lightgbm scipy pandas polars matplotlib"
ENGINE = f"""
import sys
from tollgate.cli import main

sys.argv[0] = "tollgate"
try:
    main()
finally:
    assert "converters.tensorrt" in sys.modules
    print(*(set("{HEAVY}".split()) & set(sys.modules)))
"""


def test_the_command_needs_no_library_of_a_source(plain):
    """On the machine that serves there is ONNX, and no framework that trains."""
    done = subprocess.run(
        [sys.executable, "-c", ENGINE, "engine", plain, "--precision", "int8"],
        cwd=FRAUD.parents[1],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout.split()) == (2, []), done.stderr
    assert "int8 needs a graph with QuantizeLinear nodes" in done.stderr


def test_a_machine_without_a_gpu_is_told_so(tmp_path):
    """One sentence and exit status 3; nothing is imported, nothing written."""
    with pytest.raises(DeviceError, match="no NVIDIA GPU") as refused:
        require_device(tmp_path)
    assert refused.value.exit_status == 3
    assert "\n" not in str(refused.value)


def test_a_gpu_without_the_library_is_told_what_to_install(tmp_path, monkeypatch):
    """The extra is named; a module that is None cannot be imported."""
    (tmp_path / "nvidia0").touch()
    monkeypatch.setitem(sys.modules, "tensorrt", None)
    with pytest.raises(
        DeviceError, match=r"pip install -e '\./converters\[tensorrt\]'"
    ):
        require_device(tmp_path)


def test_int8_needs_a_quantised_graph(plain, tmp_path):
    """Without ranges in the graph, TensorRT would have to guess them."""
    with pytest.raises(ConversionError, match="QuantizeLinear"):
        engine_from_onnx(plain, tmp_path / "model.plan", precision="int8")
    with pytest.raises(ConversionError, match="there are fp32, fp16, int8"):
        engine_from_onnx(plain, tmp_path / "model.plan", precision="fp8")


def test_only_a_free_batch_of_features_fits_the_profiles(tmp_path):
    """Another input, or a fixed number of rows, is refused."""
    value = helper.make_tensor_value_info
    for name, rows in (("x", "N"), ("features", 1)):
        graph = helper.make_graph(
            [helper.make_node("Neg", [name], ["probabilities"])],
            "other",
            [value(name, TensorProto.FLOAT, [rows, 3])],
            [value("probabilities", TensorProto.FLOAT, [rows, 3])],
        )
        path = tmp_path / "other.onnx"
        onnx.save(
            helper.make_model(graph, opset_imports=[helper.make_opsetid("", 15)]), path
        )
        with pytest.raises(ConversionError, match=r"features \[N, F\] alone, N free"):
            engine_from_onnx(path, tmp_path / "model.plan")


def test_what_is_no_onnx_file_is_refused(tmp_path):
    """A file of another format, and none at all."""
    for path in (FRAUD / "1" / "artifact.json", tmp_path / "none.onnx"):
        with pytest.raises(InputError):
            engine_from_onnx(path, tmp_path / "model.plan")


def test_the_first_profile_takes_every_batch():
    """Triton uses it alone where a configuration names none."""
    assert PROFILES[0] == (1, 32, 32)
    assert [tuned for _, tuned, _ in PROFILES] == [32, 8, 1]

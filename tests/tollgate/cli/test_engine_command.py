"""`tollgate engine` and `--model-config-name`, as a person types them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from converters.tensorize import tensorize

REPOSITORY = Path(__file__).parents[3] / "model_repository"
HAS_GPU = any(Path("/dev").glob("nvidia[0-9]*"))


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run `tollgate` in a folder."""
    return subprocess.run(
        [sys.executable, "-c", "from tollgate.cli import main; main()", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )


@pytest.mark.skipif(HAS_GPU, reason="this machine has a GPU: it would build the plan")
def test_without_a_gpu_it_says_so_and_exits_3(tmp_path: Path) -> None:
    """A model that TensorRT would take: one sentence, status 3, nothing written."""
    model = (REPOSITORY / "fraud_model" / "1" / "model.onnx").read_bytes()
    (tmp_path / "plain.onnx").write_bytes(tensorize(model).model)
    done = run(tmp_path, "engine", "plain.onnx", "--out", "model.plan")
    assert done.returncode == 3
    assert done.stderr.startswith("tollgate: this machine shows no NVIDIA GPU")
    assert done.stderr.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["plain.onnx"]


def test_operators_are_refused_before_a_gpu_is_looked_for(tmp_path: Path) -> None:
    """Trees cannot be built anywhere: status 2, and what to do instead."""
    model = REPOSITORY / "fraud_model" / "1" / "model.onnx"
    done = run(tmp_path, "engine", str(model))
    assert done.returncode == 2
    assert "TreeEnsembleRegressor" in done.stderr
    assert done.stderr.endswith("convert it to plain operators (tensorize)\n")
    assert not list(tmp_path.iterdir())


def test_check_reads_the_named_configuration(tmp_path: Path) -> None:
    """Sound by default and for a GPU; with TensorRT the plan is missing; a typo."""
    shutil.copytree(REPOSITORY, tmp_path / "model_repository")
    for name in ("", "gpu"):
        words = ("--model-config-name", name) if name else ()
        assert run(tmp_path, "check", *words).returncode == 0
    done = run(tmp_path, "check", "--model-config-name", "tensorrt")
    assert done.returncode == 2
    assert "fraud_model/1/model.plan: is missing" in done.stdout
    done = run(tmp_path, "up", "--model-config-name", "gpuu")
    assert done.returncode == 2
    assert "no model of fraud has configs/gpuu.pbtxt; there are gpu" in done.stderr

"""A model is proven in another release's onnxruntime, or one line says why not."""

import shutil
import subprocess
import sys
import warnings

import numpy as np
import onnx
import pytest
from lightgbm import LGBMClassifier
from skl2onnx import to_onnx
from sklearn.ensemble import RandomForestClassifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier
from xgboost import XGBClassifier

from converters.compression.quantize import int8
from converters.onnx.from_sklearn import ML_OPSET_OF_DOUBLES
from converters.onnx.graph import IR_VERSION, ML_OPSET, OPSET
from converters.parity.runner import onnx_runner
from converters.parity.session import RUNTIME
from converters.parity.target_runtime import (
    environment,
    environment_folder,
    open_target,
)
from converters.sources.opening import open_source
from converters.sources.worker import model_of
from converters.survey import survey, table
from tests.support.converters.parity import measure
from tollgate.errors import ConversionError, InputError, SetupError
from tollgate.repository.models.targets import TARGETS, target

NEWER = "26.07"


@pytest.fixture(scope="module")
def newer():
    """Open the newest release of the table; it is installed once per machine."""
    try:
        environment(target(NEWER))
    except SetupError as error:
        if "no package index" not in str(error) and "for Python 3.10" not in str(error):
            raise
        pytest.skip(str(error))
    with open_target(NEWER) as runtime:
        yield runtime


def trained(kind, rows):
    """Fit a model of a kind that the releases run by different code."""
    features, label = rows
    return {
        "xgboost": lambda: XGBClassifier(n_jobs=1, n_estimators=20),
        "lightgbm": lambda: LGBMClassifier(n_jobs=1, n_estimators=20, verbose=-1),
        "forest": lambda: RandomForestClassifier(20, max_depth=6, random_state=0),
        "tree": lambda: DecisionTreeClassifier(max_depth=4, random_state=0),
    }[kind]().fit(features, label)


# The first cannot be converted.
OTHERS = (
    "docs__examples__catboost__model.cbm",
    "docs__examples__lightgbm__iris-lightgbm.bst",
    "docs__examples__xgboost__mushroom-xgboost.json",
    "lg_breast_cancer.txt",
    "lg_rf_iris.model",
)
KINDS = ["xgboost", "lightgbm", "forest", "tree"]


@pytest.mark.parametrize("kind", KINDS)
def test_no_model_is_newer_than_any_release_reads(rows, kind):
    """Operator sets and file format of a converted model, and those we aim at."""
    model = onnx.load_from_string(model_of(trained(kind, rows)).convert())
    for one in TARGETS.values():
        for opset in model.opset_import:
            assert opset.version <= one.newest[opset.domain]
        assert model.ir_version <= one.ir
        assert one.opset >= OPSET
        assert one.ml_opset >= max(ML_OPSET, ML_OPSET_OF_DOUBLES)
        assert one.ir >= IR_VERSION


def test_our_own_release_needs_no_environment(rows, tmp_path, monkeypatch):
    """24.10 runs here, in the onnxruntime that every model is proven in."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    model = model_of(trained("xgboost", rows)).convert()
    features = rows[0][:100]
    with open_target("24.10") as runtime:
        assert runtime.runtime == RUNTIME == "onnxruntime 1.19.2"
        found = runtime.runner(model).batched(features, size=32)
    assert (found == onnx_runner(model)(features)).all()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("how", ["dynamic", "static"])
def test_an_int8_graph_answers_alike_in_the_newest_release(rows, newer, how):
    """It loads there; no score moves as far as int8 itself moves them, none flips."""
    network = make_pipeline(StandardScaler(), MLPClassifier((16,), random_state=0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        network.fit(*rows)
    whole = model_of(network).convert()
    small = int8(whole, how, samples=rows[0])
    ours = onnx_runner(small).batched(rows[0], size=32)[:, 1]
    theirs = newer.runner(small).batched(rows[0], size=32)[:, 1]
    moved = np.abs(ours - onnx_runner(whole)(rows[0])[:, 1]).max()
    assert moved > 1e-4
    assert np.abs(ours - theirs).max() < min(1e-5, moved)
    assert ((ours >= 0.5) == (theirs >= 0.5)).all()


def test_an_environment_that_does_not_run_is_named(tmp_path, monkeypatch):
    """The line says which folder to remove."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = environment_folder(target(NEWER))
    (folder / "bin").mkdir(parents=True)
    python = folder / "bin" / "python"
    python.write_text("#!/bin/sh\nexit 7\n")
    for mode, why in ((0o755, "ended with status 7"), (0o644, "Permission denied")):
        python.chmod(mode)
        with pytest.raises(SetupError) as caught, open_target(NEWER):
            pass
        assert why in str(caught.value)
        assert str(caught.value).endswith(f"remove {folder} and try again")
        assert "\n" not in str(caught.value)


def test_a_release_that_is_not_known_is_refused_at_once(tmp_path):
    """In the library, and on the survey's command line with one line."""
    problem = r"'26\.08' is not in the table"
    with pytest.raises(InputError, match=problem), open_target("26.08"):
        pass
    done = subprocess.run(
        [sys.executable, "-m", "converters.survey", tmp_path, "--target", "26.08"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith("target: '26.08' is not in the table")


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_tree_holds_in_the_newest_release(newer, rows, kind):
    """Two classes of a forest do not in 1.27.0, as exporters write them."""
    source = model_of(trained(kind, rows))
    report = measure(
        source.predict,
        newer.runner(source.convert()),
        probes=source.probes(rows[0][:200]),
        thresholds=(0.5,),
    ).report
    report.check()
    assert report.runtime == "onnxruntime 1.27.0"


@pytest.mark.slow
def test_an_adopted_forest_holds_too(newer, rows, tmp_path):
    """Its exporter left the first class to the operator."""
    forest = trained("forest", rows)
    foreign = to_onnx(forest, rows[0][:1], target_opset=15)
    assert "TreeEnsembleClassifier" in {node.op_type for node in foreign.graph.node}
    path = tmp_path / "model.onnx"
    path.write_bytes(foreign.SerializeToString())
    with open_source(path) as source:
        found = newer.runner(source.convert()).batched(rows[0], size=32)
    assert np.abs(found - forest.predict_proba(rows[0])).max() < 1e-5


@pytest.mark.slow
def test_a_runner_answers_as_ours_whatever_the_batch(newer, rows):
    """Many rows go there at once; two models at a time stay apart."""
    first, second = (
        model_of(trained(kind, rows)).convert() for kind in ("xgboost", "lightgbm")
    )
    runners = newer.runner(first), newer.runner(second)
    features = rows[0]
    for model, runner in zip((first, second), runners, strict=True):
        expected = onnx_runner(model)(features)
        for size in (1, 32, len(features)):
            found = runner.batched(features, size=size)
            assert found.dtype == np.float32
            assert np.abs(found - expected).max() < 1e-6
        assert np.abs(runner(features[::2]) - expected[::2]).max() < 1e-6


@pytest.mark.slow
def test_what_the_release_refuses_is_told_in_its_words(newer, rows):
    """No model at all, one that is too new for it, and rows of another width."""
    with pytest.raises(ConversionError, match=r"^onnxruntime 1\.27\.0 cannot load"):
        newer.runner(b"\0no model")
    model = model_of(trained("tree", rows)).convert()
    future = onnx.load_from_string(model)
    future.ir_version = target(NEWER).ir + 1
    with pytest.raises(ConversionError, match=r"^onnxruntime 1\.27\.0 cannot load"):
        newer.runner(future.SerializeToString())
    with pytest.raises(ConversionError, match=r"^onnxruntime 1\.27\.0 cannot run"):
        newer.runner(model)(np.zeros((2, 3), dtype=np.float32))
    assert newer.runner(model)(rows[0][:1]).shape == (1, 2)


@pytest.mark.slow
def test_a_process_that_dies_is_one_clear_line(newer, rows):
    """Killed between two calls: the next says so instead of waiting."""
    model = model_of(trained("tree", rows)).convert()
    with open_target(NEWER) as runtime:
        runner = runtime.runner(model)
        runtime._child._process.terminate()
        with pytest.raises(ConversionError) as caught:
            runner(rows[0][:1])
    assert str(caught.value) == ("the process of onnxruntime 1.27.0 ended with SIGTERM")


@pytest.mark.slow
def test_models_of_others_hold_in_the_newest_release(newer, shared_data, tmp_path):
    """Those that convert, and the table has a column for them."""
    for name in OTHERS:
        (path,) = (shared_data / "models").rglob(name)
        shutil.copy(path, tmp_path)
    found = list(survey(tmp_path, targets=[NEWER]))
    assert [row.converted for row in found] == [False, True, True, True, True]
    assert found[0].elsewhere == ()
    for row in found[1:]:
        (report,) = row.elsewhere
        assert report.passed, row
        assert report.runtime == "onnxruntime 1.27.0"
    lines = table(found, targets=[NEWER]).splitlines()
    assert lines[0] == "| file | framework | outcome | in 26.07 |"
    assert {line.count("|") for line in lines} == {5}

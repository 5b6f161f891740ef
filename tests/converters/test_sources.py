"""Files are recognised by what they hold, and bad ones are refused in one line."""

import hashlib
import pickle
import subprocess
import sys
from pathlib import Path

import joblib
import numpy as np
import onnx
import pytest
import sklearn
from lightgbm import LGBMClassifier
from onnx import TensorProto, helper
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.tree import DecisionTreeClassifier
from xgboost import XGBClassifier

from converters.onnx.from_sklearn import onnx_from_sklearn
from converters.parity.proof import prove
from converters.sources.files.formats import format_of
from converters.sources.opening import open_source
from tests.support.converters.artifact_record import read_record
from tollgate.errors import TollgateError
from tollgate.explanation import read_explanation

CLI = "from tollgate.cli import main; main()"


@pytest.fixture(scope="module")
def rows():
    """Return features float32 [300, 4] and labels."""
    features = np.random.default_rng(0).normal(size=(300, 4)).astype(np.float32)
    return features, (features[:, 0] > 0).astype(int)


@pytest.fixture(scope="module")
def linear(rows):
    """Return a fitted logistic regression."""
    return LogisticRegression().fit(*rows)


@pytest.fixture(scope="module")
def boosted(rows):
    """Return a small fitted XGBoost classifier."""
    return XGBClassifier(n_estimators=3, n_jobs=1).fit(*rows)


def run(*arguments):
    """Run the command line; status, standard error."""
    done = subprocess.run(
        [sys.executable, "-c", CLI, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stderr


def refused(path, **options):
    """Return the line with which a file is refused."""
    with pytest.raises(TollgateError) as caught, open_source(path, **options):
        pass
    assert caught.value.exit_status == 2
    assert str(caught.value).count("\n") == 0
    return str(caught.value)


@pytest.mark.parametrize("suffix", ["json", "ubj"])
def test_a_saved_xgboost_file_answers_as_the_model_in_memory(
    boosted, rows, tmp_path, suffix
):
    """JSON and UBJ, read in another process."""
    path = tmp_path / f"model.{suffix}"
    boosted.save_model(path)
    assert format_of(path) == "xgboost"
    with open_source(path) as source:
        assert source.facts.trees == 3
        np.testing.assert_allclose(
            source.predict(rows[0]), boosted.predict_proba(rows[0]), atol=1e-6
        )
        proven = prove(source, samples=rows[0], thresholds=(0.5,))
    proven.report.check()


@pytest.mark.parametrize("name", ["model.joblib", "model.json", "model.onnx"])
def test_a_pickle_is_one_whatever_it_is_called(linear, tmp_path, name):
    """In disguise too: it is refused by name, and loaded only when trusted."""
    path = tmp_path / name
    joblib.dump(linear, path)
    assert refused(path).startswith(
        f"trust_pickle: {path} is a pickle: loading it runs whatever"
    )


@pytest.mark.parametrize("protocol", range(6))
def test_a_pickle_of_every_protocol_is_recognised(linear, tmp_path, protocol):
    """Protocols 0 and 1 are text without a mark."""
    path = tmp_path / "model.txt"
    path.write_bytes(pickle.dumps(linear, protocol=protocol))
    assert format_of(path) == "pickle"
    joblib.dump(linear, path, compress=("gzip", 3))
    assert format_of(path) == "pickle"


class Bomb:
    """What a hostile pickle does: write a file where it is loaded."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (Path(self.path),)


def test_an_untrusted_pickle_is_never_loaded(tmp_path):
    """Not in this process and not in another."""
    path, trace = tmp_path / "model.pkl", tmp_path / "trace"
    path.write_bytes(pickle.dumps(Bomb(trace)))
    refused(path)
    assert not trace.exists()


def test_a_trusted_pickle_is_loaded_in_a_process_of_its_own(linear, rows, tmp_path):
    """It answers as the model in memory, and what it prints harms nothing."""
    path = tmp_path / "model.pkl"
    joblib.dump(linear, path)
    with open_source(path, trust_pickle=True) as source:
        assert source.facts.framework == "scikit-learn"
        proven = prove(source, samples=rows[0], thresholds=(0.5,))
    proven.report.check()
    path.write_bytes(pickle.dumps({"no": "model"}))
    assert "a dict gives no probabilities" in refused(path, trust_pickle=True)


@pytest.mark.parametrize(
    ("made", "classes"),
    [(bool, (0, 1)), (float, (0, 1)), (lambda one: one + 1.0, (1, 2)), (str, None)],
    ids=["truths", "floats", "others", "texts"],
)
@pytest.mark.parametrize(
    "kind",
    [DecisionTreeClassifier(max_depth=3), LGBMClassifier(n_estimators=2, verbose=-1)],
    ids=["sklearn", "lightgbm"],
)
def test_labels_of_any_type_are_read_from_a_file(rows, tmp_path, kind, made, classes):
    """False and 0.0 are class 0: a label column is seldom one of integers."""
    path = tmp_path / "model.pkl"
    label = np.asarray([made(one) for one in rows[1].tolist()])
    joblib.dump(clone(kind).fit(rows[0], label), path)
    with open_source(path, trust_pickle=True) as source:
        assert source.facts.classes == (classes or ("0", "1"))
        assert source.explanation().classes == source.facts.classes
        prove(source, samples=rows[0], thresholds=(0.5,)).check()


def test_a_pickle_of_another_release_is_said_to_be_one(linear, rows, tmp_path):
    """
    Its proof is of what this release makes of it, which may not be what was trained.

    Until 1.7 a regression could be one of each class against the rest; what reads such
    a file today answers with a softmax.
    """
    path, out = tmp_path / "model.pkl", tmp_path / "out"
    joblib.dump(linear, path)
    with open_source(path, trust_pickle=True) as source:
        assert source.facts.written_by == ""
    made = sklearn.__version__.encode()
    older = b"0.24.2".ljust(len(made), b"0")[: len(made)]
    path.write_bytes(pickle.dumps(linear, protocol=2).replace(made, older))
    status, said = run("convert", path, "--out", out, "--trust-pickle")
    assert status == 0, said
    assert f"written by scikit-learn {older.decode()}, read by" in said
    assert read_record(out).source.written_by == older.decode()
    card = (out / "card.md").read_text()
    assert "which does not promise the same answers" in card


def external(path, *, location, length=None):
    """Write a model that keeps its weights in another file."""
    tensor = helper.make_tensor("w", TensorProto.FLOAT, [4, 2], [0.0] * 8)
    tensor.ClearField("float_data")
    tensor.data_location = TensorProto.EXTERNAL
    entries = {"location": location} | ({"length": str(length)} if length else {})
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=value)
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["m"]),
            helper.make_node("Softmax", ["m"], ["p"], axis=1),
        ],
        "g",
        [value("x", 1, ["N", 4])],
        [value("p", 1, ["N", 2])],
        [tensor],
    )
    model = helper.make_model(
        graph, ir_version=8, opset_imports=[helper.make_opsetid("", 15)]
    )
    path.write_bytes(model.SerializeToString())


def test_external_data_stays_inside_the_folder(tmp_path):
    """A file in the folder is read; one outside, missing or too large is refused."""
    path = tmp_path / "in" / "model.onnx"
    path.parent.mkdir()
    (tmp_path / "secret").write_bytes(bytes(32))
    (path.parent / "weights").write_bytes(bytes(32))
    (path.parent / "link").symlink_to(tmp_path / "secret")
    for location in ("../secret", str(tmp_path / "secret"), "link", ""):
        external(path, location=location)
        assert "outside its folder" in refused(path)
    external(path, location="absent")
    assert refused(path).endswith("'absent': missing")
    external(path, location="weights", length=10 << 30)
    assert "10,737,418,240 bytes" in refused(path)
    external(path, location="weights")
    with open_source(path) as source:
        assert source.predict(np.ones((1, 4), np.float32)).tolist() == [[0.5, 0.5]]


def test_an_adopted_model_loses_its_label_and_its_zipmap(linear, rows, tmp_path):
    """skl2onnx's own output, ZipMap included, becomes a model step's."""
    from skl2onnx import to_onnx

    path = tmp_path / "model.onnx"
    foreign = to_onnx(linear, rows[0][:1], target_opset=15)
    assert "ZipMap" in {node.op_type for node in foreign.graph.node}
    path.write_bytes(foreign.SerializeToString())
    with open_source(path) as source:
        proven = prove(source, samples=rows[0], thresholds=(0.5,))
    proven.report.check()
    graph = onnx.load_from_string(proven.model).graph
    assert "ZipMap" not in {node.op_type for node in graph.node}
    assert [one.name for one in (*graph.input, *graph.output)] == [
        "features",
        "probabilities",
    ]


def test_files_that_are_no_model_are_refused_in_one_line(boosted, linear, tmp_path):
    """Missing, empty, cut off, text, an old format: each is named."""
    path = tmp_path / "model.json"
    assert refused(path).endswith("cannot be read: No such file or directory")
    path.touch()
    assert refused(path).endswith("is empty")
    path.write_bytes(bytes(boosted.get_booster().save_raw("json"))[:500])
    assert "xgboost cannot read it" in refused(path)
    path.write_text("hello")
    assert "is no model that is read" in refused(path)
    path.write_text('{"some": "json"}')
    assert refused(path).startswith(f"{path}: ")
    path.write_bytes(b"\0\0\0\x3f" + b"binary:logistic")
    assert "XGBoost's old binary format" in refused(path)
    path.write_text("tree\nversion=v4\nnum_class=1\nobjective=binary sigmoid:1\n")
    assert "is cut off" in refused(path)
    whole = onnx_from_sklearn(linear)
    path = tmp_path / "model.onnx"
    path.write_bytes(whole[: len(whole) // 2])
    assert "is no ONNX model, or is cut off" in refused(path)


def test_the_command_writes_all_or_nothing(boosted, rows, tmp_path):
    """Model, record, figures and picture; a second time the folder is in the way."""
    source, out = tmp_path / "model.json", tmp_path / "out"
    boosted.save_model(source)
    status, said = run("convert", source, "--out", out)
    assert status == 0, said
    assert sorted(one.name for one in out.iterdir()) == [
        "artifact.json",
        "card.html",
        "card.md",
        "explain.npz",
        "model.onnx",
        "parity.json",
        "parity.png",
    ]
    assert (out / "parity.png").read_bytes().startswith(b"\x89PNG")
    named = hashlib.sha256((out / "explain.npz").read_bytes()).hexdigest()
    assert read_record(out).files == {"explain.npz": named}
    assert read_explanation(out / "explain.npz").trees is not None
    status, said = run("convert", source, "--out", out)
    assert (status, said.count("\n")) == (2, 1)
    assert "is there already and not empty" in said
    source.write_text("hello")
    status, said = run("convert", source, "--out", tmp_path / "other")
    assert (status, said.count("\n")) == (2, 1)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["model.json", "out"]

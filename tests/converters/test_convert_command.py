"""`tollgate convert` and `adopt` as typed: a whole folder, or one line and nothing."""

import functools
import json
import os
import pickle
import signal
import sys
import textwrap
import time

import joblib
import numpy as np
import onnx
import polars as pl
import pytest
from onnx import TensorProto, helper, numpy_helper
from sklearn.ensemble import IsolationForest
from sklearn.linear_model import LogisticRegression
from xgboost import XGBClassifier, XGBRegressor

from converters.sources.opening import FileModel, open_source
from tollgate.cli import main
from tollgate.errors import TollgateError

NAMES = ("amount", "night", "count", "risk")


@pytest.fixture(scope="module")
def rows():
    """Return features float32 [500, 4] and labels."""
    features = np.random.default_rng(0).normal(size=(500, 4)).astype(np.float32)
    return features, (features[:, 0] > 0).astype(int)


@pytest.fixture(scope="module")
def boosted(rows):
    """Return a small fitted XGBoost classifier."""
    return XGBClassifier(n_estimators=3, n_jobs=1).fit(*rows)


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    """Run the command line in this process; status, standard output and error."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["tollgate", *map(str, words)])
        status = 0
        try:
            main()
        except SystemExit as ended:
            status = ended.code or 0
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    return run


def sample_file(path, rows, **more):
    """Write the rows as a sample with named columns."""
    columns = dict(zip(NAMES, rows[0].T, strict=True))
    frame = pl.DataFrame({**columns, "label": rows[1], **more})
    frame.write_parquet(path)
    return path


def test_the_record_holds_what_was_handed_in(command, boosted, rows, tmp_path):
    """Distributions, labels, speed, targets; and that it came from a sample."""
    boosted.save_model(tmp_path / "model.json")
    sample = sample_file(tmp_path / "rows.parquet", rows)
    status, _, said = command(
        *("convert", "model.json", "--out", "out"),
        *("--sample", sample, "--label", "label"),
    )
    assert status == 0, said
    record = json.loads((tmp_path / "out" / "artifact.json").read_text())
    assert record["features"] == list(NAMES)
    assert record["targets"] == ["24.10"]
    assert record["spec_hash"] is None
    assert set(record["us_per_row"]) == {"1", "8", "32"}
    assert all(us > 0 for us in record["us_per_row"].values())
    assert record["graph"]["size_bytes"] == (tmp_path / "out/model.onnx").stat().st_size
    training = record["training"]
    assert (training["rows"], training["frauds"]) == (500, int(rows[1].sum()))
    assert training["origin"] == "sample"
    assert "whether it was trained on them is not known" in training["note"]
    for name, column in zip(NAMES, rows[0].T, strict=True):
        assert training["features"][name]["quantiles"][0] == float(column.min())
        assert training["features"][name]["quantiles"][-1] == float(column.max())
    score = boosted.predict_proba(rows[0])[:, 1]
    assert training["score"]["quantiles"][-1] == pytest.approx(score.max(), abs=1e-6)
    (proof,) = record["parity"]
    assert proof["kinds"]["sample"] == 500
    assert proof["alone"] <= proof["rows"]


def test_a_feature_of_many_values_is_a_segment_of_ranges(
    command, boosted, rows, tmp_path
):
    """The model knows no names: its four columns are all of the sample's numbers."""
    features, label = rows
    boosted.save_model(tmp_path / "model.json")
    table = pl.DataFrame(features, schema=list(NAMES)).with_columns(fraud=label)
    table.write_csv(tmp_path / "rows.csv")
    sample = ("--sample", "rows.csv", "--label", "fraud", "--segment", "risk")
    status, _, said = command("convert", "model.json", "--out", "out", *sample)
    assert status == 0, said
    record = json.loads((tmp_path / "out" / "artifact.json").read_text())
    assert record["features"] == list(NAMES)
    card = (tmp_path / "out" / "card.md").read_text()
    bounds = [float(str(one)) for one in np.sort(features[:, 3])]
    for name in (f"up to {bounds[99]:.6g}", f"above {bounds[399]:.6g}"):
        assert f"| `{name}` | 100 |" in card


def test_without_a_sample_nothing_is_said_of_training(command, boosted, tmp_path):
    """Rows that were made up describe no training."""
    boosted.save_model(tmp_path / "model.json")
    status, _, said = command("convert", "model.json", "--out", "out")
    assert status == 0, said
    record = json.loads((tmp_path / "out" / "artifact.json").read_text())
    assert record["training"] is None
    assert record["features"] == ["f0", "f1", "f2", "f3"]


def batch_centred(path):
    """Write a network that was exported while training: it centres by the batch."""
    value = helper.make_tensor_value_info
    random = np.random.default_rng(0)
    weights = random.normal(size=(4, 2)).astype(np.float32)
    graph = helper.make_graph(
        [
            helper.make_node("IsNaN", ["x"], ["gap"]),
            helper.make_node("Where", ["gap", "zero", "x"], ["filled"]),
            helper.make_node("Clip", ["filled", "low", "high"], ["clipped"]),
            helper.make_node("ReduceMean", ["clipped"], ["mean"], axes=[0]),
            helper.make_node("Sub", ["clipped", "mean"], ["centred"]),
            helper.make_node("MatMul", ["centred", "w"], ["margin"]),
            helper.make_node("Softmax", ["margin"], ["p"], axis=1),
        ],
        "g",
        [value("x", TensorProto.FLOAT, ["N", 4])],
        [value("p", TensorProto.FLOAT, ["N", 2])],
        [
            numpy_helper.from_array(weights, "w"),
            numpy_helper.from_array(np.float32(0), "zero"),
            numpy_helper.from_array(np.float32(-3), "low"),
            numpy_helper.from_array(np.float32(3), "high"),
        ],
    )
    opsets = [helper.make_opsetid("", 15)]
    model = helper.make_model(graph, ir_version=8, opset_imports=opsets)
    path.write_bytes(model.SerializeToString())


def require_failed(status, out, said, folder):
    """Demand status 1, the worst rows on the terminal, one line, nothing written."""
    assert status == 1
    assert "DOES NOT AGREE with its source" in out
    assert "worst 1" in out
    assert " → " in out
    lines = said.strip().splitlines()
    assert lines[-1].startswith("tollgate: the converted model does not answer as its")
    assert "worst is " in lines[-1]
    assert not (folder / "out").exists()
    assert not [one for one in folder.iterdir() if one.name.startswith(".out")]


def test_a_network_that_looks_at_its_batch_fails_its_proof(command, rows, tmp_path):
    """Its score depends on the company of a row: status 1, and nothing is written."""
    batch_centred(tmp_path / "model.onnx")
    sample = sample_file(tmp_path / "rows.parquet", rows)
    status, out, said = command(
        "adopt", "model.onnx", "--out", "out", "--sample", sample, "--label", "label"
    )
    require_failed(status, out, said, tmp_path)


def test_a_model_with_corrected_answers_fails_its_proof(
    command, rows, tmp_path, monkeypatch
):
    """Somebody's own correction around predict_proba is not in the graph."""
    source = """
        def corrected(model, features):
            found = type(model).predict_proba(model, features)
            found[:, 1] *= 0.9
            found[:, 0] = 1 - found[:, 1]
            return found
    """
    (tmp_path / "own_code.py").write_text(textwrap.dedent(source))
    monkeypatch.syspath_prepend(tmp_path)
    paths = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    import own_code

    model = LogisticRegression().fit(*rows)
    model.predict_proba = functools.partial(own_code.corrected, model)
    joblib.dump(model, tmp_path / "model.joblib")
    status, out, said = command(
        "convert", "model.joblib", "--trust-pickle", "--out", "out"
    )
    require_failed(status, out, said, tmp_path)
    assert "probabilities differ by up to 0.1" in said.replace("0.0999", "0.1")


class Ending:
    """A pickle that ends the process that loads it."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def refused(model):
    """Return the line with which a model is refused."""
    with pytest.raises(TollgateError) as caught, model as opened:
        opened.facts  # noqa: B018
    assert caught.value.exit_status == 2
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_file_that_kills_its_reader_is_refused(tmp_path):
    """By a signal or by leaving: one line, and this process lives."""
    path = tmp_path / "model.pkl"
    path.write_bytes(pickle.dumps(Ending(os.abort)))
    said = refused(open_source(path, trust_pickle=True))
    assert said.endswith(
        "the process that read it ended with SIGABRT: the file is damaged"
    )
    path.write_bytes(pickle.dumps(Ending(os._exit, 7)))
    said = refused(open_source(path, trust_pickle=True))
    assert "the process that read it ended with status 7" in said


def test_a_file_that_never_ends_is_refused(tmp_path):
    """The reader is killed at its time limit, which is no crash."""
    path = tmp_path / "model.pkl"
    path.write_bytes(pickle.dumps(Ending(time.sleep, 600)))
    said = refused(FileModel(path, form="pickle", timeout_s=3.0))
    assert said == f"{path}: was not read within 3 s, or out of memory"


def test_a_worker_that_dies_between_two_questions_is_told(boosted, tmp_path):
    """Not only while the file is read."""
    path = tmp_path / "model.json"
    boosted.save_model(path)
    with FileModel(path, form="xgboost") as model:
        assert model.facts.trees == 3
        os.kill(model._child._process.pid, signal.SIGSEGV)
        with pytest.raises(TollgateError, match="ended with SIGSEGV"):
            model.convert()


# What each library says of itself where OpenMP's runtime is not installed.
WITHOUT_OPENMP = {
    "lightgbm": """
        raise OSError("libgomp.so.1: cannot open shared object file: No such file")
    """,
    "xgboost": """
        class XGBoostError(ValueError):
            pass
        raise XGBoostError('''
        XGBoost Library (libxgboost.so) could not be loaded.
        Likely causes:
          * OpenMP runtime is not installed

        Error message(s): ['libgomp.so.1: cannot open shared object file']
        ''')
    """,
}


@pytest.mark.parametrize("library", WITHOUT_OPENMP)
def test_without_openmp_the_package_to_install_is_named(
    boosted, tmp_path, monkeypatch, library
):
    """One line says what is missing and what brings it."""
    package = tmp_path / "broken" / library
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(textwrap.dedent(WITHOUT_OPENMP[library]))
    paths = [str(package.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    path = tmp_path / "model"
    if library == "xgboost":
        path.write_bytes(bytes(boosted.get_booster().save_raw("json")))
    else:
        path.write_text("tree\nversion=v4\n")
    said = refused(open_source(path))
    assert f"{library} cannot start" in said
    assert "libgomp.so.1: cannot open shared object file" in said
    assert "apt-get install libgomp1" in said


def external_data(path):
    """Write a model whose weights would lie outside its folder."""
    tensor = helper.make_tensor("w", TensorProto.FLOAT, [4, 2], [0.0] * 8)
    tensor.ClearField("float_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="../../etc/passwd")
    value = helper.make_tensor_value_info
    nodes = [helper.make_node("MatMul", ["x", "w"], ["p"])]
    inputs, outputs = [value("x", 1, ["N", 4])], [value("p", 1, ["N", 2])]
    graph = helper.make_graph(nodes, "g", inputs, outputs, [tensor])
    onnx.save(helper.make_model(graph), path)


def survival(path):
    """Write a model with an objective that is not converted."""
    features = np.zeros((20, 4), dtype=np.float32)
    model = XGBRegressor(n_estimators=2, n_jobs=1, objective="survival:cox")
    model.fit(features, np.arange(20) + 1.0).save_model(path)


BAD = {
    "missing": ("convert", lambda path: None, "cannot be read: No such file"),
    "empty": ("convert", lambda path: path.touch(), "is empty"),
    "text": ("convert", lambda path: path.write_text("hello"), "is no model that is"),
    "folder": ("convert", lambda path: path.mkdir(), "cannot be read: Is a directory"),
    "cut off": (
        "convert",
        lambda path: path.write_bytes(path.with_suffix(".whole").read_bytes()[:900]),
        "xgboost cannot read it",
    ),
    "pickle in disguise": (
        "convert",
        lambda path: path.write_bytes(pickle.dumps(Ending(os._exit, 0))),
        "is a pickle: loading it runs whatever code is in it",
    ),
    "objective": ("convert", survival, "'survival:cox'"),
    "not ONNX": ("adopt", lambda path: path.write_text("{}"), "is no ONNX file"),
    "outside its folder": ("adopt", external_data, "outside its folder"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_files_are_one_line_status_2_and_nothing(command, boosted, tmp_path, name):
    """File, field and value; no folder and no part of one."""
    verb, spoil, words = BAD[name]
    boosted.save_model(tmp_path / "whole.json")
    (tmp_path / "whole.json").rename(tmp_path / "model.whole")
    path = tmp_path / ("model.onnx" if "folder" in name[3:] else "model.json")
    spoil(path)
    before = sorted(tmp_path.rglob("*"))
    status, out, said = command(verb, path.name, "--out", "out")
    assert status == 2, said
    assert out == ""
    assert said.startswith("tollgate: ")
    assert words in said
    assert said.count("\n") == 1
    assert sorted(tmp_path.rglob("*")) == before


def test_bad_questions_are_one_line_and_status_2(command, boosted, rows, tmp_path):
    """A label without a sample, a wrong label, a wrong width, an unknown target."""
    boosted.save_model(tmp_path / "model.json")
    sample_file(tmp_path / "rows.parquet", rows, three=np.arange(500) % 3)
    (tmp_path / "narrow.csv").write_text("a,b\n1,2\n")
    sample = ("--sample", "rows.parquet")
    for words, message in {
        ("--label", "x"): "--label: names a column of the sample",
        ("--segment", "x"): "--segment: names a column of the sample",
        (*sample, "--label", "none"): "rows.parquet: none: lacks the column",
        (*sample, "--label", "three", "--segment", "label"): (
            "row 3, column 'three': 2 is none of the model's classes [0, 1]"
        ),
        ("--sample", "narrow.csv"): "the model has 4 features, the rows to prove it",
        ("--target", "9.99"): "'9.99' is not in the table",
        ("--out", "no/such/folder"): "its parent folder does not exist",
    }.items():
        status, _, said = command("convert", "model.json", "--out", "out", *words)
        assert (status, said.count("\n")) == (2, 1), said
        assert message in said
        assert not (tmp_path / "out").exists()


def test_a_model_for_other_features_does_not_fit_the_product(
    command, boosted, rows, tmp_path, repository
):
    """Width and names are those of the served features.yaml."""
    boosted.save_model(tmp_path / "model.json")
    fraud = ("--product", "fraud", "--repository", repository)
    status, _, said = command("convert", "model.json", "--out", "out", *fraud)
    assert (status, said.count("\n")) == (2, 1)
    assert "model.json: has 4 features, the product has 15" in said
    wide = np.random.default_rng(0).normal(size=(200, 15)).astype(np.float32)
    other = XGBClassifier(n_estimators=2, n_jobs=1).fit(wide, wide[:, 0] > 0)
    other.get_booster().feature_names = [f"x{one}" for one in range(15)]
    other.save_model(tmp_path / "other.json")
    status, _, said = command("convert", "other.json", "--out", "out", *fraud)
    assert (status, said.count("\n")) == (2, 1)
    assert "feature 0: was trained with 'x0' where the product has 'amount'" in said
    assert not (tmp_path / "out").exists()


def test_the_order_of_features_without_names_is_stated_or_warned_of(
    command, boosted, rows, tmp_path
):
    """The table has another order than the author, whose scores are the measure."""
    features, _ = rows
    boosted.save_model(tmp_path / "model.json")
    turned = pl.DataFrame(features, schema=list(NAMES)).select(reversed(NAMES))
    turned.write_parquet(tmp_path / "rows.parquet")
    source = ("convert", "model.json", "--sample", "rows.parquet")
    status, _, said = command(*source, "--out", "guessed")
    assert status == 0
    said = " ".join(said.split())
    assert "warning: model.json does not name its features" in said
    assert ", ".join(reversed(NAMES)) in said
    status, _, said = command(*source, "--out", "out", "--columns", ",".join(NAMES))
    assert status == 0
    assert "does not name" not in said
    record = json.loads((tmp_path / "out" / "artifact.json").read_text())
    assert record["features"] == list(NAMES)
    highest = boosted.predict_proba(features)[:, 1].max()
    found = record["training"]["score"]["quantiles"][-1]
    assert found == pytest.approx(highest, abs=1e-6)
    for columns, says in (("a,b", "names 2 columns"), ("a,a,b,c", "a column twice")):
        status, _, said = command(*source, "--out", "bad", "--columns", columns)
        assert status == 2
        assert says in said


@pytest.fixture
def detector(tmp_path):
    """Write an isolation forest, and 2,000 rows of which 20 are odd."""
    features = np.random.default_rng(2).normal(size=(2000, 4))
    features[:20] *= 8
    frame = pl.DataFrame(features, schema=NAMES)
    frame = frame.with_columns(pl.Series("odd", [1] * 20 + [0] * 1980))
    frame.write_csv(tmp_path / "rows.csv")
    frame.filter(pl.col("odd") == 0).drop("odd").write_csv(tmp_path / "normal.csv")
    forest = IsolationForest(n_estimators=10, random_state=0).fit(features)
    joblib.dump(forest, tmp_path / "forest.pkl")
    return features


def test_a_detector_is_calibrated_on_the_rows_that_no_label_calls_odd(
    command, detector, tmp_path
):
    """The same as with a file of these rows; the record has the knots."""
    words = ("convert", "forest.pkl", "--trust-pickle", "--sample")
    for more in (
        ("rows.csv", "--label", "odd"),
        ("normal.csv", "--calibration", "normal.csv"),
    ):
        status, _, said = command(*words, *more, "--out", more[1].strip("-"))
        assert status == 0, said
    records = [
        json.loads((tmp_path / name / "artifact.json").read_text())
        for name in ("label", "calibration")
    ]
    first, second = (one["calibration"] for one in records)
    assert first["source"] == "rows of rows.csv without those with odd 1"
    assert second["source"] == "rows of normal.csv"
    assert first["scores"] == second["scores"]
    assert first["rows"] == 1980
    assert records[0]["source"]["classes"] == [0, 1]
    assert records[0]["parity"][0]["thresholds"] == [0.99]
    text = (tmp_path / "label" / "card.md").read_text("utf-8")
    assert "| calibrated on | `1,980 rows of rows.csv without those" in text


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ((), "--calibration: is missing: forest.pkl is an outlier detector"),
        (("--sample", "rows.csv", "--prune", "5"), "train a smaller one"),
        (("--sample", "rows.csv"), "has 4 features, the rows of rows.csv have 5"),
        (("--sample", "normal.csv", "--expected", "a.txt"), "--expected: are prob"),
    ],
)
def test_a_detector_is_refused_in_one_line(command, detector, tmp_path, more, problem):
    """Nothing is written."""
    words = ("convert", "forest.pkl", "--trust-pickle", "--out", "out")
    status, _, said = command(*words, *more)
    assert status == 2
    assert problem in said
    assert not (tmp_path / "out").exists()


def test_calibration_rows_of_a_classifier_are_refused(command, boosted, rows, tmp_path):
    """Its probabilities are not recalibrated."""
    boosted.save_model(tmp_path / "model.json")
    sample = sample_file(tmp_path / "rows.parquet", rows)
    status, _, said = command(
        *("convert", "model.json", "--out", "out", "--calibration", sample)
    )
    assert status == 2
    assert "--calibration: is for outlier detectors; model.json is none" in said

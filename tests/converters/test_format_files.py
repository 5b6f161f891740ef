"""Fields of LightGBM texts, ONNX files and pickles are read, or refused by name."""

import pickle
from pathlib import Path

import numpy as np
import onnx
import pytest
import sklearn
from lightgbm import LGBMClassifier
from sklearn.linear_model import LogisticRegression

from converters.sources.files.format_fields import (
    LIGHTGBM,
    ONNX,
    PICKLE,
    XGBOOST,
    field_table,
)
from converters.sources.files.lightgbm_file import read_lightgbm_text
from converters.sources.files.onnx_file import check_onnx
from converters.sources.opening import open_source
from converters.survey import EXPECTED
from tests.converters.format_fuzz import base_files, fuzz, judged_rows, outcome, said
from tollgate.errors import ConversionError, TollgateError

CHECKOUT = Path(__file__).parents[2]
SHARED = CHECKOUT.parent / "shared"


@pytest.mark.parametrize("fields", [XGBOOST, LIGHTGBM, ONNX, PICKLE])
def test_the_page_has_the_tables_that_the_readers_use(fields):
    """Each field once, with its use."""
    page = (CHECKOUT / "docs" / "conversion-formats.md").read_text()
    assert field_table(fields) in page
    assert len({one.path for one in fields}) == len(fields)


@pytest.fixture(scope="module")
def files():
    """Small models of every format."""
    return base_files()


def test_files_answer_as_their_numbers_say(files, tmp_path):
    """Unchanged, each converts to what its own numbers say."""
    for name, data in files.items():
        path = tmp_path / name
        path.write_bytes(data)
        plain = name.startswith(("onnx", "pickle_linear"))
        rows = np.nan_to_num(judged_rows()) if plain else judged_rows()
        kind, words = outcome(path, rows)
        assert kind == "converted", (name, kind, words)


def test_the_arithmetic_is_that_of_the_libraries(files):
    """What judges the conversions agrees with lightgbm's and onnxruntime's own."""
    import lightgbm
    import onnxruntime

    rows = judged_rows()
    for name, data in files.items():
        if name.startswith("lightgbm"):
            own = lightgbm.Booster(model_str=data.decode()).predict(rows)
            own = own if own.ndim == 2 else np.stack([1 - own, own], axis=1)
            np.testing.assert_allclose(said(data, rows), own, atol=1e-9)
        elif name.startswith("onnx") and "_zip" not in name:
            session = onnxruntime.InferenceSession(data)
            given = {session.get_inputs()[0].name: np.nan_to_num(rows)}
            own = session.run(None, given)[1]
            found = said(data, np.nan_to_num(rows))
            np.testing.assert_allclose(found, own, atol=1e-5)


def test_changed_files_convert_to_what_they_say_or_are_refused(files, tmp_path):
    """Two changes of each file; `format_fuzz.py` runs as many as one likes."""
    made = list(fuzz(files, count=2 * len(files), seed=11, folder=tmp_path))
    wrong = [line for line in made if line[2] not in ("converted", "refused")]
    assert not wrong
    assert {line[2] for line in made} == {"converted", "refused"}


@pytest.fixture(scope="module")
def text():
    """A LightGBM text with categories."""
    features = np.random.default_rng(0).normal(size=(300, 3)).astype(np.float32)
    model = LGBMClassifier(n_estimators=2, num_leaves=4, verbose=-1, n_jobs=1)
    model.fit(features, features[:, 0] > 0)
    return model.booster_.model_to_string()


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("version=v4", "version=v5", "version is v5; read are v2, v3, v4"),
        ("shrinkage=1\n", "shrinkage=1\ntree_weight=2\n", "Tree=0: tree_weight: is a"),
        ("label_index=0", "label_index=0\nscale=2", "scale: is a field that this"),
        ("sigmoid:1", "sigmoid:0", "needed is a sigmoid above 0"),
        ("sigmoid:1", "sigmoid:2", "parameters: sigmoid: is 1, above it is 2"),
        ("num_class=1\n", "num_class=1\nnum_class=1\n", "num_class: stands twice"),
        ("num_class=1\n", "num_class=2\n", "num_class is 2"),
        ("Tree=1", "Tree=2", "Tree=2: stands where Tree=1 belongs"),
        ("feature_names=", "average_output\nfeature_names=", "boosting: gbdt"),
        ("is_linear=0", "is_linear=1", "linear_tree: leaves are linear models"),
        ("num_leaves=4", "num_leaves=5", "split_feature: has 3 numbers; needed are 4"),
        ("decision_type=2", "decision_type=18", "decision_type: has 18, out of range"),
        ("leaf_value=", "leaf_value=nan ", "leaf_value: has 5 numbers"),
        ("end of parameters", "", "is cut off: the parameters have no end"),
    ],
)
def test_a_line_that_is_not_read_is_refused_by_its_name(text, old, new, words):
    """Also numbers that contradict each other."""
    assert old in text
    assert read_lightgbm_text(text).columns == 3
    with pytest.raises(ConversionError) as caught:
        read_lightgbm_text(text.replace(old, new, 1))
    assert words in str(caught.value)


def operator(model, name):
    """Return the first operator of a kind."""
    return next(node for node in model.graph.node if node.op_type == name)


def attribute(node, name):
    """Return one of its attributes."""
    return next(one for one in node.attribute if one.name == name)


def test_a_field_of_a_newer_onnx_is_refused_by_its_number(files):
    """protobuf carries it along without a word."""
    data = files["onnx_forest.onnx"]
    check_onnx(onnx.load_from_string(data))
    newer = onnx.load_from_string(data + b"\xfa\x3f\x03abc")
    with pytest.raises(ConversionError, match="field 1023 of ModelProto, which onnx"):
        check_onnx(newer)
    node = operator(newer := onnx.load_from_string(data), "TreeEnsembleClassifier")
    node.MergeFromString(b"\xfa\x3f\x03abc")
    with pytest.raises(ConversionError, match=r"node\[0\]: has field 1023 of Node"):
        check_onnx(newer)


def test_lists_of_trees_and_labels_in_onnx_must_agree(files):
    """onnxruntime reads beyond a list that is too short, and turns no labels."""
    for name, change, words in (
        ("nodes_values", lambda one: one.floats.pop(), "nodes_values: has"),
        ("nodes_truenodeids", lambda one: one.ints.__setitem__(0, 2), "no row reaches"),
        ("class_ids", lambda one: one.ints.__setitem__(0, 7), r"class_ids\[0\]: is 7"),
        ("classlabels_int64s", lambda one: one.ints.reverse(), "not sorted"),
        ("name", None, "has the attribute 'name_2', which it does not know"),
    ):
        model = onnx.load_from_string(files["onnx_forest.onnx"])
        node = operator(model, "TreeEnsembleClassifier")
        if change is None:
            node.attribute[0].name = "name_2"
        else:
            change(attribute(node, name))
        with pytest.raises(ConversionError, match=words):
            check_onnx(model)


def test_a_pickle_of_a_newer_scikit_learn_is_refused(tmp_path):
    """What an older release makes of it is not what was trained."""
    features = np.random.default_rng(0).normal(size=(50, 2))
    model = LogisticRegression().fit(features, features[:, 0] > 0)
    path = tmp_path / "model.pkl"
    made = sklearn.__version__.encode()
    newer = b"99.1.1".ljust(len(made), b"0")[: len(made)]
    path.write_bytes(pickle.dumps(model, protocol=2).replace(made, newer))
    with (
        pytest.raises(TollgateError, match=f"scikit-learn {newer.decode()}, and"),
        open_source(path, trust_pickle=True),
    ):
        pass


def test_models_made_by_others_convert_or_are_refused_in_words():
    """Predictions that the author supplies with a model are reproduced."""
    if not SHARED.exists():
        pytest.skip("needs ../shared, models made by others, which are not ours")
    from converters.survey import survey

    rows = {Path(row.file).name: row for row in survey(SHARED / "data" / "models")}
    assert len(rows) > 25
    for name, row in rows.items():
        assert row.outcome.startswith(("converted: ", "refused: ")), row
        assert "Traceback" not in row.outcome
        # lgmulticlass was given float64 rows: rounding moves one across a split.
        if name in EXPECTED and name != "lgmulticlass.model":
            assert row.converted
            assert row.expected_delta is not None
            assert row.expected_delta < 1e-6

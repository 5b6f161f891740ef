"""The proof finds every way in which a converted model can be wrong."""

import numpy as np
import onnx
import pytest
from onnx import helper
from xgboost import XGBClassifier

from converters.model import Probes
from converters.onnx.from_xgboost import onnx_from_xgboost, served_booster
from converters.parity.parity import ALONE_ROWS
from converters.parity.probe_rows import probes
from converters.parity.runner import in_batches, onnx_runner
from converters.trees.xgboost_trees import trees_from_xgboost
from tests.support.converters.parity import compare
from tollgate.errors import ConversionError


@pytest.fixture(scope="module")
def model():
    """Train with gaps, so that missing values have a direction everywhere."""
    random = np.random.default_rng(0)
    features = random.normal(size=(3000, 4)).astype(np.float32)
    label = features.sum(1) > 1
    features[random.random(features.shape) < 0.2] = np.nan
    return XGBClassifier(n_jobs=1, n_estimators=5, max_depth=3).fit(features, label)


@pytest.fixture(scope="module")
def rows(model):
    """Ten sample rows and all that follows from the trees."""
    samples = np.random.default_rng(1).normal(size=(10, 4)).astype(np.float32)
    return probes(samples, trees_from_xgboost(served_booster(model)))


def damaged(model, attribute, *, position, change):
    """Convert, then change one number of the trees; None if that is out of range."""
    converted = onnx.load_from_string(onnx_from_xgboost(model))
    (trees,) = (n for n in converted.graph.node if n.name == "trees")
    (found,) = (a for a in trees.attribute if a.name == attribute)
    values = list(helper.get_attribute_value(found))
    values[position] = change(values[position])
    found.CopyFrom(helper.make_attribute(attribute, values))
    return onnx_runner(converted.SerializeToString())


def split_positions(model):
    """List the positions of splits among the nodes."""
    converted = onnx.load_from_string(onnx_from_xgboost(model))
    (trees,) = (n for n in converted.graph.node if n.name == "trees")
    modes = next(a.strings for a in trees.attribute if a.name == "nodes_modes")
    return [at for at, mode in enumerate(modes) if mode == b"BRANCH_LT"]


def verdict(model, converted, rows, *, thresholds=(0.5,)):
    """Compare a model with a runner."""
    return compare(model.predict_proba, converted, probes=rows, thresholds=thresholds)


def test_a_threshold_one_ulp_too_high_is_found(model, rows):
    """For every single split of the model."""

    def up(value):
        return float(np.nextafter(np.float32(value), np.float32(np.inf)))

    for position in split_positions(model):
        wrong = damaged(model, "nodes_values", position=position, change=up)
        report = verdict(model, wrong, rows)
        assert not report.passed
        assert report.max_delta > 1e-5
        assert report.worst[0].kind == "split"


def test_a_wrong_way_for_missing_values_is_found(model, rows):
    """For the root of the first tree."""
    wrong = damaged(
        model,
        "nodes_missing_value_tracks_true",
        position=split_positions(model)[0],
        change=lambda way: 1 - way,
    )
    report = verdict(model, wrong, rows)
    assert not report.passed
    assert report.worst[0].kind == "special"


def test_a_wrong_leaf_is_found(model, rows):
    """For every leaf; a change of 1e-3 in the margin is over the tolerance."""
    converted = onnx.load_from_string(onnx_from_xgboost(model))
    (trees,) = (n for n in converted.graph.node if n.name == "trees")
    leaves = next(a.floats for a in trees.attribute if a.name == "target_weights")
    for position in range(len(leaves)):
        wrong = damaged(
            model, "target_weights", position=position, change=lambda w: w + 1e-3
        )
        assert not verdict(model, wrong, rows).passed


def test_a_faithful_model_passes_and_says_how_closely(model, rows):
    """The largest difference is the tolerance that would just pass."""
    report = verdict(model, onnx_runner(onnx_from_xgboost(model)), rows)
    report.check()
    assert report.passed
    assert report.rows == len(rows.rows)
    assert 0 <= report.max_delta < 1e-6
    assert report.worst[0].source == pytest.approx(report.worst[0].converted, abs=1e-6)
    assert report.runtime == "onnxruntime 1.19.2"


class Answering:
    """A runner that answers by a function."""

    runtime = "a function"

    def __init__(self, infer):
        self.infer = infer

    def __call__(self, rows):
        """Answer all rows at once."""
        return self.infer(rows)

    def batched(self, rows, *, size):
        """Answer some rows at a time."""
        return in_batches(self.infer, rows, size=size)


def constant(score):
    """Make a runner that gives every row the same P(1)."""

    def infer(rows):
        ones = np.full(len(rows), score, dtype=np.float32)
        return np.stack([1 - ones, ones], axis=1)

    return Answering(infer)


def two_rows():
    """Make two sample rows."""
    return Probes(rows=np.zeros((2, 3), np.float32), kind=np.array(["sample"] * 2))


def test_a_flip_fails_however_small_the_difference():
    """0.5 against the next float below, at a threshold of 0.5: two flips."""
    report = compare(
        constant(0.5),
        constant(np.nextafter(np.float32(0.5), np.float32(0))),
        probes=two_rows(),
        thresholds=(0.2, 0.5),
    )
    assert report.max_delta < 1e-7
    assert report.flips == 2
    assert not report.passed
    with pytest.raises(
        ConversionError, match="2 decisions flip; worst is sample row 0"
    ):
        report.check()


@pytest.mark.parametrize("score", [np.nan, np.inf, -0.001, 1.001])
def test_what_is_no_probability_fails(score):
    """NaN compares as equal to nothing; it must not slip through."""
    report = compare(
        constant(0.3), constant(score), probes=two_rows(), thresholds=(0.9,)
    )
    assert report.max_delta == np.inf
    assert not report.passed


def test_an_answer_that_depends_on_its_company_fails():
    """A row scored by its place in the batch differs alone, batched and shuffled."""

    def by_place(rows):
        score = np.linspace(0.1, 0.2, len(rows), dtype=np.float32)
        return np.stack([1 - score, score], axis=1)

    report = compare(
        constant(0.1), Answering(by_place), probes=two_rows(), thresholds=(0.9,)
    )
    assert report.batch_delta == pytest.approx(0.1)
    assert not report.passed


def test_a_row_that_only_fails_alone_is_found():
    """A graph that is right in company and wrong for a single row."""

    def lonely(rows):
        score = np.full(len(rows), 0.1 if len(rows) > 1 else 0.2, dtype=np.float32)
        return np.stack([1 - score, score], axis=1)

    report = compare(
        constant(0.1), Answering(lonely), probes=two_rows(), thresholds=(0.9,)
    )
    assert report.max_delta == pytest.approx(0, abs=1e-7)
    assert report.batch_delta == pytest.approx(0.1)
    assert report.alone == 2


def test_every_row_goes_in_batches_and_a_share_of_each_kind_alone():
    """100,000 sample rows and 10 special: 4,096 and 10 of them go alone."""
    asked = []

    def note(rows):
        asked.append(len(rows))
        return np.full((len(rows), 2), 0.5, dtype=np.float32)

    probes_ = Probes(
        rows=np.zeros((100_010, 1), np.float32),
        kind=np.repeat(["sample", "special"], [100_000, 10]),
    )
    report = compare(constant(0.5), Answering(note), probes=probes_, thresholds=(0.9,))
    assert (report.rows, report.alone) == (100_010, ALONE_ROWS + 10)
    assert asked.count(1) == report.alone
    assert sum(one for one in asked if one > 1) == 2 * report.rows
    assert max(asked) == 32


def test_bytes_that_are_no_model_are_refused_in_words():
    """The words name the runtime."""
    with pytest.raises(ConversionError, match=r"^onnxruntime 1\.19\.2 cannot load"):
        onnx_runner(b"\x00not a model")


def test_a_model_with_other_tensors_is_refused():
    """A label output, which converters write by default, does not fit the step."""
    node = helper.make_node("Identity", ["x"], ["y"])
    tensor = helper.make_tensor_value_info
    graph = helper.make_graph(
        [node], "g", [tensor("x", 1, ["N", 2])], [tensor("y", 1, ["N", 2])]
    )
    other = helper.make_model(
        graph, ir_version=8, opset_imports=[helper.make_opsetid("", 15)]
    )
    with pytest.raises(ConversionError, match=r"maps \[\('x', .*a model step maps"):
        onnx_runner(other.SerializeToString())

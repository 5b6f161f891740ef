"""A model that was made smaller is proven like any other, and its price is recorded."""

import numpy as np
import onnx
import pytest
from sklearn.linear_model import LogisticRegression
from xgboost import XGBClassifier

from converters.compression.compress import Shrinking
from converters.conversion import convert_model
from converters.folder import write_converted
from converters.parity.runner import onnx_runner
from converters.purpose import Purpose
from converters.sample import Sample
from converters.sources.worker import model_of
from tests.support.converters.artifact_record import read_record
from tollgate.errors import InputError, TradeError
from tollgate.repository.models.artifact_file import Gate, require_proof

NAMES = ("a", "b", "c", "d")
GENEROUS = Gate(flips=1.0, auc_loss=1.0, ap_loss=1.0)


@pytest.fixture(scope="module")
def sample():
    """Return 600 labelled rows."""
    random = np.random.default_rng(0)
    rows = random.normal(size=(600, 4)).astype(np.float32)
    label = (rows[:, 0] + random.normal(size=600) > 0).astype(int)
    return Sample(rows=rows, names=NAMES, label=tuple(label.tolist()))


@pytest.fixture(scope="module")
def boosted(sample):
    """Return a fitted XGBoost classifier of 20 trees."""
    model = XGBClassifier(n_estimators=20, max_depth=4, n_jobs=1)
    return model.fit(sample.rows, np.array(sample.label))


@pytest.fixture(scope="module")
def linear(sample):
    """Return a fitted logistic regression."""
    return LogisticRegression().fit(sample.rows, np.array(sample.label))


def converted(model, sample, **asked):
    """Convert a model in memory."""
    return convert_model(
        model_of(model),
        origin="the model",
        purpose=Purpose(spec_hash="0123456789abcdef"),
        sample=sample,
        shrinking=Shrinking(**asked),
    )


def test_a_pruned_model_is_proven_against_the_pruned_source(boosted, sample, tmp_path):
    """8 trees answer as the first 8 of the source; what that costs is in the record."""
    found = converted(boosted, sample, prune="8", gate=GENEROUS)
    record = write_converted(found, tmp_path / "out")
    assert record.source.trees == 8
    assert [one.kind for one in record.trades] == ["prune"]
    assert record.trades[0].after.size_bytes < record.trades[0].before.size_bytes
    assert record.allowed == GENEROUS
    assert (tmp_path / "out" / "prune.png").read_bytes().startswith(b"\x89PNG")
    expected = boosted.predict_proba(sample.rows, iteration_range=(0, 8))
    found = onnx_runner((tmp_path / "out" / "model.onnx").read_bytes())(sample.rows)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    require_proof(tmp_path / "out")


def test_a_tensorized_model_has_no_tree_and_passes_the_same_proof(
    boosted, sample, tmp_path
):
    """The reports count the very rows that the trees were proven on."""
    trees = converted(boosted, sample)
    plain = converted(boosted, sample, tensorize="auto")
    assert write_converted(plain, tmp_path / "out").parity_of == "model"
    graph = onnx.load(tmp_path / "out" / "model.onnx").graph
    assert {node.domain for node in graph.node} == {""}
    assert plain.proven.report.kinds == trees.proven.report.kinds
    np.testing.assert_allclose(
        plain.probabilities(sample.rows), boosted.predict_proba(sample.rows), atol=1e-5
    )


def test_a_quantised_model_is_a_trade_behind_the_proof(linear, sample, tmp_path):
    """The proof is of the graph before it; targets and explanation are not claimed."""
    found = converted(linear, sample, quantize="static", gate=GENEROUS)
    assert not found.is_proven
    record = write_converted(found, tmp_path / "out")
    assert [one.kind for one in record.trades] == ["quantize"]
    assert record.trades[0].max_delta > 0
    assert record.parity_of == "before quantize"
    assert read_record(tmp_path / "out") == record
    assert record.targets == ("24.10",)
    assert not (tmp_path / "out" / "explain.npz").exists()
    kinds = {node.op_type for node in onnx.load_from_string(found.model).graph.node}
    assert any("Quant" in kind for kind in kinds)


def test_what_costs_too_much_is_not_converted(boosted, sample):
    """One tree of twenty flips decisions: the usual gate refuses it."""
    with pytest.raises(TradeError, match="decisions change") as caught:
        converted(boosted, sample, prune="1")
    assert caught.value.exit_status == 1


@pytest.mark.parametrize(
    ("asked", "with_sample", "words"),
    [
        ({"prune": "8"}, False, "prune: is judged on rows: hand in a sample"),
        ({"distill": True}, False, "distill: is judged on rows"),
        ({"quantize": "static"}, False, "quantize: is judged on rows"),
        ({"prune": "8", "distill": True}, True, "distill: teaches from the whole"),
        ({"tensorize": "auto", "distill": True}, True, "tensorize: is for trees"),
        ({"tensorize": "auto", "quantize": "static"}, True, "quantize: is for net"),
    ],
)
def test_what_does_not_go_together_is_refused(
    boosted, sample, asked, with_sample, words
):
    """Before any work is done."""
    with pytest.raises(InputError) as caught:
        converted(boosted, sample if with_sample else None, **asked)
    assert str(caught.value).startswith(words)

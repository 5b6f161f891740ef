"""The record of a model is complete, readable and bound to it."""

import hashlib
import json
from pathlib import Path

import msgspec
import numpy as np
import pytest

from converters.folder import (
    QUANTILES,
    describe_training,
    write_artifact,
)
from converters.model import plain_parameters
from converters.parity.parity import Disagreement, ParityReport
from tests.support.converters.artifact_record import read_record
from tollgate.errors import RepositoryError
from tollgate.repository.models import artifact_file as served
from tollgate.repository.models.artifact_file import Artifact, Graph, Source

MODEL = b"not really a model"


def record(**changed):
    """Make a record of two features."""
    features = np.array([[1, np.nan], [2, 5], [3, 6], [4, np.nan]], dtype=np.float32)
    fields = {
        "sha256": "0" * 64,
        "spec_hash": "00c36f8242c6fa06",
        "features": ("amount", "risk"),
        "source": Source(
            framework="xgboost",
            version="3.2.0",
            objective="binary:logistic",
            classes=(0, 1),
            trees=100,
            parameters={"tree_method": "exact", "max_depth": 6, "base_score": 0.5},
        ),
        "graph": Graph(
            converter="onnxmltools 1.16.0", opset={"ai.onnx": 15}, ir=8, size_bytes=18
        ),
        "parity": (
            ParityReport(
                runtime="onnxruntime 1.19.2",
                rows=10,
                max_delta=6e-8,
                flips=0,
                batch_delta=0.0,
                thresholds=(0.35, 0.8),
                tolerance=1e-5,
                worst=(Disagreement(row=3, kind="split", source=0.1, converted=0.1),),
            ),
        ),
        "training": describe_training(
            features,
            names=("amount", "risk"),
            label=[0, 1, 1, 0],
            score=np.float32([0.1, 0.9, 0.8, 0.2]),
        ),
        "created": "2018-08-01T00:00:00Z",
    }
    return Artifact(**{**fields, **changed})


@pytest.fixture
def version(tmp_path):
    """Return a version directory with a model and its record."""
    (tmp_path / "model.onnx").write_bytes(MODEL)
    write_artifact(record(sha256=hashlib.sha256(MODEL).hexdigest()), tmp_path)
    return tmp_path


def test_what_is_written_is_what_is_read(version):
    """All fields survive, tuples and floats included."""
    found = read_record(version)
    assert found == record(sha256=found.sha256)


def test_records_of_before_are_still_read():
    """The committed model's record is older than most of the fields."""
    committed = Path(__file__).parents[2] / "model_repository" / "fraud_model" / "1"
    found = read_record(committed)
    assert found.training.origin == "training"
    assert found.parity[0].passed
    served.require_proof(committed)


def test_what_could_not_be_read_again_is_not_written(tmp_path):
    """JSON has no infinity; the line names the field."""
    odd = msgspec.structs.replace(record().parity[0], max_delta=float("inf"))
    with pytest.raises(RepositoryError, match=r"Expected `float`, got `null`.*parity"):
        write_artifact(record(parity=(odd,)), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_infinite_features_and_parameters_are_written_in_words(tmp_path):
    """Infinities are counted apart from the quantiles; as a parameter one is a text."""
    rows = np.array([[1], [np.inf], [np.nan], [-np.inf]], dtype=np.float32)
    training = describe_training(
        rows, names=("a",), label=None, score=np.float32([0, 0, 1, 1])
    )
    found = training.features["a"]
    assert set(found.quantiles) == {1.0}
    assert (found.missing, found.infinite) == (0.25, 0.5)
    set_so = plain_parameters({"C": np.inf, "n": np.int64(3), "l1": np.float64(0.5)})
    assert set_so == {"C": "inf", "n": 3, "l1": 0.5}
    source = msgspec.structs.replace(record().source, parameters=set_so)
    (tmp_path / "model.onnx").write_bytes(MODEL)
    given = record(
        sha256=hashlib.sha256(MODEL).hexdigest(), training=training, source=source
    )
    write_artifact(given, tmp_path)
    assert read_record(tmp_path) == given


def test_the_server_reads_the_part_it_needs(version):
    """The library that serves has its own, smaller view of the same file."""
    found = served.read_artifact(version)
    assert found.spec_hash == "00c36f8242c6fa06"
    assert found.features == ("amount", "risk")
    assert found.sha256 == read_record(version).sha256


def test_the_file_is_indented_json_that_ends_with_a_newline(version):
    """People read and diff it."""
    text = (version / "artifact.json").read_text()
    assert text.startswith('{\n  "sha256"')
    assert text.endswith("}\n")
    assert json.loads(text)["training"]["quantiles"] == list(QUANTILES)


def test_distributions_count_gaps_and_list_observed_values():
    """Quantiles are of the values that are there, each one of them."""
    features = np.array([[1, np.nan], [2, 5], [3, 6], [4, np.nan]], dtype=np.float32)
    training = describe_training(
        features, names=("a", "b"), label=[0, 1, 1, 0], score=features[:, 0] / 4
    )
    assert (training.rows, training.frauds) == (4, 2)
    assert training.features["a"].missing == 0
    assert training.features["b"].missing == 0.5
    assert training.features["a"].quantiles[0] == 1
    assert training.features["a"].quantiles[-1] == 4
    assert set(training.features["b"].quantiles) == {5.0, 6.0}
    assert training.score.quantiles[-1] == 1


def test_a_feature_without_any_value_has_no_quantiles():
    """It is all gap, and the record still can be written."""
    empty = np.full((3, 1), np.nan, dtype=np.float32)
    training = describe_training(
        empty, names=("a",), label=[0, 1, 0], score=np.float32([0, 0.5, 1])
    )
    assert training.features["a"].quantiles == ()
    assert training.features["a"].missing == 1
    assert msgspec.json.encode(training)

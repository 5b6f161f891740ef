"""A model that ranks is published: tried on candidates, timed, loaded by a server."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tests.support.products.small_shop import (
    release_shop,
    small_catalogue,
    write_linear_model,
    write_shop,
)
from tollgate.errors import RepositoryError
from tollgate.features.spec.feature_spec import FeatureSpec
from tollgate.ranking.candidates import CANDIDATES, feature_names
from tollgate.repository.hashes import hash_file
from tollgate.repository.models.artifact_file import (
    TOLERANCE,
    Artifact,
    Disagreement,
    ParityReport,
)
from tollgate.repository.models.speed import us_per_row
from tollgate.repository.models.targets import OURS
from tollgate.repository.versions import list_versions
from tollgate.schema import ARTIFACT_FILE
from tollgate.server.model_trial import SourceAnswers, try_model
from tollgate.server.publishing import publish

WEIGHTS = {"popularity": 1.0, "trend": -0.5, "cosine_history": 3.0}
NAMES = feature_names(small_catalogue())


@pytest.fixture
def spec(tmp_path: Path) -> FeatureSpec:
    """The features of a released product that ranks."""
    found = write_shop(tmp_path / "models")
    release_shop(tmp_path / "models", found)
    return found


@pytest.fixture
def candidate(tmp_path: Path, spec: FeatureSpec) -> Path:
    """A linear ranker whose record says that it was proven."""
    folder = tmp_path / "candidate"
    folder.mkdir()
    write_linear_model(folder, spec, weights=WEIGHTS)
    record(folder)
    return folder


def record(folder: Path) -> None:
    """Write the record of the model that is there, with a passed proof."""
    path = folder / ARTIFACT_FILE
    was = msgspec.json.decode(path.read_bytes(), type=Artifact)
    report = ParityReport(
        runtime=f"onnxruntime {OURS.onnxruntime}",
        rows=1,
        max_delta=0.0,
        flips=0,
        batch_delta=0.0,
        thresholds=(),
        tolerance=TOLERANCE,
        worst=(Disagreement(0, "sample", 0.0, 0.0, 0),),
        unit=1.0,
    )
    new = msgspec.structs.replace(
        was, sha256=hash_file(folder / "model.onnx"), parity=(report,)
    )
    path.write_bytes(msgspec.json.encode(new))


def raw_answers(rows: int) -> SourceAnswers:
    """Make raw rows of candidates, and add their weighted features in float64."""
    given = np.random.default_rng(3).normal(size=(rows, len(NAMES)))
    weights = np.array([WEIGHTS.get(name, 0.0) for name in NAMES])
    served = given.astype(np.float32).astype(np.float64)
    return SourceAnswers(rows=given, probabilities=(served @ weights)[:, None])


def test_a_ranker_becomes_a_version_that_a_server_answers_with(
    tmp_path: Path, candidate: Path
) -> None:
    """A real server loads it, and answers lists as its file and its source do."""
    said: list[str] = []
    done = publish(
        candidate,
        repository=tmp_path / "models",
        product="shop",
        answers=raw_answers(450),  # two whole lists, and a quarter of one
        progress=said.append,
    )
    assert (done.step, done.version) == ("shop_model", 2)
    assert list_versions(tmp_path / "models", "shop_model") == [1, 2]
    assert any(line.startswith("served = source on 450 raw rows") for line in said)


def test_a_trial_sends_lists_of_candidates(candidate: Path) -> None:
    """Relevance of each is the weighted sum of its features."""
    trial = try_model(candidate / "model.onnx")
    assert trial.features.shape == (32, CANDIDATES, len(NAMES))
    weights = np.array([WEIGHTS.get(name, 0.0) for name in NAMES])
    expected = trial.features.astype(np.float64) @ weights
    np.testing.assert_allclose(trial.probabilities, expected, rtol=1e-5, atol=1e-4)


def test_the_time_of_a_ranker_is_that_of_whole_lists(candidate: Path) -> None:
    """There is a time for 1, 8 and 32 requests."""
    found = us_per_row(candidate / "model.onnx", measure_s=0.01)
    assert tuple(found) == (1, 8, 32)
    assert all(0 < us < float("inf") for us in found.values())


def test_a_relevance_that_is_no_number_is_refused(
    tmp_path: Path, candidate: Path
) -> None:
    """Nothing is published, and the error names the output."""
    path = candidate / "model.onnx"
    model = onnx.load(path)
    (weights,) = (one for one in model.graph.initializer if one.name == "weights")
    broken = np.full(len(NAMES), np.nan, np.float32)
    weights.CopyFrom(numpy_helper.from_array(broken, "weights"))
    onnx.save(model, path)
    record(candidate)
    with pytest.raises(RepositoryError, match=r"relevance: .* no finite number"):
        publish(
            candidate, repository=tmp_path / "models", product="shop", dry_load=False
        )
    assert list_versions(tmp_path / "models", "shop_model") == [1]


def test_a_model_of_features_does_not_fit(tmp_path: Path, candidate: Path) -> None:
    """A model of a product that decides names what the configuration lacks."""
    committed = Path(__file__).resolve().parents[3] / "model_repository/fraud_model/1"
    (candidate / "model.onnx").write_bytes((committed / "model.onnx").read_bytes())
    record(candidate)
    with pytest.raises(RepositoryError, match="candidate_features: the model has no"):
        publish(
            candidate, repository=tmp_path / "models", product="shop", dry_load=False
        )

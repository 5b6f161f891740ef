"""Rows decided in batches are decided as if they were one batch."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from tollgate.engine.batches import decide_in_batches, rows_of
from tollgate.engine.onnx_session import OnnxSession
from tollgate.engine.scoring_model import ScoringModel
from tollgate.errors import RepositoryError
from tollgate.features.spec.feature_spec import SPEC_FILE, load_spec
from tollgate.policy import Policy, RowFacts, decide
from tollgate.repository.releases.served_versions import load_policy_of

REPOSITORY = Path(__file__).parents[3] / "model_repository"
SPEC = load_spec(REPOSITORY / "fraud_features" / "1" / SPEC_FILE)
ROWS = 101


@pytest.fixture(scope="module")
def policy() -> Policy:
    """The policy of the committed product."""
    return load_policy_of(REPOSITORY / "fraud_decision" / "1", SPEC)


@pytest.fixture(scope="module")
def model() -> ScoringModel:
    """The model of the committed product."""
    path = REPOSITORY / "fraud_model" / "1" / "model.onnx"
    return ScoringModel(OnnxSession(path, intra_op_threads=1))


@pytest.fixture
def facts() -> RowFacts:
    """Random rows without probabilities."""
    chance = np.random.default_rng(7)
    features = chance.gamma(2.0, 20.0, (ROWS, len(SPEC.features))).astype(np.float32)
    return RowFacts(
        probabilities=np.full((ROWS, 2), np.nan, np.float32),
        features=features,
        cents=chance.integers(0, 200_000, ROWS),
        degraded=np.zeros(ROWS, np.uint32),
        event_time_us=np.full(ROWS, 1_700_000_000_000_000),
        list_hits=chance.integers(0, 2, ROWS).astype(np.uint32),
        fields={},
    )


@pytest.mark.parametrize("batch_rows", [1, 32, 1_000])
def test_batches_decide_as_one(
    policy: Policy, model: ScoringModel, facts: RowFacts, batch_rows: int
) -> None:
    """Every column has the same bits, whatever the size of a batch."""

    def score(rows: RowFacts) -> np.ndarray:
        return model.score(rows, SPEC)

    found = decide_in_batches(facts, policy=policy, score=score, batch_rows=batch_rows)
    whole = msgspec.structs.replace(facts, probabilities=score(facts))
    wanted = decide(whole, policy=policy)
    for name in wanted.__struct_fields__:
        one, other = getattr(found.decisions, name), getattr(wanted, name)
        assert one.dtype == other.dtype
        assert one.tolist() == other.tolist()
    assert (found.took_us >= 0).all()
    assert len(found.took_us) == ROWS


def test_no_rows_are_decided_too(
    policy: Policy, model: ScoringModel, facts: RowFacts
) -> None:
    """The result has no rows."""
    none = rows_of(facts, slice(0, 0))
    found = decide_in_batches(
        none, policy=policy, score=lambda rows: model.probabilities(rows.features)
    )
    assert found.decisions.decision.shape == (0,)


def test_a_model_of_other_tensors_is_refused(tmp_path: Path, doubling: bytes) -> None:
    """The error names the input that is missing."""
    path = tmp_path / "model.onnx"
    path.write_bytes(doubling)
    with pytest.raises(RepositoryError, match="has no input features"):
        ScoringModel(OnnxSession(path, intra_op_threads=1))

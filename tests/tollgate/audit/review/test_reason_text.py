"""Contributions to a score that combines several classes."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec
import numpy as np
import pytest

from tests.support.audit.decided_records import opened, vectors
from tollgate.audit.releases.past_release import OpenedRelease, ReleaseFiles
from tollgate.audit.review.reason_text import ReleaseExplainer
from tollgate.errors import RepositoryError
from tollgate.explanation import EXPLAIN_FILE, Explanation, Linear, encode_explanation
from tollgate.explanation.explanation_file import unexplained
from tollgate.policy import load_policy

POLICY = """
version: 1
product: fraud
labels: [good, stolen, abused]
score: {weights: {stolen: 1.0, abused: 0.5}}
thresholds: {review: 0.3, decline: 0.8}
fallback: {model_output: review}
rules: []
reasons: {MODEL_UNAVAILABLE: m, SCORE_DECLINE: d, SCORE_REVIEW: r}
"""


def linear() -> tuple[Explanation, np.ndarray, np.ndarray]:
    """Return a softmax over three sums of features, with coefficients and means."""
    chance = np.random.default_rng(4)
    weight, mean = chance.normal(size=(3, 15)), chance.normal(size=15)
    part = Linear(
        source=np.arange(15, dtype=np.int32),
        slope=np.ones(15),
        offset=np.zeros(15),
        by_category=np.zeros(15, np.bool_),
        category=np.full(15, np.nan),
        filled=np.full(15, np.nan),
        mean=mean,
        coefficient=weight,
    )
    explanation = Explanation(
        features=opened().spec.feature_names,
        classes=("good", "stolen", "abused"),
        link="softmax",
        base=np.array([0.1, 0.2, 0.3]),
        linear=part,
    )
    return explanation, weight, mean


def release_with(explanation: Explanation, folder: Path) -> OpenedRelease:
    """Return a release with the fraud features, another model and another policy."""
    real = opened()
    (folder / "policy.yaml").write_text(POLICY)
    policy = load_policy(folder / "policy.yaml", feature_names=real.spec.feature_names)
    content = encode_explanation(explanation)
    place = f"fraud_model/1/{EXPLAIN_FILE}"
    hashes = {place: hashlib.sha256(content).hexdigest()}
    release = msgspec.structs.replace(real.files.release, hashes=hashes)
    files = ReleaseFiles(release, archived={EXPLAIN_FILE: content}, repository=None)
    return OpenedRelease("fraud-1", real.spec, policy, files)


def test_contributions_are_weighted_like_the_score(tmp_path: Path) -> None:
    """By hand: the weighted sum of coefficient times distance from the mean."""
    explanation, weight, mean = linear()
    explainer = ReleaseExplainer(release_with(explanation, tmp_path))
    rows = vectors(20, seed=1)
    wanted = (rows - mean) * (weight[1] + 0.5 * weight[2])
    np.testing.assert_allclose(explainer.contributions(rows), wanted)
    expected = (0.2 + weight[1] @ mean) + 0.5 * (0.3 + weight[2] @ mean)
    assert explainer.expected == pytest.approx(expected)


def test_reasons_without_policy_texts_describe_features(tmp_path: Path) -> None:
    """The policy maps no feature; at most four reasons."""
    explanation, _, _ = linear()
    explainer = ReleaseExplainer(release_with(explanation, tmp_path))
    amounts = explainer.contributions(vectors(1, seed=1))[0]
    reasons = explainer.reasons(["SCORE_REVIEW"], amounts)
    assert len(reasons) == 4
    assert reasons[0].text == "r"
    top = explainer.spec.feature_names[int(np.argmax(amounts))]
    assert reasons[1].feature == reasons[1].code == top
    assert reasons[1].text.startswith("Raised the score: ")


def test_model_without_sums_is_not_explained(tmp_path: Path) -> None:
    """The error gives the cause in explain.npz, or the number of classes."""
    names = opened().spec.feature_names
    none = unexplained("a network is no sum", features=names, classes=(0, 1, 2))
    with pytest.raises(RepositoryError, match="a network is no sum"):
        ReleaseExplainer(release_with(none, tmp_path))
    explanation, _, _ = linear()
    two = msgspec.structs.replace(
        explanation,
        classes=(0, 1),
        link="logistic",
        base=np.zeros(1),
        linear=msgspec.structs.replace(
            explanation.linear, coefficient=explanation.linear.coefficient[:1]
        ),
    )
    with pytest.raises(RepositoryError, match="has 2 classes, the policy has 3 labels"):
        ReleaseExplainer(release_with(two, tmp_path))


def test_probabilities_of_other_classes_are_not_reproduced(tmp_path: Path) -> None:
    """Records with two probabilities are not answers of a model with three classes."""
    explanation, _, _ = linear()
    explainer = ReleaseExplainer(release_with(explanation, tmp_path))
    rows = vectors(5, seed=1)
    assert not explainer.reproduces(rows, np.full((5, 2), 0.5, np.float32)).any()
    assert not explainer.reproduces(rows, np.full((5, 3), 0.5, np.float32)).any()


def test_changed_explanation_is_refused(tmp_path: Path) -> None:
    """The release has the hash of its explanation."""
    explanation, _, _ = linear()
    release = release_with(explanation, tmp_path)
    other = msgspec.structs.replace(explanation, base=np.ones(3))
    archived = {EXPLAIN_FILE: encode_explanation(other)}
    files = ReleaseFiles(release.files.release, archived=archived, repository=None)
    with pytest.raises(RepositoryError, match="is not the file of release fraud-1"):
        ReleaseExplainer(msgspec.structs.replace(release, files=files))

"""Contributions towards a score that is made of several classes."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec
import numpy as np
import pytest
from records_decided import opened, vectors

from tollgate.audit.opened import OpenedRelease, ReleaseFiles
from tollgate.audit.teller import ReleaseExplainer
from tollgate.errors import RepositoryError
from tollgate.explanation import EXPLAIN_FILE, Explanation, Linear, encode_explanation
from tollgate.explanation.document import unexplained
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
    """Make a softmax over three sums of features; with coefficients and means."""
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
    """Make a release of the fraud product's features with another model and policy."""
    real = opened()
    (folder / "policy.yaml").write_text(POLICY)
    policy = load_policy(folder / "policy.yaml", feature_names=real.spec.feature_names)
    content = encode_explanation(explanation)
    place = f"fraud_model/1/{EXPLAIN_FILE}"
    hashes = {place: hashlib.sha256(content).hexdigest()}
    release = msgspec.structs.replace(real.files.release, hashes=hashes)
    files = ReleaseFiles(release, archived={EXPLAIN_FILE: content}, repository=None)
    return OpenedRelease("fraud-1", real.spec, policy, files)


def test_a_weighted_score_weighs_contributions(tmp_path: Path) -> None:
    """By hand: the weighted sum of coefficient times distance from the mean."""
    explanation, weight, mean = linear()
    teller = ReleaseExplainer(release_with(explanation, tmp_path))
    rows = vectors(20, seed=1)
    wanted = (rows - mean) * (weight[1] + 0.5 * weight[2])
    np.testing.assert_allclose(teller.contributions(rows), wanted)
    expected = (0.2 + weight[1] @ mean) + 0.5 * (0.3 + weight[2] @ mean)
    assert teller.expected == pytest.approx(expected)


def test_reasons_of_such_a_score_have_words(tmp_path: Path) -> None:
    """The policy maps no feature, so their definitions are told; four at most."""
    explanation, _, _ = linear()
    teller = ReleaseExplainer(release_with(explanation, tmp_path))
    amounts = teller.contributions(vectors(1, seed=1))[0]
    told = teller.reasons(["SCORE_REVIEW"], amounts)
    assert len(told) == 4
    assert told[0].text == "r"
    top = teller.spec.feature_names[int(np.argmax(amounts))]
    assert told[1].feature == told[1].code == top
    assert told[1].text.startswith("Raised the score: ")


def test_a_model_that_is_no_sum_is_not_explained(tmp_path: Path) -> None:
    """The words of its explain.npz are the answer; so is another number of classes."""
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


def test_another_number_of_classes_is_not_the_models(tmp_path: Path) -> None:
    """Records with two probabilities are no answers of a model with three classes."""
    explanation, _, _ = linear()
    teller = ReleaseExplainer(release_with(explanation, tmp_path))
    rows = vectors(5, seed=1)
    assert not teller.reproduces(rows, np.full((5, 2), 0.5, np.float32)).any()
    assert not teller.reproduces(rows, np.full((5, 3), 0.5, np.float32)).any()


def test_a_changed_explanation_is_refused(tmp_path: Path) -> None:
    """The release names its hash: contributions of another model are none."""
    explanation, _, _ = linear()
    release = release_with(explanation, tmp_path)
    other = msgspec.structs.replace(explanation, base=np.ones(3))
    kept = {EXPLAIN_FILE: encode_explanation(other)}
    files = ReleaseFiles(release.files.release, archived=kept, repository=None)
    with pytest.raises(RepositoryError, match="is not the file of release fraud-1"):
        ReleaseExplainer(msgspec.structs.replace(release, files=files))

"""Compute exact feature contributions of one release, and describe them as reasons."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tollgate.audit.releases.past_release import OpenedRelease
from tollgate.errors import RepositoryError
from tollgate.explanation import Explainer
from tollgate.features.spec.description import feature_text, window_text
from tollgate.features.spec.spec_definition import FeatureSpec
from tollgate.policy import RowFacts, without_model
from tollgate.policy.reason_sentences import Reason, select_reasons
from tollgate.repository.models.artifact_file import TOLERANCE

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]


class ReleaseExplainer:
    """
    Describes the features that raised the scores of one release.

    Raises:
        RepositoryError: The release has no explanation, or its classes do not match the
            policy's labels; the message says why.
    """

    def __init__(self, release: OpenedRelease) -> None:
        explanation = release.explanation()
        self._explainer = Explainer(explanation)
        self.policy = release.policy
        self.spec = release.spec
        classes, labels = len(explanation.classes), len(self.policy.labels)
        if classes != labels:
            problem = f"has {classes} classes, the policy has {labels} labels"
            raise RepositoryError(f"release {release.name}", problem)
        self._texts = default_texts(release.spec)

    @property
    def expected(self) -> float:
        """Return the margin of the score before any feature is known."""
        found = self._explainer.expected
        margins = [-found[0], found[0]] if len(found) == 1 else found
        score = self.policy.score
        return float(sum(weight * margins[column] for column, weight in score.weights))

    def contributions(self, rows: F32) -> F64:
        """
        Return the amount that each feature adds to the score's margin; float64 [N, F].

        Margins of several labels are weighted as in the policy's score.
        """
        found = np.zeros(rows.shape)
        for column, weight in self.policy.score.weights:
            found += weight * self._explainer.of_class(rows, column)
        return found

    def reproduces(self, rows: F32, probabilities: F32) -> npt.NDArray[np.bool_]:
        """Return the rows whose probabilities the explanation reproduces; bool [N]."""
        answers = self._explainer.probabilities(rows)
        if answers.shape != probabilities.shape:
            return np.zeros(len(rows), np.bool_)
        with np.errstate(invalid="ignore"):
            away = np.abs(answers - probabilities)
        near: npt.NDArray[np.bool_] = (away <= TOLERANCE).all(axis=1)
        return near

    def explain(self, facts: RowFacts) -> tuple[npt.NDArray[np.bool_], F64]:
        """
        Return which recorded rows can be explained, bool [N], and the contributions.

        A rule with `before_model` explains a row without probabilities: all its
        contributions are 0. The probabilities of any other row must be reproduced.
        """
        early = without_model(facts, policy=self.policy)
        early &= np.isnan(facts.probabilities).all(axis=1)
        amounts = self.contributions(facts.features)
        amounts[early] = 0.0
        return early | self.reproduces(facts.features, facts.probabilities), amounts

    def reasons(self, codes: Sequence[str], contributions: F64) -> tuple[Reason, ...]:
        """Choose the reasons to report for one row."""
        return select_reasons(
            self.policy,
            codes,
            contributions=contributions,
            feature_names=self.spec.feature_names,
            feature_texts=self._texts,
        )


def default_texts(spec: FeatureSpec) -> dict[str, str]:
    """Return a text for each feature, for policies without texts."""
    texts = {}
    for one in spec.features:
        words = (feature_text(one, spec), window_text(one, spec))
        description = ", ".join(part for part in words if part)
        texts[one.name] = f"Raised the score: {description}."
    return texts

"""What raised the scores of one release: exactly, and in words."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tollgate.audit.opened import Opened
from tollgate.errors import RepositoryError
from tollgate.explanation import Explainer
from tollgate.features.definition import FeatureSpec
from tollgate.features.describe import in_words, window_text
from tollgate.policy.telling import Reason, told_reasons
from tollgate.repository.parity import TOLERANCE

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]


class Teller:
    """
    Tells what raised the scores of one release.

    Args:
        release: Which.

    Raises:
        RepositoryError: Its model is not explained, or not the policy's; says why.
    """

    def __init__(self, release: Opened) -> None:
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
        """What the score's margin is before anything is known of a purchase."""
        found = self._explainer.expected
        margins = [-found[0], found[0]] if len(found) == 1 else found
        score = self.policy.score
        return float(sum(weight * margins[column] for column, weight in score.weights))

    def contributions(self, rows: F32) -> F64:
        """
        Return what each feature adds to the score's margin; float64 [N, F].

        Margins of several labels count as the policy's score weighs them.
        """
        found = np.zeros(rows.shape)
        for column, weight in self.policy.score.weights:
            found += weight * self._explainer.of_class(rows, column)
        return found

    def explains(self, rows: F32, probabilities: F32) -> npt.NDArray[np.bool_]:
        """Tell of which rows the explanation gives the very answer; bool [N]."""
        answers = self._explainer.probabilities(rows)
        if answers.shape != probabilities.shape:
            return np.zeros(len(rows), np.bool_)
        with np.errstate(invalid="ignore"):
            away = np.abs(answers - probabilities)
        near: npt.NDArray[np.bool_] = (away <= TOLERANCE).all(axis=1)
        return near

    def told(self, codes: Sequence[str], contributions: F64) -> tuple[Reason, ...]:
        """Choose what a person is told of one row."""
        return told_reasons(
            self.policy,
            codes,
            contributions=contributions,
            feature_names=self.spec.feature_names,
            feature_texts=self._texts,
        )


def default_texts(spec: FeatureSpec) -> dict[str, str]:
    """Say what features are, for policies that have no words of their own."""
    texts = {}
    for one in spec.features:
        words = (in_words(one, spec), window_text(one, spec))
        told = ", ".join(part for part in words if part)
        texts[one.name] = f"Raised the score: {told}."
    return texts

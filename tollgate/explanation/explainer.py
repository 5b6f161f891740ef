"""Compute the contribution of each feature to an answer."""

from __future__ import annotations

import numpy as np

from tollgate.errors import RepositoryError
from tollgate.explanation.document import F32, F64, Explanation, Linear
from tollgate.explanation.shapley import Shapley
from tollgate.explanation.walk import Walk


class Explainer:
    """
    Explain rows of one model; create one explainer per model and reuse it.

    `expected` plus the contributions of a row is the row's margin.

    Args:
        explanation: Checked, as `read_explanation` returns it.

    Attributes:
        expected: Margins before anything is known of a row; float64 [outputs].

    Raises:
        RepositoryError: The explanation has no model; the message has the reason.
    """

    def __init__(self, explanation: Explanation) -> None:
        self._explanation = explanation
        self._shapley: Shapley | None = None
        if explanation.trees is not None:
            self._walk = Walk(explanation.trees)
            self._shapley = Shapley(
                explanation.trees,
                columns=len(explanation.features),
                base=explanation.base,
            )
            self.expected: F64 = self._shapley.expected
        elif explanation.linear is not None:
            part = explanation.linear
            self.expected = explanation.base + part.coefficient @ part.mean
        else:
            raise RepositoryError("explanation", explanation.reason)

    def contributions(self, rows: F32) -> F64:
        """
        Return the contribution of each feature to each margin; float64 [N, outputs, F].

        NaN in every feature of a row that the model does not answer.

        Raises:
            ValueError: The rows have another number of features.
        """
        self._require_fit(rows)
        if self._shapley is not None:
            return self._shapley.contributions(rows)
        assert self._explanation.linear is not None
        return _linear_contributions(
            self._explanation.linear, rows, columns=len(self._explanation.features)
        )

    def of_class(self, rows: F32, index: int) -> F64:
        """
        Return each feature's contribution to the margin of a class; float64 [N, F].
        """
        if not 0 <= index < len(self._explanation.classes):
            raise ValueError(f"class {index}: there are {self._explanation.classes}")
        found = self.contributions(rows)
        if self._explanation.outputs == 1:
            one: F64 = found[:, 0] if index else -found[:, 0]
            return one
        of_many: F64 = found[:, index]
        return of_many

    def margin(self, rows: F32) -> F64:
        """Return the model's sums, without any contribution; float64 [N, outputs]."""
        self._require_fit(rows)
        if self._explanation.linear is not None:
            part = self._explanation.linear
            found: F64 = self._explanation.base + encoded(part, rows) @ (
                part.coefficient.T
            )
            return found
        return self._walk.margin(rows, base=self._explanation.base)

    def probabilities(self, rows: F32) -> F64:
        """Return the model's answers; float64 [N, K]."""
        margin = self.margin(rows)
        if self._explanation.link == "identity":
            return margin
        if self._explanation.link == "logistic":
            with np.errstate(over="ignore"):
                second = 1 / (1 + np.exp(-margin))
            return np.concatenate([1 - second, second], axis=1)
        power = np.exp(margin - margin.max(axis=1, keepdims=True))
        found: F64 = power / power.sum(axis=1, keepdims=True)
        return found

    def _require_fit(self, rows: F32) -> None:
        columns = len(self._explanation.features)
        if rows.ndim != 2 or rows.shape[1] != columns:
            raise ValueError(f"rows are {list(rows.shape)}; needed is [N, {columns}]")


def encoded(linear: Linear, rows: F32) -> F64:
    """Return the columns to which the coefficients belong; float64 [N, J]."""
    given = np.asarray(rows, dtype=np.float64)[:, linear.source]
    unit = np.where(linear.by_category, given == linear.category, given)
    return np.where(np.isnan(given), linear.filled, unit * linear.slope + linear.offset)


def _linear_contributions(linear: Linear, rows: F32, *, columns: int) -> F64:
    """Sum coefficient times distance from the mean for each feature."""
    away = encoded(linear, rows) - linear.mean
    found = np.zeros((len(rows), len(linear.coefficient), columns))
    weighted = away[:, None, :] * linear.coefficient
    np.add.at(found.transpose(2, 0, 1), linear.source, weighted.transpose(2, 0, 1))
    found[np.isnan(away).any(axis=1)] = np.nan
    return found

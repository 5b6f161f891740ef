"""
Get the probabilities of a trained classifier, also where some rows are refused.

The environments of other Pythons run this file as well. It needs NumPy and the
classifier's own requirements, and stays compatible with Python 3.8.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

MISSING_CODE = -1.0  # code of a missing category in tollgate.features
UNSEEN_CODE = -2.0  # code of a word outside the vocabulary
_HUGE = 1e25


class EstimatorRows:
    """
    Predict served rows with a classifier that has scikit-learn's interface.

    Args:
        estimator: Classifier with `predict_proba` and `classes_`.
        names: Names of its columns, if it was trained on a data frame.
        words: Column -> the words that its codes stand for: `known`, and `missing`, the
            value it was trained with where there was no word.
    """

    def __init__(
        self,
        estimator: Any,
        names: Sequence[str] | None,
        *,
        words: Mapping[int, Any] | None = None,
    ) -> None:
        self._estimator = estimator
        self._names = names
        self._words = dict(words or {})

    def predict(self, rows: Any) -> Any:
        """
        Return the probabilities of [N, F] as float64 [N, K].

        scikit-learn refuses a complete call because of one NaN, infinity or unknown
        category; here the refused rows get NaN and the others their probabilities.
        """
        found = np.full((len(rows), len(self._estimator.classes_)), np.nan)
        plain = np.isfinite(rows).all(axis=1)
        self._answer(rows, np.flatnonzero(plain), found, apart=True)
        others = np.flatnonzero(~plain)
        # After scaling, a huge number may be refused; group such rows separately from
        # rows that only lack a value.
        huge = np.abs(rows[others]) >= _HUGE
        odd = np.isnan(rows[others]) * 1 + huge * 2
        patterns, group = np.unique(odd, axis=0, return_inverse=True)
        for number in range(len(patterns)):
            chosen = others[group.ravel() == number]
            self._answer(rows, chosen, found, apart=False)
        return found

    def _answer(self, rows: Any, chosen: Any, found: Any, *, apart: bool) -> None:
        """Predict the chosen rows; with `apart`, find refused rows by bisection."""
        if not len(chosen):
            return
        try:
            # Its threads wait for one another, on a busy machine ten times as long as
            # one thread takes.
            with np.errstate(all="ignore"), _one_thread():
                found[chosen] = self._estimator.predict_proba(self.table(rows[chosen]))
        except ValueError:
            if apart and len(chosen) > 1:
                half = len(chosen) // 2
                self._answer(rows, chosen[:half], found, apart=True)
                self._answer(rows, chosen[half:], found, apart=True)

    def table(self, rows: Any) -> Any:
        """Return rows in the form of the training data: with names and words."""
        if self._names is None and not self._words:
            return rows
        columns = [
            decoded(
                rows[:, at],
                self._words[at].known,
                missing=self._words[at].missing,
            )
            if at in self._words
            else rows[:, at]
            for at in range(rows.shape[1])
        ]
        if self._names is None:
            found = np.empty(rows.shape, dtype=object)
            for at, column in enumerate(columns):
                found[:, at] = column
            return found
        given = dict(zip(map(str, self._names), columns))
        try:
            import pandas
        except ModuleNotFoundError:
            import polars

            return polars.DataFrame(given)
        return pandas.DataFrame(given)


def decoded(codes: Any, known: Sequence[str], *, missing: Any) -> Any:
    """Convert codes to words; object [N]."""
    unseen = "unseen"
    while unseen in known:
        unseen += "_"
    table = np.empty(len(known) + 2, dtype=object)
    table[: len(known)] = list(known)
    table[-2:] = [missing, unseen]
    at = np.full(len(codes), len(known) + 1)
    at[codes == MISSING_CODE] = len(known)
    inside = (codes >= 0) & (codes < len(known))
    whole = np.zeros(len(codes), dtype=bool)
    whole[inside] = codes[inside] == np.floor(codes[inside])
    at[whole] = codes[whole].astype(int)
    return table[at]


def _one_thread() -> Any:
    return _threads().limit(limits=1)


@functools.lru_cache(maxsize=1)
def _threads() -> Any:
    """
    Find the libraries with thread pools once: that takes longer than setting a limit.
    """
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()

"""
Get the answers of a trained estimator, also for words and refused rows.

A classifier answers probabilities, a regressor a number, and an outlier detector its
raw score, which rises with the anomaly.

A served category is a code: the position of its word in a vocabulary. A model that was
trained on the words themselves holds that vocabulary in its encoders.

The environments of other Pythons run this file as well. It needs NumPy and the
classifier's own requirements, and stays compatible with Python 3.8.
"""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

MISSING_CODE = -1.0  # code of a missing category in tollgate.features


class WordsError(ValueError):
    """The model uses words in a way that codes cannot represent; the text says how."""


class Words:
    """
    The words of one column.

    Attributes:
        known: The words in the order of their codes.
        missing: Training value where there was no word: None, NaN or an empty text; NaN
            if no step defines it.
    """

    def __init__(self) -> None:
        self.known: list[str] = []
        self.missing: Any = math.nan
        self._kinds: set[str] = set()

    def add(self, entries: Any) -> None:
        """Add the words that an encoder or an imputer knows."""
        for one in entries:
            if is_missing(one):
                self.missing = one
                self._kinds.add(repr(one))
            elif one not in self.known:
                self.known.append(str(one))
        if len(self._kinds) > 1:
            raise WordsError(
                f"a row without a word is {' and '.join(sorted(self._kinds))} in "
                "training, which is one code when it is served"
            )

    def code(self, word: Any) -> float:
        """Return the code of a word, or the code of a missing one."""
        return MISSING_CODE if is_missing(word) else float(self.known.index(word))


def words_of(estimator: Any) -> dict[int, Words]:
    """
    List the columns of words with their words, in column order.

    Raises:
        WordsError: A step uses words in a way that codes cannot represent.
    """
    found: dict[int, Words] = {}
    # Encoders before imputers: codes follow the encoder's own order.
    for step, columns in sorted(
        text_steps(estimator), key=lambda one: _imputes(one[0])
    ):
        for entries, column in zip(entries_of(step), columns):
            if not is_text(entries):
                continue
            if column is None:
                raise WordsError(
                    f"a {type(step).__name__} reads words that another step made"
                )
            found.setdefault(column, Words()).add(entries)
    return dict(sorted(found.items()))


def coded(estimator: Any, words: dict[int, Words]) -> Any:
    """
    Return a copy of a fitted model that reads codes instead of words.

    Raises:
        WordsError: An imputer reads words and numbers.
    """
    if not words:
        return estimator
    estimator = copy.deepcopy(estimator)
    for step, columns in text_steps(estimator):
        entries = entries_of(step)
        text = [is_text(one) for one in entries]
        if not any(text):
            continue
        if not _imputes(step):
            step.categories_ = [
                np.array([words[column].code(one) for one in known]) if coded else known
                for known, column, coded in zip(entries, columns, text)
            ]
            continue
        codes = {
            words[column].code(step.missing_values)
            for column in columns
            if column in words
        }
        if not all(text) or len(codes) > 1:
            raise WordsError("a SimpleImputer reads words and numbers: use two")
        step.missing_values = codes.pop()
        step.statistics_ = np.array(
            [words[column].code(one) for one, column in zip(step.statistics_, columns)]
        )
        step.fill_value = None if step.fill_value is None else step.statistics_[0]
        step._fit_dtype = step.statistics_.dtype
        step._fill_dtype = step.statistics_.dtype
    return estimator


def text_steps(estimator: Any) -> list[tuple[Any, list[Any]]]:
    """
    List encoders and imputers, each with the features that it reads.

    None stands for a column that another step computes.
    """
    return list(_steps(estimator, list(range(int(estimator.n_features_in_)))))


def entries_of(step: Any) -> list[Any]:
    """Return the categories of each column, or an imputer's fill value."""
    if not _imputes(step):
        return list(step.categories_)
    entries = [(step.missing_values, one) for one in step.statistics_]
    return [np.array((*one, None), dtype=object)[:2] for one in entries]


def _imputes(step: Any) -> bool:
    return hasattr(step, "statistics_")


def is_text(entries: Any) -> bool:
    """
    Return whether categories are words.

    Raises:
        WordsError: They are neither words nor numbers.
    """
    values = np.asarray(entries, dtype=object).tolist()
    others = {
        type(one).__name__
        for one in values
        if not is_missing(one) and not isinstance(one, (str, int, float, np.generic))
    }
    words = any(isinstance(one, str) for one in values)
    numbers = any(not isinstance(one, str) and not is_missing(one) for one in values)
    if others or (words and numbers):
        raise WordsError(
            f"categories {values[:3]} are neither words alone nor numbers alone"
        )
    return words


def is_missing(word: Any) -> bool:
    """Return whether an entry in a list of words stands for a missing one."""
    return word is None or (isinstance(word, float) and math.isnan(word)) or word == ""


def _steps(step: Any, columns: list[Any]) -> Iterator[tuple[Any, list[Any]]]:
    from sklearn.compose import ColumnTransformer
    from sklearn.pipeline import FeatureUnion, Pipeline

    if isinstance(step, Pipeline):
        for _, one in step.steps:
            yield from _steps(one, columns)
            columns = _passed_on(one, columns)
    elif isinstance(step, ColumnTransformer):
        read = step._transformer_to_input_indices
        for name, one, _ in step.transformers_:
            yield from _steps(
                one, [_at(columns, one_at) for one_at in read.get(name, [])]
            )
    elif isinstance(step, FeatureUnion):
        for _, one in step.transformer_list:
            yield from _steps(one, columns)
    elif type(step).__name__ == "SimpleImputer" or hasattr(step, "categories_"):
        yield step, columns
    else:
        for part in _inside(step):
            yield from _steps(part, columns)


def _inside(step: Any) -> list[Any]:
    """Return the models in a calibration, a vote or a search, which read its rows."""
    if hasattr(step, "calibrated_classifiers_"):
        return [one.estimator for one in step.calibrated_classifiers_]
    if hasattr(step, "best_estimator_"):
        return [step.best_estimator_]
    if type(step).__name__ == "FrozenEstimator":
        return [step.estimator]
    return list(step.estimators_) if hasattr(step, "named_estimators_") else []


def _passed_on(step: Any, columns: list[int | None]) -> list[int | None]:
    """Return which features the next step of a pipeline reads."""
    if step is None or isinstance(step, str):
        return columns
    statistics = getattr(step, "statistics_", None)
    if statistics is None or getattr(step, "indicator_", None) is not None:
        return [None] * _width(step, len(columns))
    if not any(is_missing(one) and one != "" for one in statistics):
        return columns
    return [None] * _width(step, len(columns))


def _width(step: Any, given: int) -> int:
    """Return the number of columns after a step; if unknown, the number it reads."""
    try:
        return len(step.get_feature_names_out())
    except (AttributeError, ValueError):
        return given


def _at(columns: list[Any], at: int) -> Any:
    return columns[at] if at < len(columns) else None


def parts_of(estimator: Any) -> tuple[list[Any], Any]:
    """Return the steps of a pipeline before the last one, and the last one."""
    before: list[Any] = []
    while True:
        if hasattr(estimator, "best_estimator_"):  # of a search
            estimator = estimator.best_estimator_
        elif hasattr(estimator, "steps"):
            before += [one for _, one in estimator.steps[:-1]]
            estimator = estimator.steps[-1][1]
        else:
            plain = [one for one in before if one not in (None, "passthrough")]
            return plain, estimator


def reconstructs(last: Any) -> bool:
    """
    Return whether a model is judged by how well it reproduces a row.

    A network is, if it answers as many columns as it reads, more than one.
    """
    if type(last).__name__ == "PCA":
        return True
    outputs = getattr(last, "n_outputs_", 1)
    network = type(last).__name__ == "MLPRegressor"
    return network and outputs > 1 and outputs == last.n_features_in_


def answering(estimator: Any) -> Any:
    """
    Return an estimator with `predict_proba` and `classes_`.

    Raises:
        ValueError: It has no answer of a supported form.
    """
    if hasattr(estimator, "predict_proba"):
        return estimator
    last = parts_of(estimator)[1]
    if reconstructs(last) or hasattr(last, "score_samples"):
        return RawScores(estimator)
    if hasattr(last, "predict") and not hasattr(last, "classes_"):
        return Numbers(estimator)
    raise ValueError(f"a {type(last).__name__} gives no probabilities")


class Numbers:
    """The answer of a regressor."""

    classes_ = ("value",)

    def __init__(self, estimator: Any) -> None:
        self._estimator = estimator

    def predict_proba(self, table: Any) -> Any:
        """Return the numbers, float64 [N, 1]."""
        found = np.asarray(self._estimator.predict(table), np.float64)
        return found.reshape(len(found), -1)


class RawScores:
    """
    The raw anomaly score of a detector, by its own methods.

    It is the opposite of `score_samples`, or the squared error of a reconstruction.
    """

    classes_ = ("anomaly",)

    def __init__(self, estimator: Any) -> None:
        self._estimator = estimator

    def predict_proba(self, table: Any) -> Any:
        """Return the raw scores, float64 [N, 1]."""
        before, last = parts_of(self._estimator)
        rows = table
        for step in before:
            rows = step.transform(rows)
        if not reconstructs(last):
            return -np.asarray(last.score_samples(rows), np.float64)[:, None]
        if type(last).__name__ == "PCA":
            again = last.inverse_transform(last.transform(rows))
        else:
            again = last.predict(rows)
        error = np.asarray(rows, np.float64) - np.asarray(again, np.float64)
        return (error**2).sum(axis=1)[:, None]


UNSEEN_CODE = -2.0  # code of a word outside the vocabulary
_HUGE = 1e25


class EstimatorRows:
    """
    Predict served rows with an estimator that has scikit-learn's interface.

    Args:
        estimator: Classifier, regressor, or an outlier detector.
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
        self._estimator = answering(estimator)
        self._names = names
        self._words = dict(words or {})

    @property
    def classes(self) -> Any:
        """Return the names of its answers."""
        return self._estimator.classes_

    def predict(self, rows: Any) -> Any:
        """
        Return the answers to [N, F] as float64 [N, K].

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
    """Find the libraries with thread pools once: setting a limit is quicker."""
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()

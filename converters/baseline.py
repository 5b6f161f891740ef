"""
Train a sensible first model for a product: a scikit-learn pipeline over its vector.

All that is done to a request's numbers is in the pipeline, and so in the graph that is
served: what is missing is filled, words become columns of their own, and a linear model
gets numbers of one scale. Nothing is left for a caller or a step to do.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import StratifiedKFold
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from threadpoolctl import threadpool_limits

from converters.model import F32
from converters.training import check_training_rows
from tollgate.errors import InputError
from tollgate.features.definition import FeatureSpec

Kind = Literal["boosting", "deep-boosting", "logistic"]
KINDS: tuple[Kind, ...] = ("boosting", "deep-boosting", "logistic")
FOLDS = 5
# Shallow and slow: on tables of a thousand to some ten thousand rows deeper or faster
# trees gain nothing, and each reason would cost more.
_ROUNDS, _RATE, _DEPTH, _LEAF_ROWS = 150, 0.06, 4, 20


class CrossValidated(msgspec.Struct, frozen=True):
    """
    How well models of the other folds rank the rows of each fold.

    Attributes:
        folds: AUC of each.
    """

    folds: tuple[float, ...]

    @property
    def mean(self) -> float:
        """The folds' mean."""
        return math.fsum(self.folds) / len(self.folds)

    @property
    def spread(self) -> float:
        """The folds' standard deviation."""
        return float(np.std(self.folds, ddof=1))


def baseline(
    spec: FeatureSpec,
    *,
    seed: int,
    kind: Kind = "boosting",
    monotone: Mapping[str, int] = {},
) -> Pipeline:
    """
    Return the pipeline for a product, not trained yet.

    Args:
        spec: The product's features: a category's codes are those of its vocabulary,
            frozen there; a code that is none (missing, or an unknown word) is 0 in
            each of its columns.
        seed: Random state.
        kind: `boosting` (shallow histogram gradient boosting), `deep-boosting` (with
            scikit-learn's own parameters) or `logistic` (regression).
        monotone: Feature -> 1 where a larger number never lowers the probability of
            label 1, -1 where it never raises it. Boosting alone honours it.

    Raises:
        InputError: A constraint cannot be honoured.
    """
    if kind not in KINDS:
        raise InputError("baseline", f"{kind!r} is none of {', '.join(KINDS)}")
    words = [at for at, one in enumerate(spec.features) if one.category is not None]
    numbers = [at for at in range(len(spec.features)) if at not in words]
    _check_monotone(monotone, spec=spec, kind=kind)
    parts: list[tuple[str, Any, Sequence[int]]] = []
    if numbers:
        # A column without any value is filled with 0 rather than dropped.
        fill = SimpleImputer(strategy="median", keep_empty_features=True)
        scaled = [("scale", StandardScaler())] if kind == "logistic" else []
        parts.append(("numbers", Pipeline([("fill", fill), *scaled]), numbers))
    if words:
        parts.append(("words", _encoder(spec, words), words))
    model = _estimator(spec, numbers=numbers, kind=kind, monotone=monotone, seed=seed)
    return Pipeline([("prepare", ColumnTransformer(parts)), ("model", model)])


def train_baseline(
    features: F32,
    label: npt.ArrayLike,
    *,
    spec: FeatureSpec,
    seed: int,
    kind: Kind = "boosting",
    monotone: Mapping[str, int] = {},
) -> Pipeline:
    """
    Train the pipeline of a product; the same rows and seed give the same model.

    Args:
        features: As served: codes of categories, NaN for missing numbers; float32
            [N, F] in the order of the spec.
        label: 0 or 1; [N].
        spec: As `baseline`, and what follows.

    Raises:
        InputError: Rows or labels cannot be trained on, or a constraint not honoured.
    """
    wanted = baseline(spec, seed=seed, kind=kind, monotone=monotone)
    _check_rows(features, label, spec=spec)
    return _fitted(wanted, features, np.asarray(label).astype(np.int8))


def cross_validated_auc(
    features: F32,
    label: npt.ArrayLike,
    *,
    model: Pipeline,
    seed: int,
    folds: int = FOLDS,
) -> CrossValidated:
    """
    Judge a pipeline on rows that it was not trained on: stratified, shuffled folds.

    Args:
        features: As `train_baseline`.
        label: As above.
        model: What to train on the other folds, as `baseline` returns it; a trained
            one is left as it is.
        seed: Of the folds.
        folds: How many, each with at least one row of either class.

    Raises:
        InputError: As `train_baseline`; or a class has fewer rows than there are folds.
    """
    check_training_rows(features, label)
    flags = np.asarray(label).astype(np.int8)
    fewest = int(np.bincount(flags).min())
    if fewest < folds:
        problem = f"a class has {fewest} rows, too few for {folds} folds"
        raise InputError("training rows", problem, where="label")
    split = StratifiedKFold(folds, shuffle=True, random_state=seed)
    found = []
    for train, test in split.split(features, flags):
        fitted = _fitted(clone(model), features[train], flags[train])
        with threadpool_limits(1):
            score = fitted.predict_proba(features[test])[:, 1]
        found.append(float(roc_auc_score(flags[test], score)))
    return CrossValidated(folds=tuple(found))


def _fitted(model: Pipeline, features: F32, label: npt.NDArray[np.int8]) -> Pipeline:
    # Threads that wait for one another cost more than they give on a busy machine, and
    # their number would show in the last bits of the sums.
    with threadpool_limits(1):
        return model.fit(features, label)


def _encoder(spec: FeatureSpec, words: Sequence[int]) -> OneHotEncoder:
    known = [
        np.arange(len(spec.field(str(spec.features[at].category)).vocabulary))
        for at in words
    ]
    return OneHotEncoder(
        categories=[one.astype(np.float32) for one in known],
        handle_unknown="ignore",
        sparse_output=False,
    )


def _estimator(
    spec: FeatureSpec,
    *,
    numbers: Sequence[int],
    kind: Kind,
    monotone: Mapping[str, int],
    seed: int,
) -> Any:
    if kind == "logistic":
        return LogisticRegression(max_iter=1000)
    # The prepared columns begin with the numbers; those of words have no order.
    signs = [monotone.get(spec.features[at].name, 0) for at in numbers]
    signs += [0] * sum(
        len(spec.field(one.category).vocabulary)
        for one in spec.features
        if one.category is not None
    )
    shallow: dict[str, Any] = {
        "max_iter": _ROUNDS,
        "learning_rate": _RATE,
        "max_depth": _DEPTH,
        "min_samples_leaf": _LEAF_ROWS,
    }
    return HistGradientBoostingClassifier(
        **(shallow if kind == "boosting" else {}),
        early_stopping=False,
        categorical_features=None,
        monotonic_cst=signs if monotone else None,
        random_state=seed,
    )


def _check_monotone(
    monotone: Mapping[str, int], *, spec: FeatureSpec, kind: Kind
) -> None:
    """Raise InputError for a constraint that cannot be honoured."""
    found = {one.name: one for one in spec.features}
    for name, sign in monotone.items():
        problem = ""
        if name not in found:
            problem = f"{name!r} is no feature of {spec.product}"
        elif found[name].category is not None:
            problem = f"{name!r} is a category: its words have no order"
        elif sign not in (-1, 1):
            problem = f"{name!r} is {sign!r}; must be 1 (rises) or -1 (falls)"
        elif kind == "logistic":
            problem = (
                f"{name!r}: scikit-learn's LogisticRegression takes no constraints; "
                "use boosting"
            )
        if problem:
            raise InputError("baseline", problem, where="monotone")


def _check_rows(features: F32, label: npt.ArrayLike, *, spec: FeatureSpec) -> None:
    check_training_rows(features, label)
    if features.shape[1] != len(spec.features):
        raise InputError(
            "training rows",
            f"have {features.shape[1]} columns; {spec.product} has "
            f"{len(spec.features)} features",
            where="features",
        )
    if np.isinf(features).any():
        column = spec.feature_names[int(np.flatnonzero(np.isinf(features).any(0))[0])]
        raise InputError("training rows", f"{column} is infinite", where="features")

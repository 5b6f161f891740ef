"""
Train a sensible first model for a product: a scikit-learn pipeline over its features.

The pipeline, and so the served graph, contains all preprocessing: it fills missing
values, turns each word into a column, and scales numbers for a linear model. Callers
and other steps need to do none of it.
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
from tollgate.features.spec.spec_definition import FeatureSpec

Kind = Literal["boosting", "deep-boosting", "logistic"]
KINDS: tuple[Kind, ...] = ("boosting", "deep-boosting", "logistic")
FOLDS = 5
# Shallow trees and a small learning rate: on tables of a thousand to some ten thousand
# rows deeper trees or faster learning gain nothing, and each reason would cost more.
_ROUNDS, _RATE, _DEPTH, _LEAF_ROWS = 150, 0.06, 4, 20


class CrossValidated(msgspec.Struct, frozen=True):
    """
    Result of cross-validation: how well a model ranks rows that it did not learn from.

    Attributes:
        folds: AUC of each fold, from a model trained on the other folds.
    """

    folds: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Return the mean AUC of the folds."""
        return math.fsum(self.folds) / len(self.folds)

    @property
    def spread(self) -> float:
        """Return the standard deviation of the folds' AUC."""
        return float(np.std(self.folds, ddof=1))


def baseline(
    spec: FeatureSpec,
    *,
    seed: int,
    kind: Kind = "boosting",
    monotone: Mapping[str, int] = {},
) -> Pipeline:
    """
    Return the untrained pipeline for a product.

    Args:
        spec: The product's features. A category's codes are those of its vocabulary,
            frozen in the spec; a code outside it (missing, or an unknown word) is 0 in
            each of its columns.
        kind: `boosting` (shallow histogram gradient boosting), `deep-boosting` (with
            scikit-learn's own parameters) or `logistic` (regression).
        monotone: Feature -> 1 if a larger number must never lower the probability of
            label 1, -1 if it must never raise it. Only boosting supports it.

    Raises:
        InputError: A constraint cannot be applied.
    """
    if kind not in KINDS:
        raise InputError("baseline", f"{kind!r} is none of {', '.join(KINDS)}")
    words = [at for at, one in enumerate(spec.features) if one.category is not None]
    numbers = [at for at in range(len(spec.features)) if at not in words]
    _check_monotone(monotone, spec=spec, kind=kind)
    parts: list[tuple[str, Any, Sequence[int]]] = []
    if numbers:
        # Fill a column without any value with 0 rather than dropping it.
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
        features: Features as served: codes of categories, NaN for missing numbers;
            float32 [N, F] in the order of the spec.
        label: 0 or 1; [N].
        spec: See `baseline`, also for the arguments after it.

    Raises:
        InputError: Rows or labels are not suitable for training, or a constraint cannot
            be applied.
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
    Evaluate a pipeline on held-out rows, in stratified, shuffled folds.

    Args:
        model: Pipeline to train on the other folds, as `baseline` returns it; a
            pipeline that is already trained stays unchanged.
        folds: Number of folds, each with at least one row of either class.

    Raises:
        InputError: See `train_baseline`; or a class has fewer rows than there are
            folds.
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
    # Threads that wait for one another cost more than they gain on a busy machine, and
    # the number of threads would change the last bits of the sums.
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
    # Numbers are the first of the prepared columns; the columns of words have no order.
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
    """Raise InputError if a constraint cannot be applied."""
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

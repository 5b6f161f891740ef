"""Compare kinds of models on the rows of a table, and a model with simple ones."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np
import numpy.typing as npt
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.model_selection import StratifiedKFold
from threadpoolctl import threadpool_limits

from converters.baseline import KINDS, Kind, train_baseline
from converters.model import F32, F64
from tollgate.evaluation import roc_auc
from tollgate.features.spec.spec_definition import FeatureSpec

I8 = npt.NDArray[np.int8]
I64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]

AHEAD = 0.01  # of AUC: warn if a simple model is so much better
_FOLDS = 3
_ONE_SPLIT = 50_000  # from this number of rows on, one split is enough
_LAST = 0.2  # share of the latest rows to evaluate on
_MOST_CODES = 255  # most codes of a category in scikit-learn's histogram boosting


class Compared(msgspec.Struct, frozen=True):
    """
    A model and its AUC.

    Attributes:
        auc: AUC on rows that it was not trained on.
    """

    name: str
    auc: float


def compare_kinds(
    features: F32, label: I8, *, spec: FeatureSpec, time_us: I64, seed: int
) -> tuple[Compared, ...]:
    """
    Evaluate each kind of model by splitting the rows available for training.

    Args:
        features: Features as served; float32 [N, F].
        label: 0 or 1; [N].
        time_us: Time of each row, µs; all the same where it is not known; [N].

    Returns:
        The kinds, the best one first; empty if a part has only one outcome.
    """
    scores: dict[Kind, list[float]] = {kind: [] for kind in KINDS}
    for learn, judge in _parts(label, time_us, seed=seed):
        if len(np.unique(label[learn])) < 2 or len(np.unique(label[judge])) < 2:
            return ()
        for kind, found in scores.items():
            model = train_baseline(
                features[learn], label[learn], spec=spec, seed=seed, kind=kind
            )
            with threadpool_limits(1):
                score = model.predict_proba(features[judge])[:, 1]
            found.append(roc_auc(label[judge], score))
    if not all(scores.values()):
        return ()
    ranked = [Compared(kind, float(np.mean(found))) for kind, found in scores.items()]
    return tuple(sorted(ranked, key=lambda one: -one.auc))


def _parts(label: I8, time_us: I64, *, seed: int) -> Iterator[tuple[I64, I64]]:
    """Split rows into training and evaluation rows: by time, or in folds."""
    order = np.argsort(time_us, kind="stable")
    if time_us[order[0]] != time_us[order[-1]]:
        cut = len(order) - round(_LAST * len(order))
        yield order[:cut], order[cut:]
        return
    if np.bincount(label, minlength=2).min() < _FOLDS:
        return
    folds = StratifiedKFold(_FOLDS, shuffle=True, random_state=seed)
    for number, (learn, judge) in enumerate(folds.split(label, label)):
        if number and len(label) > _ONE_SPLIT:
            return
        yield learn, judge


def simple_models(
    features: F32, label: I8, *, spec: FeatureSpec, test: Bool, train: Bool
) -> tuple[Compared, ...]:
    """
    Evaluate simple models: the best column, a regression, a default boosting.

    Args:
        features: Features as served; float32 [N, F].
        label: 0 or 1; [N].
        test: The rows to evaluate on; bool [N].
        train: The rows to train on; bool [N].
    """
    found = [_best_column(features, label, spec=spec, test=test, train=train)]
    rows, flags = features[train], label[train]
    logistic = train_baseline(rows, flags, spec=spec, seed=0, kind="logistic")
    coded = [
        one.category is not None
        and len(spec.field(one.category).vocabulary) <= _MOST_CODES
        for one in spec.features
    ]
    given = np.where(np.isin(features, (-1, -2)) & np.array(coded), np.nan, features)
    boosting = HistGradientBoostingClassifier(
        categorical_features=coded, random_state=0
    )
    with threadpool_limits(1):
        boosting.fit(given[train], flags)
        scores = {
            "a plain logistic regression": logistic.predict_proba(features[test]),
            "a plain boosting": boosting.predict_proba(given[test]),
        }
    found += [
        Compared(name, roc_auc(label[test], score[:, 1]))
        for name, score in scores.items()
    ]
    return tuple(found)


def _best_column(
    features: F32, label: I8, *, spec: FeatureSpec, test: Bool, train: Bool
) -> Compared:
    """Evaluate the single column that ranks the training rows best."""
    best = Compared("no column", 0.0)
    judged = 0.5
    for column, feature in enumerate(spec.features):
        score = _column_score(
            features[:, column], label, train=train, coded=feature.category is not None
        )
        auc = roc_auc(label[train], score[train])
        if max(auc, 1 - auc) > best.auc:
            best = Compared(f"column {feature.name} alone", max(auc, 1 - auc))
            after = roc_auc(label[test], score[test])
            judged = after if auc >= 0.5 else 1 - after
    return Compared(best.name, judged)


def _column_score(values: F32, label: I8, *, train: Bool, coded: bool) -> F64:
    """Convert a column into scores: numbers unchanged, codes by their outcomes."""
    if not coded:
        known = values[train & np.isfinite(values)]
        middle = float(np.median(known)) if known.size else 0.0
        return np.where(np.isfinite(values), values, middle).astype(np.float64)
    places = np.nan_to_num(values, nan=-1).astype(np.int64) + 2  # -2 is the least code
    size = int(places.max()) + 1
    rows = np.bincount(places[train], minlength=size)
    hits = np.bincount(places[train], weights=label[train], minlength=size)
    shares = (hits + 10 * label[train].mean()) / (rows + 10)  # shrink to the mean
    score: F64 = np.asarray(shares, np.float64)[places]
    return score


def comparison_text(found: tuple[Compared, ...]) -> str:
    """Format models and their AUC on one line."""
    return ", ".join(f"{one.name} {one.auc:.4f}" for one in found)

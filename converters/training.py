"""Train the demo's classifier with pinned parameters."""

from __future__ import annotations

from types import MappingProxyType

import numpy as np
import numpy.typing as npt
from xgboost import XGBClassifier

from tollgate.errors import InputError

# The handbook's baseline. Without the first two, xgboost >= 2 picks histogram splits
# and estimates base_score, and ranks these data clearly worse: average precision on
# the handbook's test week 0.564 instead of 0.639.
PARAMETERS = MappingProxyType(
    {
        "tree_method": "exact",
        "base_score": 0.5,
        "n_estimators": 100,
        "max_depth": 6,
        "learning_rate": 0.3,
        # On a busy machine xgboost's threads wait for one another: training on 67,000
        # rows took 2 s with two threads when idle and 20 s when not; one thread takes 4
        # s either way.
        "n_jobs": 1,
    }
)


def train_xgboost(
    features: npt.NDArray[np.float32], label: npt.ArrayLike, *, seed: int
) -> XGBClassifier:
    """
    Train the pinned classifier.

    Args:
        features: Features as served: no scaling, no missing columns; float32 [N, F].
        label: 1 for fraud, 0 otherwise; [N].
        seed: Random state; the same data and seed give the same model.

    Raises:
        InputError: Type or shape is wrong, or the labels have only one class.
    """
    check_training_rows(features, label)
    model = XGBClassifier(**PARAMETERS, random_state=seed)
    model.fit(features, np.asarray(label).astype(np.int8))
    return model


def check_training_rows(
    features: npt.NDArray[np.float32], label: npt.ArrayLike
) -> None:
    """Raise InputError unless features are float32 [N, F] and labels 0 and 1 [N]."""
    where = "training rows"
    if features.ndim != 2 or features.dtype != np.float32:
        raise InputError(
            where,
            f"are {features.dtype} {list(features.shape)}; must be float32 [N, F], "
            "the numbers the server will see",
            where="features",
        )
    flags = np.asarray(label)
    if flags.shape != features.shape[:1]:
        raise InputError(
            where, f"shape {list(flags.shape)} for {len(features)} rows", where="label"
        )
    found = np.unique(flags).tolist()
    if found != [0, 1]:
        raise InputError(
            where, f"must hold both classes, 0 and 1; holds {found[:5]}", where="label"
        )

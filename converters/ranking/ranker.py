"""Train rankers over the features of candidates."""

from __future__ import annotations

from typing import Any, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from tollgate.ranking.candidates import FEATURE_NAMES

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
I32 = npt.NDArray[np.int32]


class RankingRows(msgspec.Struct, frozen=True, eq=False):
    """
    Candidates of Q requests that a ranker learns from.

    Attributes:
        features: float32 [Q, C, F].
        present: False after the last candidate; bool [Q, C].
        labels: 1 for an item that the user met later; float32 [Q, C].
    """

    features: F32
    present: npt.NDArray[np.bool_]
    labels: F32

    def with_both(self) -> RankingRows:
        """Return the requests that have relevant and irrelevant candidates."""
        wanted = self.labels.sum(axis=1)
        rows = (wanted > 0) & (wanted < self.present.sum(axis=1))
        return RankingRows(
            features=self.features[rows],
            present=self.present[rows],
            labels=self.labels[rows],
        )


class Ranker(Protocol):
    """Scores candidates; a higher score is better."""

    def relevance(self, features: F32) -> F64:
        """Score candidates of features float32 [Q, C, F]; float64 [Q, C]."""


class LinearRanker(msgspec.Struct, frozen=True, eq=False):
    """
    A weighted sum of the features: relevance = features @ weights.

    Attributes:
        weights: float32 [F].
    """

    weights: F32

    def relevance(self, features: F32) -> F64:
        """Score candidates of features float32 [Q, C, F]; float64 [Q, C]."""
        return features.astype(np.float64) @ self.weights.astype(np.float64)


class TreeRanker(msgspec.Struct, frozen=True, eq=False):
    """
    Gradient-boosted trees.

    Attributes:
        booster: A `lightgbm.Booster`; its raw sums are the relevance.
    """

    booster: Any

    def relevance(self, features: F32) -> F64:
        """Score candidates of features float32 [Q, C, F]; float64 [Q, C]."""
        flat = features.reshape(-1, features.shape[-1])
        found = self.booster.predict(flat, raw_score=True, num_threads=1)
        return np.asarray(found, np.float64).reshape(features.shape[:2])


class TreeSettings(msgspec.Struct, frozen=True):
    """Settings of the trees, chosen on the validation part."""

    objective: str
    leaves: int
    rounds: int
    rate: float = 0.05


def retrieval_ranker() -> LinearRanker:
    """Return the ranker that leaves candidates in the order of their retrieval."""
    weights = np.zeros(len(FEATURE_NAMES), np.float32)
    weights[FEATURE_NAMES.index("retrieval_score")] = 1.0
    return LinearRanker(weights=weights)


def train_linear(rows: RankingRows, *, penalty: float) -> LinearRanker:
    """
    Fit weights so that the softmax over a request's candidates meets its labels.

    Args:
        rows: Candidates of requests.
        penalty: Weight of the squared length of the weights of scaled features.
    """
    from scipy.optimize import minimize

    rows = rows.with_both()
    flat = rows.features[rows.present].astype(np.float64)
    mean, scale = flat.mean(axis=0), flat.std(axis=0)
    scale[scale == 0] = 1.0
    values = ((rows.features - mean) / scale).astype(np.float32)
    values[~rows.present] = 0.0
    labels = rows.labels / rows.labels.sum(axis=1, keepdims=True)
    gone = np.where(rows.present, 0.0, -np.inf)
    count = len(values)
    wanted = np.einsum("qc,qcf->f", labels, values).astype(np.float64)

    def loss(weights: F64) -> tuple[float, F64]:
        scores = values @ weights.astype(np.float32) + gone
        top = scores.max(axis=1, keepdims=True)
        shares = np.exp(scores - top)
        total = shares.sum(axis=1, keepdims=True)
        likely = (np.log(total) + top).sum() - wanted @ weights
        expected = np.einsum("qc,qcf->f", (shares / total).astype(np.float32), values)
        slope = (expected - wanted) / count + 2 * penalty * weights
        return float(likely / count + penalty * weights @ weights), slope

    start = np.zeros(values.shape[-1])
    found = minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": 200})
    return LinearRanker(weights=(found.x / scale).astype(np.float32))


def train_trees(rows: RankingRows, settings: TreeSettings, *, seed: int) -> TreeRanker:
    """Train LightGBM on requests; the same rows and seed give the same trees."""
    import lightgbm

    rows = rows.with_both()
    count = rows.present.sum(axis=1)
    dataset = lightgbm.Dataset(
        rows.features[rows.present],
        label=rows.labels[rows.present],
        group=count,
        params={"max_bin": 127, "verbosity": -1},
    )
    parameters = {
        "objective": settings.objective,
        "lambdarank_truncation_level": 20,
        "num_leaves": settings.leaves,
        "learning_rate": settings.rate,
        "min_data_in_leaf": 100,
        "feature_fraction": 0.7,
        "bagging_fraction": 0.8,
        "bagging_freq": 1,
        "lambda_l2": 10.0,
        "max_bin": 127,
        "seed": seed,
        "deterministic": True,
        "force_col_wise": True,
        "num_threads": 1,  # the same trees whatever the machine
        "verbosity": -1,
    }
    if settings.objective == "binary":
        del parameters["lambdarank_truncation_level"]
    booster = lightgbm.train(parameters, dataset, num_boost_round=settings.rounds)
    return TreeRanker(booster=booster)

"""
Fit the rivals of a ranking: popularity, neighbours of items, and ALS of `implicit`.

Each rival scores every item for a user. Its settings come from a grid, by the NDCG@10
on the validation part.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from converters.ranking.interactions import Interactions
from converters.ranking.metrics import DEEP, mean_ndcg
from converters.ranking.splits import Queries, Split

NEIGHBOUR_COUNTS = (20, 50, 100, 200, 500, 1_000)
SHRINKAGES = (0.0, 10.0, 50.0, 200.0)
WEIGHTINGS = ("cosine", "BM25")
ALS_FACTORS = (8, 16, 32, 64, 128)
ALS_REGULARIZATIONS = (0.1, 1.0, 10.0)
ALS_ALPHAS = (0.2, 1.0, 5.0, 20.0)
ALS_ITERATIONS = (10, 20)
# Of BM25, as usual in search.
_SATURATION, _LENGTH_SHARE = 1.2, 0.75
_ROWS_AT_ONCE = 1_000

F32 = npt.NDArray[np.float32]
I32 = npt.NDArray[np.int32]

Settings = TypeVar("Settings")
Scorer = Callable[[I32], F32]  # users [n] to the scores of all items [n, I]


class KnnSettings(msgspec.Struct, frozen=True):
    """
    Settings of the neighbours of items.

    Attributes:
        weighting: "cosine": 1 for each item that a user met; "BM25": events of the user
            with it, weighted by BM25.
        shrinkage: A cosine counts by n / (n + shrinkage), with n users of both items.
        neighbours: Items of which each item has a similarity; the others have 0.
    """

    weighting: str
    shrinkage: float
    neighbours: int

    def __str__(self) -> str:
        """Describe the settings."""
        return (
            f"{self.weighting}, shrinkage {self.shrinkage:g}, "
            f"{self.neighbours} neighbours"
        )


class AlsSettings(msgspec.Struct, frozen=True):
    """Settings of `implicit`'s AlternatingLeastSquares, with its names."""

    factors: int
    regularization: float
    alpha: float
    iterations: int

    def __str__(self) -> str:
        """Describe the settings."""
        return (
            f"{self.factors} factors, regularization {self.regularization:g}, "
            f"alpha {self.alpha:g}, {self.iterations} iterations"
        )


def popularity_scorer(past: Interactions) -> Scorer:
    """Score each item by its number of events."""
    events = np.bincount(past.items, minlength=len(past.item_ids)).astype(np.float32)
    return lambda users: np.tile(events, (len(users), 1))


def knn_scorer(past: Interactions, settings: KnnSettings, *, repeats: bool) -> Scorer:
    """
    Score each item by its similarity to those that a user met.

    Args:
        repeats: An item is similar to itself.
    """
    weights = _weights(past, settings.weighting)
    similar = _similarity(past, weights, settings.shrinkage, repeats=repeats)
    nearest = _nearest(similar, settings.neighbours)
    return lambda users: weights[users] @ nearest


def choose_knn(split: Split, queries: Queries, *, repeats: bool) -> KnnSettings:
    """Search the grid."""

    def tried() -> Iterator[tuple[KnnSettings, Scorer]]:
        for weighting in WEIGHTINGS:
            weights = _weights(split.before, weighting)
            for shrinkage in SHRINKAGES:
                similar = _similarity(split.before, weights, shrinkage, repeats=repeats)
                for count in NEIGHBOUR_COUNTS:
                    settings = KnnSettings(weighting, shrinkage, count)
                    nearest = _nearest(similar, count)
                    yield settings, _product(weights, nearest)

    return _best(tried(), queries, repeats=repeats)


def _product(weights: Any, similar: F32) -> Scorer:
    return lambda users: weights[users] @ similar


def als_scorer(past: Interactions, settings: AlsSettings, *, seed: int) -> Scorer:
    """
    Score each item by the factors of ALS; a user's events with an item are its weight.

    Raises:
        ImportError: `implicit` is not installed.
    """
    from implicit.als import AlternatingLeastSquares
    from threadpoolctl import threadpool_limits

    # It has threads of its own, and those of the BLAS library would get in their way.
    with threadpool_limits(1, "blas"):
        model = AlternatingLeastSquares(
            factors=settings.factors,
            regularization=settings.regularization,
            alpha=settings.alpha,
            iterations=settings.iterations,
            random_state=seed,
            use_gpu=False,
        )
        model.fit(_events(past), show_progress=False)
    return lambda users: model.user_factors[users] @ model.item_factors.T


def choose_als(
    split: Split, queries: Queries, *, repeats: bool, seed: int
) -> AlsSettings:
    """
    Search the grid.

    Raises:
        ImportError: `implicit` is not installed.
    """
    grid = itertools.product(
        ALS_FACTORS, ALS_REGULARIZATIONS, ALS_ALPHAS, ALS_ITERATIONS
    )
    tried = (
        (settings, als_scorer(split.before, settings, seed=seed))
        for settings in itertools.starmap(AlsSettings, grid)
    )
    return _best(tried, queries, repeats=repeats)


def best_items(scorer: Scorer, queries: Queries, *, repeats: bool) -> I32:
    """
    Return each user's 200 best items, the lower index first among equals.

    Args:
        repeats: Items that the user has met before may be shown once more.

    Returns:
        Items, -1 after the last; int32 [Q, at most 200].
    """
    blocks = []
    for start in range(0, len(queries.users), _ROWS_AT_ONCE):
        block = slice(start, start + _ROWS_AT_ONCE)
        scores = np.array(scorer(queries.users[block]), np.float32)
        if not repeats:
            for row, seen in enumerate(queries.seen[block]):
                scores[row, seen] = -np.inf
        best = np.argsort(-scores, axis=1, kind="stable")[:, :DEEP].astype(np.int32)
        allowed = np.take_along_axis(scores, best, axis=1) > -np.inf
        blocks.append(np.where(allowed, best, np.int32(-1)))
    return np.concatenate(blocks)


def _best(
    tried: Iterator[tuple[Settings, Scorer]], queries: Queries, *, repeats: bool
) -> Settings:
    """Return the settings with the best NDCG@10; the first of equals wins."""
    found: list[tuple[float, Settings]] = []
    for settings, scorer in tried:
        lists = best_items(scorer, queries, repeats=repeats)
        found.append((mean_ndcg(lists, queries.relevant), settings))
    return max(found, key=lambda one: one[0])[1]


def _events(past: Interactions) -> Any:
    """Count the events of each user with each item; scipy CSR float32 [U, I]."""
    from scipy import sparse

    shape = (len(past.user_ids), len(past.item_ids))
    ones = np.ones(len(past), np.float32)
    return sparse.csr_matrix((ones, (past.users, past.items)), shape)


def _weights(past: Interactions, weighting: str) -> Any:
    """Weight each user's items; scipy CSR float32 [U, I]."""
    events = _events(past)
    if weighting == "cosine":
        events.data[:] = 1.0
        return events
    users = np.bincount(events.indices, minlength=events.shape[1])
    rarity = np.log((1 + events.shape[0]) / (1 + users))
    length = np.asarray(events.sum(axis=1)).ravel()
    relative = length / max(float(length.mean()), 1e-12)
    long = 1 - _LENGTH_SHARE + _LENGTH_SHARE * relative
    row = np.repeat(np.arange(events.shape[0]), np.diff(events.indptr))
    saturated = events.data * (_SATURATION + 1)
    saturated /= events.data + _SATURATION * long[row]
    events.data = (saturated * rarity[events.indices]).astype(np.float32)
    return events


def _similarity(
    past: Interactions, weights: Any, shrinkage: float, *, repeats: bool
) -> F32:
    """Return the cosines of the items, less with few users of both; float32 [I, I]."""
    product: F32 = (weights.T @ weights).toarray()
    length = np.sqrt(np.diag(product))
    scale = np.maximum(np.outer(length, length), np.float32(1e-12))
    similar: F32 = product / scale
    if shrinkage:
        met = _events(past)
        met.data[:] = 1.0
        both = (met.T @ met).toarray()
        similar *= both / (both + np.float32(shrinkage))
    if not repeats:
        np.fill_diagonal(similar, 0.0)
    return similar


def _nearest(similar: F32, count: int) -> F32:
    """Set all but the greatest similarities of each item (row) to 0."""
    if count >= len(similar):
        return similar
    border = np.partition(similar, len(similar) - count, axis=1)[:, -count, None]
    found: F32 = np.where(similar >= border, similar, np.float32(0.0))
    return found

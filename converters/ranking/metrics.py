"""Judge lists of items: recall, NDCG, coverage, diversity, novelty."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
I32 = npt.NDArray[np.int32]

DRAWS = 2_000  # of the bootstrap
DEEP, SHOWN = 200, 10  # depth of the recall, and of the other measures
MEASURES = ("recall", "ndcg", "coverage", "diversity", "novelty")
_MEANS = ("recall", "ndcg", "diversity", "novelty")  # means over users
_BLOCK = 100  # draws at a time; bounds the memory


class ListQuality(msgspec.Struct, frozen=True, eq=False):
    """
    Quality of the lists of Q users.

    Attributes:
        recall: Share of the relevant items among the first 200, of at most 200;
            float64 [Q].
        ndcg: NDCG of the first 10, with gains 0 or 1; float64 [Q].
        diversity: 1 - mean cosine of two items of the first 10; float64 [Q].
        novelty: Mean over the first 10 of -log2 of the share of users who met the item
            before; float64 [Q].
        shown: The first 10, -1 after the last; int32 [Q, 10].
        items: Number of items that could be shown.
    """

    recall: F64
    ndcg: F64
    diversity: F64
    novelty: F64
    shown: I32
    items: int

    @property
    def coverage(self) -> float:
        """Return the share of the items that are in some first 10."""
        return len(np.unique(self.shown[self.shown >= 0])) / self.items


def judge_lists(
    lists: I32, relevant: Sequence[I32], *, vectors: F32, user_share: F64
) -> ListQuality:
    """
    Judge lists of items against the items that users met later.

    Args:
        lists: Items, the best first, -1 after the last; int32 [Q, at least 10].
        relevant: Distinct relevant items, by user.
        vectors: Unit vectors of the items for the diversity; float32 [I, D].
        user_share: Share of the users who met each item before, above 0; float64 [I].
    """
    shown = lists[:, :SHOWN]
    present = shown >= 0
    surprise = np.where(present, -np.log2(user_share[shown]), 0.0).sum(axis=1)
    return ListQuality(
        recall=recall_of(lists, relevant),
        ndcg=ndcg_of(lists, relevant),
        diversity=np.array([list_diversity(one, vectors) for one in shown]),
        novelty=surprise / np.maximum(present.sum(axis=1), 1),
        shown=shown,
        items=len(vectors),
    )


def recall_of(lists: I32, relevant: Sequence[I32], *, deep: int = DEEP) -> F64:
    """Return the share of the relevant items, of at most `deep`, in each list; [Q]."""
    found = np.zeros(len(lists))
    for row, (items, wanted) in enumerate(zip(lists, relevant, strict=True)):
        hits = np.count_nonzero(np.isin(items[:deep], wanted))
        found[row] = hits / min(len(wanted), deep)
    return found


def ndcg_of(lists: I32, relevant: Sequence[I32], *, shown: int = SHOWN) -> F64:
    """Return the NDCG of each list's first items, gains 0 or 1; float64 [Q]."""
    found = np.zeros(len(lists))
    discount = 1.0 / np.log2(np.arange(2, shown + 2))
    for row, (items, wanted) in enumerate(zip(lists[:, :shown], relevant, strict=True)):
        hits = np.isin(items, wanted)
        best = discount[: min(len(wanted), shown)].sum()
        found[row] = discount[: len(hits)][hits].sum() / best
    return found


def mean_recall(lists: I32, relevant: Sequence[I32]) -> float:
    """Return the mean recall@200."""
    return float(recall_of(lists, relevant).mean())


def mean_ndcg(lists: I32, relevant: Sequence[I32]) -> float:
    """Return the mean NDCG@10."""
    return float(ndcg_of(lists, relevant).mean())


def list_diversity(items: I32, vectors: F32) -> float:
    """Return 1 - the mean cosine over all pairs of a list's items; 0 for one item."""
    items = items[items >= 0]
    count = len(items)
    if count < 2:
        return 0.0
    chosen = vectors[items].astype(np.float64)
    total = float(np.square(chosen.sum(axis=0)).sum() - np.square(chosen).sum())
    return 1.0 - total / (count * (count - 1))


class Estimate(msgspec.Struct, frozen=True):
    """A measured value, and its 95 % interval."""

    value: float
    low: float
    high: float


class Resampled(msgspec.Struct, frozen=True, eq=False):
    """
    The measures of some lists, and those of samples of their users.

    Attributes:
        values: By measure.
        draws: Of each sample, drawn with replacement; float64 [DRAWS] by measure. Each
            has the mean of the measured value: a sample repeats users, so its coverage
            alone would be too small.
    """

    values: dict[str, float]
    draws: dict[str, F64]

    def estimates(self) -> dict[str, Estimate]:
        """Return the measures with their intervals."""
        return {
            name: _estimate(value, self.draws[name])
            for name, value in self.values.items()
        }

    def differences(self, base: Resampled) -> dict[str, Estimate]:
        """Return these measures minus those of other lists for the same users."""
        return {
            name: _estimate(
                value - base.values[name], self.draws[name] - base.draws[name]
            )
            for name, value in self.values.items()
        }


def _estimate(value: float, draws: F64) -> Estimate:
    low, high = np.quantile(draws, (0.025, 0.975))
    return Estimate(value=value, low=float(low), high=float(high))


def resample(quality: ListQuality, *, seed: int) -> Resampled:
    """
    Draw users with replacement; the same seed draws the same users for other lists.

    Args:
        quality: Lists of Q users.
        seed: Of the draws.
    """
    from scipy import sparse

    users = len(quality.recall)
    by_user = np.stack([getattr(quality, name) for name in _MEANS])
    row, place = np.nonzero(quality.shown >= 0)
    pairs = (np.ones(len(row)), (row, quality.shown[row, place]))
    shows = sparse.csr_matrix(pairs, (users, quality.items))
    rng = np.random.default_rng(seed)
    even = np.full(users, 1 / users)
    means = np.empty((len(_MEANS), DRAWS))
    coverage = np.empty(DRAWS)
    for start in range(0, DRAWS, _BLOCK):
        block = slice(start, start + _BLOCK)
        times = rng.multinomial(users, even, len(coverage[block]))
        means[:, block] = by_user @ times.T / users
        shown = shows.T @ (times.T > 0).astype(np.float64)
        coverage[block] = np.count_nonzero(shown, axis=0) / quality.items
    values = {name: float(getattr(quality, name).mean()) for name in _MEANS}
    values["coverage"] = quality.coverage
    draws = dict(zip(_MEANS, means, strict=True)) | {"coverage": coverage}
    return Resampled(
        values={name: values[name] for name in MEASURES},
        draws={
            name: draws[name] - draws[name].mean() + values[name] for name in MEASURES
        },
    )

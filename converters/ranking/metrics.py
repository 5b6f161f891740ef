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


class ListQuality(msgspec.Struct, frozen=True, eq=False):
    """
    Quality of the lists of Q users; the first two are one number for each user.

    Attributes:
        recall: Share of the relevant items among the first 200, of at most 200.
        ndcg: NDCG of the first 10.
        coverage: Share of the catalogue's items that are in some first 10.
        diversity: Mean over users of 1 - mean cosine of two items of the first 10.
        novelty: Mean over shown items of -log2 of the share of users who met the item.
    """

    recall: F64
    ndcg: F64
    coverage: float
    diversity: float
    novelty: float


def judge_lists(
    lists: I32,
    relevant: Sequence[I32],
    *,
    vectors: F32,
    user_share: F64,
    deep: int = DEEP,
    shown: int = SHOWN,
) -> ListQuality:
    """
    Judge lists of items against the items that users met later.

    Args:
        lists: Items, the best first, -1 after the last; int32 [Q, at least `deep`].
        relevant: Distinct relevant items, by user.
        vectors: Unit vectors of the items for the diversity; float32 [I, D].
        user_share: Share of the users of the training events who met each item; [I].
        deep: Depth of the recall.
        shown: Depth of the other measures.
    """
    recall = recall_of(lists, relevant, deep=deep)
    gains = ndcg_of(lists, relevant, shown=shown)
    first = lists[:, :shown]
    present = first[first >= 0]
    return ListQuality(
        recall=recall,
        ndcg=gains,
        coverage=len(np.unique(present)) / len(vectors),
        diversity=float(np.mean([list_diversity(one, vectors) for one in first])),
        novelty=float(np.mean(-np.log2(np.maximum(user_share[present], 1e-6)))),
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


class Difference(msgspec.Struct, frozen=True):
    """Mean difference of a measure between two methods, and its 95 % interval."""

    mean: float
    low: float
    high: float


def bootstrap_difference(ours: F64, theirs: F64, *, seed: int) -> Difference:
    """Estimate the interval of a mean difference by drawing users with replacement."""
    difference = ours - theirs
    rng = np.random.default_rng(seed)
    means = np.empty(DRAWS)
    for draw in range(DRAWS):
        means[draw] = difference[
            rng.integers(0, len(difference), len(difference))
        ].mean()
    low, high = np.quantile(means, (0.025, 0.975))
    return Difference(mean=float(difference.mean()), low=float(low), high=float(high))

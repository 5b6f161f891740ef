"""
Compute exact path-dependent Shapley values of trees.

The question, tree by tree (Lundberg et al., "Consistent Individualized Feature
Attribution for Tree Ensembles", 2018): how much does knowing feature j add to the
expected output of a tree, averaged over all orders in which features become known, when
at a split by an unknown feature a row goes both ways in the shares of the training
rows. For a leaf of value v, whose path tests the features k, each in the share r_k of
cases and, for this row, with success o_k (0 or 1), that average is

    v (o_j - r_j) · ∫₀¹ ∏_{k≠j} (t o_k + (1 - t) r_k) dt

The integrand is a polynomial in t of one degree less than the path has features, so
Gauss-Legendre quadrature with half as many points is exact. The products are carried
down all trees at once, level by level, and the sums of the leaves back up, so the cost
is that of one visit per node (Yu et al., "Linear TreeShap", 2022).
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from tollgate.explanation.document import F32, F64, Trees
from tollgate.explanation.walk import I64, Walk, levels


class Shapley:
    """
    Compute contributions; everything independent of the row is computed once.

    Args:
        trees: Checked.
        columns: F.
        base: Start values of the margins; float64 [outputs].
    """

    def __init__(self, trees: Trees, *, columns: int, base: F64) -> None:
        self._walk = Walk(trees)
        self._columns, self._outputs = columns, len(base)
        by_level = levels(trees)
        order = np.concatenate(by_level)
        ends = np.cumsum([0, *map(len, by_level)]).tolist()
        self._roots = ends[1]
        self._levels = list(pairwise(ends[1:]))
        place = np.empty(len(order), dtype=np.int64)
        place[order] = np.arange(len(order))
        split = trees.left[order] >= 0
        self._splits = [
            low + np.flatnonzero(split[low:high])
            for low, high in [(0, self._roots), *self._levels]
        ]
        # From here on a node is its position in `order`; the roots come first.
        parent = np.zeros(len(order), dtype=np.int64)
        children = place[trees.left[order[split]]]
        parent[children] = parent[children + 1] = np.flatnonzero(split)
        self._parent_node = order[parent]
        self._left_child = np.zeros(len(order), dtype=bool)
        self._left_child[children] = True
        self._feature = trees.feature[self._parent_node].astype(np.int64)
        self._before = self._same_feature_above(parent)
        share = self._shares(trees.cover[order], parent)
        self._value = trees.value[order]
        self.expected = self._expected(
            trees, order, parent=parent, share=share, base=base
        )
        self._tables(parent, share)
        if trees.output[0] >= 0:
            tree = np.searchsorted(trees.start, order, side="right") - 1
            self._key = trees.output[tree] * columns + self._feature
        else:
            self._key = self._feature
        self._key = self._key[self._roots :]

    def _same_feature_above(self, parent: I64) -> I64:
        """Find the nearest node above whose edge tests the same feature, or a root."""
        above = parent.copy()
        for _ in range(len(self._splits)):
            wrong = above >= self._roots
            wrong &= self._feature[above] != self._feature
            if not wrong.any():
                break
            above[wrong] = parent[above[wrong]]
        return above

    def _shares(self, cover: F64, parent: I64) -> F64:
        """Return the share of a split's cover that each child has; 1 for roots."""
        share = np.ones(len(cover))
        both = cover[self._roots :].reshape(-1, 2)
        whole = both.sum(axis=1, keepdims=True)
        # A split that no training row reached: equal shares for both sides.
        half = np.full_like(both, 0.5)
        share[self._roots :] = np.divide(both, whole, out=half, where=whole > 0).ravel()
        return share

    def _expected(
        self, trees: Trees, order: I64, *, parent: I64, share: F64, base: F64
    ) -> F64:
        """Return the margins before anything is known of a row; float64 [outputs]."""
        reach = share.copy()
        for low, high in self._levels:
            reach[low:high] *= reach[parent[low:high]]
        leaves = reach[:, None] * self._value
        if trees.output[0] < 0:
            several: F64 = base + leaves.sum(axis=0)
            return several
        tree = np.searchsorted(trees.start, order, side="right") - 1
        of = np.bincount(trees.output[tree], weights=leaves[:, 0], minlength=len(base))
        found: F64 = base + of
        return found

    def _tables(self, parent: I64, share: F64) -> None:
        """
        Compute the factor by which an edge multiplies, and its summand, per state.

        State 0: an edge above with the same feature failed; 1: this edge fails first;
        2: no edge of the feature failed so far.
        """
        ratio, known = share.copy(), np.zeros(len(share), dtype=np.int64)
        roots = self._roots
        for low, high in self._levels:
            above = self._before[low:high]
            ratio[low:high] *= ratio[above]
            known[low:high] = known[parent[low:high]] + (above < roots)
        points = max(1, (int(known.max()) + 1) // 2)
        legendre: Any = np.polynomial.legendre
        at, weight = legendre.leggauss(points)
        t, weight = ((at + 1) / 2)[:, None], (weight / 2)[:, None]
        here, above_it = ratio[roots:], ratio[self._before[roots:]]
        holds, held = t + (1 - t) * here, t + (1 - t) * above_it
        gain, gained = (1 - here) / holds, (1 - above_it) / held
        edge = np.broadcast_to(share[roots:], holds.shape)
        # [points, 3 x edges]: one row of the table is state times edges plus edge.
        self._product = np.concatenate(
            [edge, (1 - t) * here / held, holds / held], axis=1
        )
        self._gain = weight * np.concatenate(
            [np.zeros_like(holds), -1 / (1 - t) - gained, gain - gained], axis=1
        )

    def contributions(self, rows: F32) -> F64:
        """
        Return the contribution of each feature to each margin; float64 [N, outputs, F].
        """
        found = np.zeros((len(rows), self._outputs, self._columns))
        if len(self._key):
            prepared = self._walk.prepared(rows)
            for number in range(len(rows)):
                self._explain(prepared[number : number + 1], found[number])
        return found

    def _explain(self, row: F32, found: F64) -> None:
        """Fill in the contributions of one prepared row; float64 [outputs, F]."""
        roots, edges = self._roots, len(self._key)
        left = self._walk.goes_left(row)[:, 0]
        holds = left[self._parent_node] == self._left_child
        holds[:roots] = True
        for low, high in self._levels:
            holds[low:high] &= holds[self._before[low:high]]
        state = holds[self._before[roots:]].astype(np.int64) + holds[roots:]
        at = state * edges + np.arange(edges)
        product = self._down(self._product.take(at, axis=1))
        gain = self._gain.take(at, axis=1)
        width = self._value.shape[1]
        for column in range(width):
            total = self._up(product, column)[:, roots:]
            part = np.bincount(
                self._key,
                weights=np.einsum("qe,qe->e", gain, total),
                minlength=found.size // width,
            )
            if width == 1:
                found += part.reshape(found.shape)
            else:
                found[column] = part

    def _down(self, factor: F64) -> F64:
        """Multiply the factors along every path; float64 [points, nodes]."""
        roots = self._roots
        product = np.ones((len(factor), roots + factor.shape[1]))
        for (low, high), splits in zip(self._levels, self._splits, strict=False):
            above = product[:, splits].repeat(2, axis=1)
            product[:, low:high] = above * factor[:, low - roots : high - roots]
        return product

    def _up(self, product: F64, column: int) -> F64:
        """Sum leaf value times product below every node; float64 as `product`."""
        total: F64 = product * self._value[:, column]
        for (low, high), splits in zip(
            reversed(self._levels), reversed(self._splits[:-1]), strict=True
        ):
            total[:, splits] = total[:, low:high:2] + total[:, low + 1 : high : 2]
        return total

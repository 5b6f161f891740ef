"""Compute the contribution of each feature to an answer."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from tollgate.errors import RepositoryError
from tollgate.explanation.explanation_file import (
    F32,
    F64,
    Bools,
    Explanation,
    Linear,
    Trees,
)

# Follow rows through trees: the branch at each split, and the leaf at the end.

_ZERO = np.float32(1e-35)  # LightGBM's kZeroThreshold: counts as zero
_CODES = 1 << 24
_BLOCK = 1 << 18  # leaves per pass

I64 = npt.NDArray[np.int64]


class Walk:
    """Send rows through trees that are checked."""

    def __init__(self, trees: Trees) -> None:
        self._trees = trees
        # Depth below the root: the largest number of steps.
        self._depth = len(levels(trees)) - 1
        self._by_code = np.flatnonzero(trees.by_code)
        self._keys = trees.code_node.astype(np.int64) * _CODES + trees.code

    def prepared(self, rows: F32) -> F32:
        """Return rows in which NaN is the only missing value; float32 [N, F]."""
        trees = self._trees
        given = np.asarray(rows, dtype=np.float32)
        if trees.missing is not None:
            gap = given == np.float32(trees.missing)
            given = np.where(gap, np.float32(np.nan), given)
        if trees.zero_is_missing:
            given = given.copy()
            columns = list(trees.zero_is_missing)
            part = given[:, columns]
            part[np.abs(part) <= _ZERO] = np.nan
            given[:, columns] = part
        return given

    def goes_left(self, prepared: F32) -> Bools:
        """Return the side that each row takes at each node; bool [nodes, N]."""
        trees = self._trees
        # A leaf's feature is -1: it reads some column, and the result is not used.
        found = prepared.T[trees.feature]
        left = found <= trees.threshold[:, None]
        if len(self._by_code):
            nodes = self._by_code
            left[nodes] = self._holds_code(found[nodes], nodes[:, None])
        missing = np.isnan(found)
        if missing.any():
            left = np.where(missing, trees.missing_left[:, None], left)
        ways: Bools = left
        return ways

    def _holds_code(self, found: F32, node: I64) -> Bools:
        code = np.trunc(found) if self._trees.codes_truncate else np.floor(found)
        known = (code >= 0) & (code < _CODES)
        if self._trees.codes_exact:
            known &= code == found
        key = np.where(known, code, 0).astype(np.int64) + node * _CODES
        if not len(self._keys):
            return np.zeros_like(known)
        at = np.minimum(np.searchsorted(self._keys, key), len(self._keys) - 1)
        found_there: Bools = known & (self._keys[at] == key)
        return found_there

    def margin(self, rows: F32, *, base: F64) -> F64:
        """Return the sums of the leaves that rows reach; float64 [N, outputs]."""
        trees = self._trees
        prepared = self.prepared(rows)
        margin = np.tile(base, (len(rows), 1))
        size = max(1, _BLOCK // len(trees.output))
        for low in range(0, len(rows), size):
            value = trees.value[self._leaves(prepared[low : low + size])]
            if trees.output[0] < 0:
                margin[low : low + size] += value.sum(axis=0)
            else:
                np.add.at(margin[low : low + size].T, trees.output, value[:, :, 0])
        return margin

    def _leaves(self, prepared: F32) -> I64:
        """Return the leaf of every tree that each row reaches; int64 [T, N]."""
        trees = self._trees
        node = np.repeat(trees.start[:-1, None].astype(np.int64), len(prepared), axis=1)
        row = np.arange(len(prepared))
        for _ in range(self._depth):
            found = prepared[row, trees.feature[node]]
            left = found <= trees.threshold[node]
            coded = trees.by_code[node]
            if coded.any():
                left[coded] = self._holds_code(found[coded], node[coded])
            left = np.where(np.isnan(found), trees.missing_left[node], left)
            child = trees.left[node]
            node = np.where(child < 0, node, child + ~left)
        return node


def levels(trees: Trees) -> list[I64]:
    """Return the nodes of all trees by depth, the children of a split adjacent."""
    found = [trees.start[:-1].astype(np.int64)]
    while True:
        first = trees.left[found[-1]].astype(np.int64)
        first = first[first >= 0]
        if not len(first):
            return found
        found.append(np.stack([first, first + 1], axis=1).ravel())


# Compute exact path-dependent Shapley values of trees.
#
# The question, tree by tree (Lundberg et al., "Consistent Individualized Feature
# Attribution for Tree Ensembles", 2018): how much does knowing feature j add to the
# expected output of a tree, averaged over all orders in which features become known,
# when at a split by an unknown feature a row goes both ways in the shares of the
# training rows. For a leaf of value v, whose path tests the features k, each in the
# share r_k of cases and, for this row, with success o_k (0 or 1), that average is
#
#     v (o_j - r_j) · ∫₀¹ ∏_{k≠j} (t o_k + (1 - t) r_k) dt
#
# The integrand is a polynomial in t of one degree less than the path has features, so
# Gauss-Legendre quadrature with half as many points is exact. The products are carried
# down all trees at once, level by level, and the sums of the leaves back up, so the
# cost is that of one visit per node (Yu et al., "Linear TreeShap", 2022).


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


class Explainer:
    """
    Explain rows of one model; create one explainer per model and reuse it.

    `expected` plus the contributions of a row is the row's margin.

    Attributes:
        expected: Margins before anything is known of a row; float64 [outputs].

    Raises:
        RepositoryError: The explanation has no model; the message has the reason.
    """

    def __init__(self, explanation: Explanation) -> None:
        self._explanation = explanation
        self._shapley: Shapley | None = None
        if explanation.trees is not None:
            self._walk = Walk(explanation.trees)
            self._shapley = Shapley(
                explanation.trees,
                columns=len(explanation.features),
                base=explanation.base,
            )
            self.expected: F64 = self._shapley.expected
        elif explanation.linear is not None:
            part = explanation.linear
            self.expected = explanation.base + part.coefficient @ part.mean
        else:
            raise RepositoryError("explanation", explanation.reason)

    def contributions(self, rows: F32) -> F64:
        """
        Return the contribution of each feature to each margin; float64 [N, outputs, F].

        NaN in every feature of a row that the model does not answer.

        Raises:
            ValueError: The rows have another number of features.
        """
        self._require_fit(rows)
        if self._shapley is not None:
            return self._shapley.contributions(rows)
        assert self._explanation.linear is not None
        return _linear_contributions(
            self._explanation.linear, rows, columns=len(self._explanation.features)
        )

    def of_class(self, rows: F32, index: int) -> F64:
        """Return each feature's contribution to a class's margin; float64 [N, F]."""
        if not 0 <= index < len(self._explanation.classes):
            raise ValueError(f"class {index}: there are {self._explanation.classes}")
        found = self.contributions(rows)
        if self._explanation.outputs == 1:
            one: F64 = found[:, 0] if index else -found[:, 0]
            return one
        of_many: F64 = found[:, index]
        return of_many

    def margin(self, rows: F32) -> F64:
        """Return the model's sums, without any contribution; float64 [N, outputs]."""
        self._require_fit(rows)
        if self._explanation.linear is not None:
            part = self._explanation.linear
            found: F64 = self._explanation.base + encoded(part, rows) @ (
                part.coefficient.T
            )
            return found
        return self._walk.margin(rows, base=self._explanation.base)

    def probabilities(self, rows: F32) -> F64:
        """Return the model's answers; float64 [N, K]."""
        margin = self.margin(rows)
        if self._explanation.link == "identity":
            return margin
        if self._explanation.link == "logistic":
            with np.errstate(over="ignore"):
                second = 1 / (1 + np.exp(-margin))
            return np.concatenate([1 - second, second], axis=1)
        power = np.exp(margin - margin.max(axis=1, keepdims=True))
        found: F64 = power / power.sum(axis=1, keepdims=True)
        return found

    def _require_fit(self, rows: F32) -> None:
        columns = len(self._explanation.features)
        if rows.ndim != 2 or rows.shape[1] != columns:
            raise ValueError(f"rows are {list(rows.shape)}; needed is [N, {columns}]")


def encoded(linear: Linear, rows: F32) -> F64:
    """Return the columns to which the coefficients belong; float64 [N, J]."""
    given = np.asarray(rows, dtype=np.float64)[:, linear.source]
    unit = np.where(linear.by_category, given == linear.category, given)
    return np.where(np.isnan(given), linear.filled, unit * linear.slope + linear.offset)


def _linear_contributions(linear: Linear, rows: F32, *, columns: int) -> F64:
    """Sum coefficient times distance from the mean for each feature."""
    away = encoded(linear, rows) - linear.mean
    found = np.zeros((len(rows), len(linear.coefficient), columns))
    weighted = away[:, None, :] * linear.coefficient
    np.add.at(found.transpose(2, 0, 1), linear.source, weighted.transpose(2, 0, 1))
    found[np.isnan(away).any(axis=1)] = np.nan
    return found

"""Follow rows through trees: the branch at each split, and the leaf at the end."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tollgate.explanation.document import F32, F64, Bools, Trees

_ZERO = np.float32(1e-35)  # LightGBM's kZeroThreshold: counts as zero
_CODES = 1 << 24
_BLOCK = 1 << 18  # leaves per pass

I64 = npt.NDArray[np.int64]


class Walk:
    """
    Send rows through trees.

    Args:
        trees: Checked.
    """

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

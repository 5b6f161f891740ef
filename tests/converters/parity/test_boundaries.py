"""Rows that are made where nobody hands in a sample."""

import numpy as np

from converters.parity.boundaries import MADE_ROWS, made_rows
from converters.trees.tree_ensemble import AT_MOST, Tree, comparisons


def test_a_split_at_infinity_makes_no_missing_values():
    """It sends all but missing values left; rows lie around the other threshold."""
    left = np.array([1, 3, -1, -1, -1])
    tree = Tree(
        left=left,
        right=np.array([2, 4, -1, -1, -1]),
        comparison=comparisons(left, AT_MOST),
        feature=np.zeros(5, dtype=np.int64),
        threshold=np.array([np.inf, 5, 0, 0, 0], dtype=np.float32),
        missing_left=np.zeros(5, dtype=bool),
        value=np.zeros((5, 1)),
    )
    rows = made_rows([tree], columns=2)
    assert rows.shape == (MADE_ROWS, 2)
    assert np.isfinite(rows).all()
    assert (rows[:, 0] < 5).any()
    assert (rows[:, 0] > 5).any()

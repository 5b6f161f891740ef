"""Hold the trees of one operator as arrays from which tensors are built."""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
F64 = npt.NDArray[np.float64]

LESS, AT_MOST, EQUAL = "Less", "LessOrEqual", "Equal"  # ONNX operators


class Forest(msgspec.Struct, frozen=True, eq=False):
    """
    The trees of one operator, with consecutive node numbers.

    Attributes:
        roots: First node of each tree; int [T].
        comparison: Comparison at a node; str [M], empty for a leaf.
        feature: Column that a node tests; int [M].
        threshold: Value that a node compares with; float64 [M].
        missing: True if NaN takes the path of a test that holds; bool [M].
        true: Next node if the test holds; int [M], a leaf's own number.
        false: Next node otherwise; int [M], a leaf's own number.
        values: Value that a leaf adds, including the operator's base values; float64
            [M, K].
        level: Number of steps from the root; int [M].
        tree: Number of the node's tree; int [M].
    """

    roots: Ints
    comparison: npt.NDArray[np.str_]
    feature: Ints
    threshold: F64
    missing: Flags
    true: Ints
    false: Ints
    values: F64
    level: Ints
    tree: Ints

    @property
    def depth(self) -> int:
        """Return the number of steps to the deepest leaf."""
        return int(self.level.max())

    @property
    def leaf(self) -> Flags:
        """Return which nodes are leaves; bool [M]."""
        leaf: Flags = self.true == np.arange(len(self.true))
        return leaf

    @property
    def outputs(self) -> int:
        """Return K, the number of sums of the trees."""
        return int(self.values.shape[1])

    @property
    def modes(self) -> tuple[str, ...]:
        """Return the comparisons in use, the most frequent first; at least one."""
        found, count = np.unique(
            self.comparison[self.comparison != ""], return_counts=True
        )
        return tuple(str(found[at]) for at in np.argsort(-count)) or (AT_MOST,)

    @property
    def odd(self) -> Flags:
        """Return the nodes that send NaN another way than minus infinity; bool [M]."""
        lowest = np.full(len(self.threshold), -np.inf)
        holds = np.zeros(len(lowest), dtype=bool)
        for mode in self.modes:
            holds |= (self.comparison == mode) & _test(mode, lowest, self.threshold)
        odd: Flags = self.missing & ~holds
        return odd


def _test(mode: str, values: F64, threshold: F64) -> Flags:
    """Apply one of the three comparisons."""
    held: Flags = values == threshold
    if mode != EQUAL:
        held = values < threshold if mode == LESS else values <= threshold
    return held

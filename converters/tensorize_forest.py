"""Hold the trees of one operator as arrays that tensors are made from."""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
F64 = npt.NDArray[np.float64]

LESS, AT_MOST, EQUAL = "Less", "LessOrEqual", "Equal"  # as ONNX calls them


class Forest(msgspec.Struct, frozen=True, eq=False):
    """
    The trees of one operator, their nodes numbered through.

    Attributes:
        roots: First node of each tree; int [T].
        comparison: What a node tests; str [M], empty for a leaf.
        feature: Which column; int [M].
        threshold: Against what; float64 [M].
        missing: Whether NaN takes the same way as a test that holds; bool [M].
        true: Where a row goes if the test holds; int [M], a leaf's own number.
        false: Where it goes otherwise; likewise.
        values: What a leaf adds, the operator's base values included; float64 [M, K].
        level: Steps from the root; int [M].
        tree: Number of its tree; int [M].
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
        """Steps to the deepest leaf."""
        return int(self.level.max())

    @property
    def leaf(self) -> Flags:
        """Which nodes are leaves; bool [M]."""
        leaf: Flags = self.true == np.arange(len(self.true))
        return leaf

    @property
    def outputs(self) -> int:
        """K: how many sums the trees give."""
        return int(self.values.shape[1])

    @property
    def modes(self) -> tuple[str, ...]:
        """The comparisons that occur, the most frequent first; at least one."""
        found, count = np.unique(
            self.comparison[self.comparison != ""], return_counts=True
        )
        return tuple(str(found[at]) for at in np.argsort(-count)) or (AT_MOST,)

    @property
    def odd(self) -> Flags:
        """Nodes where NaN takes the way that minus infinity does not; bool [M]."""
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

"""The data stored with a model so that its answers can be explained exactly."""

from __future__ import annotations

from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt

Bools = npt.NDArray[np.bool_]
I32 = npt.NDArray[np.int32]
F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]

Link = Literal["logistic", "softmax", "identity"]


class Trees(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """
    Hold trees whose leaves add up to the margin.

    The nodes of one tree are contiguous, level by level: the root first, the two
    children of a split adjacent, every child after its parent. At a split, a row goes
    left when `x <= threshold` in float32; where `by_code` is set, when its code is one
    of the split's; where x is missing, as `missing_left` says.

    Attributes:
        start: First node of each tree, and the number of nodes; int32 [T + 1].
        output: Margin to which a tree adds; -1 where every leaf has a value for each of
            several; int32 [T].
        left: Left child, the right one is the next; -1 for a leaf; int32 [nodes].
        feature: Column that a split tests, -1 for a leaf; int32 [nodes].
        threshold: float32 [nodes].
        missing_left: bool [nodes].
        by_code: The split tests a category code; bool [nodes].
        code_node: Splits by code, ascending; int32 [C].
        code: A code that goes left there, ascending in a split; int32 [C].
        cover: Weight of the training rows that reached a node, at least 0; float64
            [nodes].
        value: Number that a leaf adds, shrinkage and averaging included; 0 at splits;
            float64 [nodes, 1], or [nodes, outputs] where `output` is -1.
        missing: A number that stands for a missing value, besides NaN.
        zero_is_missing: Columns in which |x| <= 1e-35 is a missing value.
        codes_truncate: A code loses its fraction toward zero (-0.5 is code 0);
            otherwise downward (-0.5 is none).
        codes_exact: A code with a fraction is none, whatever `codes_truncate` says.
    """

    start: I32
    output: I32
    left: I32
    feature: I32
    threshold: F32
    missing_left: Bools
    by_code: Bools
    code_node: I32
    code: I32
    cover: F64
    value: F64
    missing: float | None = None
    zero_is_missing: tuple[int, ...] = ()
    codes_truncate: bool = False
    codes_exact: bool = False


class Linear(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """
    Hold coefficients, and the mapping from features to their columns.

    A column is `slope * u + offset`, where u is one feature's x, or 1 where x is the
    column's category and 0 elsewhere.

    Attributes:
        source: Feature from which each column is computed; int32 [J].
        slope: float64 [J].
        offset: float64 [J].
        by_category: u is 1 for a category; bool [J].
        category: float64 [J]; NaN where none.
        filled: The column where x is NaN; NaN where such a row has no answer; float64
            [J].
        mean: Reference point of the contributions; float64 [J].
        coefficient: float64 [outputs, J].
        from_mean: `mean` is the columns' mean over sample rows; otherwise it is 0,
            which is the training mean only if the column is standardised.
    """

    source: I32
    slope: F64
    offset: F64
    by_category: Bools
    category: F64
    filled: F64
    mean: F64
    coefficient: F64
    from_mean: bool = False


class Explanation(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """
    Hold a model as a sum over features, or the reason why it cannot be one.

    Attributes:
        features: Names of the F features, in order.
        classes: Labels of the K classes, in the order of the probabilities.
        link: From margins to probabilities: `logistic` of one margin, P(class 1);
            `softmax` of K margins; `identity` where K margins are probabilities.
        base: Start values of the margins (a linear model's intercept); float64
            [outputs].
        trees: The model, when it is one of trees.
        linear: The model, when it is linear.
        reason: Reason why there is neither; empty when there is one.
    """

    features: tuple[str, ...]
    classes: tuple[int | str, ...]
    link: Link = "identity"
    base: F64
    trees: Trees | None = None
    linear: Linear | None = None
    reason: str = ""

    @property
    def outputs(self) -> int:
        """Return the number of margins: 1, or K."""
        return 1 if self.link == "logistic" else len(self.classes)


def unexplained(
    reason: str, *, features: tuple[str, ...], classes: tuple[int | str, ...]
) -> Explanation:
    """Build an explanation that only states why a model's answers are not explained."""
    return Explanation(
        features=features,
        classes=classes,
        base=np.zeros(len(classes)),
        reason=reason,
    )

"""Decide past rows again with a changed policy, and report the differences."""

from tollgate.redecide.outcome import (
    PastRows,
    PolicyComparison,
    compare_policies,
    read_rows,
)
from tollgate.redecide.picture import draw

__all__ = ["PastRows", "PolicyComparison", "compare_policies", "draw", "read_rows"]

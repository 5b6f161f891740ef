"""Decide past rows again with a changed policy, and report the differences."""

from tollgate.redecide.outcome import PolicyComparison, compare_policies
from tollgate.redecide.picture import draw
from tollgate.redecide.rows import PastRows, read_rows

__all__ = ["PastRows", "PolicyComparison", "compare_policies", "draw", "read_rows"]

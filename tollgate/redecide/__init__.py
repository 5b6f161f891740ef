"""Decide past rows again with a changed policy, and report the differences."""

from tollgate.redecide.outcome import Outcome, compare_policies
from tollgate.redecide.picture import draw
from tollgate.redecide.rows import PastRows, read_rows

__all__ = ["Outcome", "PastRows", "compare_policies", "draw", "read_rows"]

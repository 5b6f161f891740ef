"""What a changed policy would have decided, on decisions of the past."""

from tollgate.redecide.outcome import Outcome, compare_policies
from tollgate.redecide.picture import draw
from tollgate.redecide.rows import PastRows, read_rows

__all__ = ["Outcome", "PastRows", "compare_policies", "draw", "read_rows"]

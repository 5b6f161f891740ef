"""
The decision policy: thresholds, rules and reason codes, as data.

`policy.yaml` is compiled once, at load; nothing in it is ever evaluated as code.
"""

from tollgate.policy.decide import Decided, decide
from tollgate.policy.document import POLICY_FILE, Policy, load_policy

__all__ = ["POLICY_FILE", "Decided", "Policy", "decide", "load_policy"]

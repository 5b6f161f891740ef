"""
Read, compile and apply the decision policy: thresholds, rules and reason codes.

`policy.yaml` is data. It is compiled once, at load; nothing in it is ever evaluated as
code.
"""

from tollgate.policy.compile import load_policy
from tollgate.policy.decide import PolicyDecisions, decide, needs_model, without_model
from tollgate.policy.decision_tables import RowFacts
from tollgate.policy.policy_definition import Policy
from tollgate.policy.policy_document import POLICY_FILE

__all__ = [
    "POLICY_FILE",
    "Policy",
    "PolicyDecisions",
    "RowFacts",
    "decide",
    "load_policy",
    "needs_model",
    "without_model",
]

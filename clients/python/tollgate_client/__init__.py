"""Request decisions from a Tollgate server."""

__version__ = "0.1.0"

from tollgate_client.async_client import AsyncDecisionClient
from tollgate_client.breaker import BreakerRules
from tollgate_client.client import Client
from tollgate_client.coalescing import Coalescing
from tollgate_client.counters import register
from tollgate_client.decision import Decision, Outcome
from tollgate_client.decision_client import DecisionClient
from tollgate_client.decisions import Decisions, join
from tollgate_client.fallback import Band, Fallback, fallback_from
from tollgate_client.options import Options, Tls, tls_from
from tollgate_client.retry import RetryRules

__all__ = [
    "AsyncDecisionClient",
    "Band",
    "BreakerRules",
    "Client",
    "Coalescing",
    "Decision",
    "DecisionClient",
    "Decisions",
    "Fallback",
    "Options",
    "Outcome",
    "RetryRules",
    "Tls",
    "fallback_from",
    "join",
    "register",
    "tls_from",
]

"""Request decisions, and items for users, from a Tollgate server."""

__version__ = "0.1.0"

from tollgate_client.async_client import AsyncDecisionClient, Coalescing
from tollgate_client.breaker import BreakerRules
from tollgate_client.client import Client
from tollgate_client.contract import Degraded
from tollgate_client.decision_client import DecisionClient
from tollgate_client.decisions import Decision, Decisions, Outcome, join
from tollgate_client.errors import (
    ClientError,
    DeadlineExceeded,
    InputError,
    InvalidRequest,
    Overloaded,
    SetupError,
    Unavailable,
)
from tollgate_client.fallback import Band, Fallback, fallback_from
from tollgate_client.options import Options, RetryRules, Tls, tls_from
from tollgate_client.recommendations import (
    FallbackItems,
    RecommendationOutcome,
    RecommendationRequest,
    Recommendations,
    fallback_items_from,
)
from tollgate_client.recommender import (
    RECOMMENDER_OPTIONS,
    AsyncRecommender,
    Recommender,
)
from tollgate_client.telemetry import register

__all__ = [
    "RECOMMENDER_OPTIONS",
    "AsyncDecisionClient",
    "AsyncRecommender",
    "Band",
    "BreakerRules",
    "Client",
    "ClientError",
    "Coalescing",
    "DeadlineExceeded",
    "Decision",
    "DecisionClient",
    "Decisions",
    "Degraded",
    "Fallback",
    "FallbackItems",
    "InputError",
    "InvalidRequest",
    "Options",
    "Outcome",
    "Overloaded",
    "RecommendationOutcome",
    "RecommendationRequest",
    "Recommendations",
    "Recommender",
    "RetryRules",
    "SetupError",
    "Tls",
    "Unavailable",
    "fallback_from",
    "fallback_items_from",
    "join",
    "register",
    "tls_from",
]

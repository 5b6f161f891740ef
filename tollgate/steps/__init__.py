"""The Python steps of the ensemble; each `model.py` subclasses one and adds nothing."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tollgate.imports import import_gently

if TYPE_CHECKING:
    from tollgate.steps.candidate_step import CandidateStep
    from tollgate.steps.decision_step import DecisionStep
    from tollgate.steps.feature_step import FeatureStep
    from tollgate.steps.ranking_step import RankingStep

__all__ = ["CandidateStep", "DecisionStep", "FeatureStep", "RankingStep"]

_HOMES = {
    "CandidateStep": "tollgate.steps.candidate_step",
    "DecisionStep": "tollgate.steps.decision_step",
    "FeatureStep": "tollgate.steps.feature_step",
    "RankingStep": "tollgate.steps.ranking_step",
}


def __getattr__(name: str) -> Any:
    """
    Import a step on first access: a process runs one step, next to the serving code.
    """
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import_gently(_HOMES[name])
    step = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = step
    return step

"""The Python steps of the ensemble; `model.py` subclasses one and adds nothing."""

from tollgate.steps.decision import DecisionStep
from tollgate.steps.feature import FeatureStep

__all__ = ["DecisionStep", "FeatureStep"]

"""The Python steps of the ensemble; `model.py` subclasses one and adds nothing."""

from tollgate.imports import import_gently

import_gently("numpy", "msgspec", "yaml")

from tollgate.steps.decision import DecisionStep  # noqa: E402
from tollgate.steps.feature import FeatureStep  # noqa: E402

__all__ = ["DecisionStep", "FeatureStep"]

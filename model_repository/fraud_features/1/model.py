"""Validate rows, update and read windows, assemble features."""

from tollgate.steps import FeatureStep


class TritonPythonModel(FeatureStep):
    """The step of `fraud_features`; the logic is the library's."""

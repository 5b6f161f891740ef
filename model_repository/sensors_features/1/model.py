"""Validate rows and assemble features."""

from tollgate.steps import FeatureStep


class TritonPythonModel(FeatureStep):
    """The step of `sensors_features`; the logic is the library's."""

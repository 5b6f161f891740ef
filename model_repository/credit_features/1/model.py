"""Check rows, assemble features."""

from tollgate.steps import FeatureStep


class TritonPythonModel(FeatureStep):
    """The step of `credit_features`; the logic is the library's."""

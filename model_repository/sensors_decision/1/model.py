"""Turn probabilities into decisions with reasons."""

from tollgate.steps import DecisionStep


class TritonPythonModel(DecisionStep):
    """The step of `sensors_decision`; the logic is the library's."""

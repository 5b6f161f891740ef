"""Validate rows, read users' newest events, find candidates."""

from tollgate.steps import CandidateStep


class TritonPythonModel(CandidateStep):
    """The step of `shop_candidates`; the logic is the library's."""

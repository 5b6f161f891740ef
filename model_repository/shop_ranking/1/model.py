"""Turn the relevance of candidates into lists of items."""

from tollgate.steps import RankingStep


class TritonPythonModel(RankingStep):
    """The step of `shop_ranking`; the logic is the library's."""

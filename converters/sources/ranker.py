"""Use a model of rows as one that scores the candidates of lists."""

from __future__ import annotations

from typing import Any

import msgspec

from converters.model import TrainedModel
from converters.onnx.ranking_graph import ranking_graph


class Ranker:
    """
    A `TrainedModel` whose graph takes lists of candidates.

    Args:
        model: Model that answers a number.
    """

    def __init__(self, model: TrainedModel) -> None:
        self._model = model
        self.facts = msgspec.structs.replace(
            model.facts, classes=("relevance",), ranks=True, wide=False
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def convert(self, *, wide: bool = False) -> bytes:
        """Return a graph from candidate features float32 to relevance."""
        assert not wide, "candidate features are float32"
        return ranking_graph(self._model.convert())

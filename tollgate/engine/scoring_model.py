"""Run the model of a release in onnxruntime: vectors to probabilities or relevance."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tollgate.engine.onnx_session import OnnxSession
from tollgate.errors import RepositoryError
from tollgate.features.assemble import exact_features
from tollgate.features.spec.spec_definition import FeatureSpec
from tollgate.policy import RowFacts
from tollgate.schema import (
    CANDIDATE_FEATURES,
    FEATURES,
    MAX_BATCH_ROWS,
    PROBABILITIES,
    RELEVANCE,
)

F32 = npt.NDArray[np.float32]
Floats = npt.NDArray[np.floating[Any]]


class ScoringModel:
    """
    The model of a release: it scores vectors, or the candidates of a ranking.

    Args:
        session: Its model.onnx, opened.

    Attributes:
        input: Name of its input: features, or those of candidates.
        output: Name of its output: probabilities [N, K], or relevance [N, C].
        exact: True if it receives features in float64.

    Raises:
        RepositoryError: It has none of these inputs, or not the output that goes with
            it.
    """

    def __init__(self, session: OnnxSession) -> None:
        self.input, self.output = FEATURES, PROBABILITIES
        if CANDIDATE_FEATURES in session.inputs:
            self.input, self.output = CANDIDATE_FEATURES, RELEVANCE
        if self.input not in session.inputs:
            raise RepositoryError(session.source, f"has no input {self.input}")
        if self.output not in session.outputs:
            raise RepositoryError(session.source, f"has no output {self.output}")
        self._session = session
        self._dtype = session.inputs[self.input].dtype
        self.exact = bool(self._dtype == np.float64)

    def score(self, facts: RowFacts, spec: FeatureSpec) -> F32:
        """Compute probabilities of rows whose features are known; [N, K]."""
        features: Floats = facts.features
        if self.exact:
            features = exact_features(
                spec, features, cents=facts.cents, fields=facts.fields
            )
        return self.probabilities(features)

    def probabilities(self, features: Floats) -> F32:
        """
        Compute the output in batches of at most MAX_BATCH_ROWS rows.

        Args:
            features: [N, F], or of candidates [N, C, F].

        Returns:
            Probabilities [N, K], or relevance [N, C].
        """
        rows = np.ascontiguousarray(features, self._dtype)
        parts = [
            self._session.run(
                [self.output], {self.input: rows[at : at + MAX_BATCH_ROWS]}
            )[0]
            for at in range(0, max(len(rows), 1), MAX_BATCH_ROWS)
        ]
        found = parts[0] if len(parts) == 1 else np.concatenate(parts)
        return found.astype(np.float32, copy=False)

    def warm_up(self, *shape: int) -> None:
        """
        Score zeros, so that no caller waits for the first allocations.

        Args:
            shape: Of the input of one row.
        """
        for rows in (1, 8, MAX_BATCH_ROWS):
            self.probabilities(np.zeros((rows, *shape), self._dtype))

"""Run the model of a release in onnxruntime: vectors to probabilities."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tollgate.engine.onnx_session import OnnxSession
from tollgate.errors import RepositoryError
from tollgate.features.assemble import exact_features
from tollgate.features.spec.spec_definition import FeatureSpec
from tollgate.policy import RowFacts
from tollgate.schema import FEATURES, MAX_BATCH_ROWS, PROBABILITIES

F32 = npt.NDArray[np.float32]
Floats = npt.NDArray[np.floating[Any]]


class ScoringModel:
    """
    The model of a release.

    Args:
        session: Its model.onnx, opened.

    Attributes:
        exact: True if it receives features in float64.

    Raises:
        RepositoryError: It has no input for features, or no output of probabilities.
    """

    def __init__(self, session: OnnxSession) -> None:
        if FEATURES not in session.inputs:
            raise RepositoryError(session.source, f"has no input {FEATURES}")
        if PROBABILITIES not in session.outputs:
            raise RepositoryError(session.source, f"has no output {PROBABILITIES}")
        self._session = session
        self._dtype = session.inputs[FEATURES].dtype
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
        Compute probabilities, [N, F] → [N, K], in batches of at most MAX_BATCH_ROWS
        rows.
        """
        rows = np.ascontiguousarray(features, self._dtype)
        parts = [
            self._session.run(
                [PROBABILITIES], {FEATURES: rows[at : at + MAX_BATCH_ROWS]}
            )[0]
            for at in range(0, max(len(rows), 1), MAX_BATCH_ROWS)
        ]
        found = parts[0] if len(parts) == 1 else np.concatenate(parts)
        return found.astype(np.float32, copy=False)

    def warm_up(self, width: int) -> None:
        """Score zeros, so that no caller waits for the first allocations."""
        for rows in (1, 8, MAX_BATCH_ROWS):
            self.probabilities(np.zeros((rows, width), self._dtype))

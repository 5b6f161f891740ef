"""The middle of a ranking: newest events to candidates and their features."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from tollgate.engine.onnx_session import OnnxSession
from tollgate.engine.ranking_context import NO_ITEM, ranking_dtype
from tollgate.engine.row_batches import Batch
from tollgate.ranking.candidates import (
    CANDIDATES,
    Events,
    candidate_features,
    events_of,
    feature_names,
    retrieve,
)
from tollgate.ranking.catalogue import Catalogue
from tollgate.ranking.history import UserHistory
from tollgate.schema import hash_words

Array = npt.NDArray[Any]
Bool = npt.NDArray[np.bool_]


class CandidateBatch(msgspec.Struct, frozen=True, eq=False):
    """
    Hold the candidates of N rows.

    Attributes:
        features: Of the candidates, float32 [N, C, F]; zeros where there is none.
        ranking: Ranking contexts, of `ranking_dtype`; [N].
    """

    features: Array
    ranking: Array


class CandidateStage:
    """
    Fill candidates, their features and the ranking contexts of batches.

    Args:
        catalogue: Items of the release.
        session: Its retrieval.onnx, opened.
        history: H, events of a user at most.

    Attributes:
        dtype: Of a ranking context.
    """

    def __init__(
        self, catalogue: Catalogue, session: OnnxSession, *, history: int
    ) -> None:
        self.catalogue = catalogue
        self._session = session
        self._width = len(feature_names(catalogue))
        self.dtype = ranking_dtype(candidates=CANDIDATES, history=history)

    def fill(
        self, batch: Batch, history: UserHistory, *, available: Bool
    ) -> CandidateBatch:
        """
        Find the candidates of a batch.

        Args:
            batch: Its rows; bad ones get nothing.
            history: Newest events of the rows' users.
            available: Items in stock, by index of the catalogue; [I].
        """
        rows = len(batch.time_us)
        ranking = np.zeros(rows, self.dtype)
        ranking["catalogue"] = self.catalogue.hash
        ranking["history_known"] = history.known
        for name in ("items", "event_items", "event_actions", "excluded"):
            ranking[name] = NO_ITEM
        for count, (start, stop) in zip(
            batch.counts, itertools.pairwise(batch.bounds), strict=True
        ):
            ranking["count"][start:stop] = count
        events = events_of(self.catalogue, history, batch.time_us)
        width = events.items.shape[1]
        ranking["event_items"][:, :width] = events.items
        ranking["event_actions"][:, :width] = events.actions
        ranking["event_times_us"][:, :width] = history.time_us
        excluded = self._excluded(batch, ranking)
        features = np.zeros((rows, CANDIDATES, self._width), np.float32)
        good = [row for row in range(rows) if row not in batch.errors]
        if good:
            part = Events(
                items=events.items[good],
                actions=events.actions[good],
                age_s=events.age_s[good],
            )
            retrieved = retrieve(
                self.catalogue,
                self._session,
                part,
                available=available,
                skip=[excluded[row] for row in good],
            )
            features[good] = candidate_features(self.catalogue, part, retrieved)
            ranking["items"][good] = retrieved.items
            ranking["sources"][good] = retrieved.sources
        return CandidateBatch(features, ranking)

    def _excluded(self, batch: Batch, ranking: Array) -> list[Array]:
        """Look up the excluded items of each row, and note them in its context."""
        found = [np.zeros(0, np.int32)] * len(ranking)
        for row, ids in enumerate(batch.excluded):
            if ids:
                known = self.catalogue.index_of(hash_words(ids))
                found[row] = known[known != NO_ITEM]
                ranking["excluded"][row, : len(found[row])] = found[row]
        return found

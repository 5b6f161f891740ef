"""
The middle of a ranking: newest events to candidates and their features.

Candidates that were prepared for the user stand in for both, with their relevance, if
the same files made them from the same events and they have not expired.
"""

from __future__ import annotations

import itertools
from collections import Counter, deque
from typing import Any, Literal, get_args

import msgspec
import numpy as np
import numpy.typing as npt

from tollgate.engine.onnx_session import OnnxSession
from tollgate.engine.ranking_context import NO_ITEM, ranking_dtype
from tollgate.engine.row_batches import Batch
from tollgate.errors import RepositoryError
from tollgate.features.spec.spec_definition import FeatureSpec
from tollgate.ranking.candidates import (
    CANDIDATES,
    Events,
    candidate_features,
    events_of,
    feature_names,
    retrieve,
)
from tollgate.ranking.catalogue import (
    CATALOGUE_FILE,
    Catalogue,
    segment_field_problem,
)
from tollgate.ranking.history import UserHistory
from tollgate.ranking.prepared import (
    PreparedCandidates,
    decode_prepared,
    history_hash,
)
from tollgate.schema import hash_words

Array = npt.NDArray[Any]
Bool = npt.NDArray[np.bool_]

# What became of the prepared candidates of a row, in the order of the checks.
Found = Literal[
    "hit",
    "unread",  # the store did not answer
    "none",  # none were prepared
    "damaged",
    "other_release",  # other files made them
    "expired",
    "other_events",  # a new event came, or one became too old to be read
    "canary",  # the challenger answers the row
]
FOUND: tuple[Found, ...] = get_args(Found)
_MOST_AGES = 100_000  # without a reader, such as in a replay, the oldest leave


class CandidateBatch(msgspec.Struct, frozen=True, eq=False):
    """
    Hold the candidates of N rows.

    Attributes:
        features: Of the candidates, float32 [N, C, F]; zeros where there is none.
        ranking: Ranking contexts, of `ranking_dtype`; [N].
    """

    features: Array
    ranking: Array


class PreparedCounts:
    """
    Count the prepared candidates that were looked up since the start.

    Attributes:
        rows: Rows by what was found.
        ages_s: Age at the time of the request, of each hit; whoever exports them
            removes them.
    """

    def __init__(self) -> None:
        self.rows: Counter[Found] = Counter()
        self.ages_s: deque[float] = deque(maxlen=_MOST_AGES)


class CandidateStage:
    """
    Fill candidates, their features and the ranking contexts of batches.

    Args:
        catalogue: Items of the release.
        session: Its retrieval.onnx, opened.
        spec: Features of the release; they have a history.
        ranker: Hash of the files that prepare candidates for this release; 0 uses none.

    Attributes:
        dtype: Of a ranking context.
        prepared: Counts of the prepared candidates.

    Raises:
        RepositoryError: The catalogue's segments come from no field of a request.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        session: OnnxSession,
        spec: FeatureSpec,
        *,
        ranker: int = 0,
    ) -> None:
        assert spec.history is not None
        if problem := segment_field_problem(catalogue, spec.fields):
            raise RepositoryError(CATALOGUE_FILE, problem)
        self.catalogue = catalogue
        self.prepared = PreparedCounts()
        self._ranker = ranker
        self._session = session
        self._width = len(feature_names(catalogue))
        self.dtype = ranking_dtype(candidates=CANDIDATES, history=spec.history.most)

    def fill(
        self,
        batch: Batch,
        history: UserHistory,
        *,
        available: Bool,
        challenged: Bool | None = None,
    ) -> CandidateBatch:
        """
        Find the candidates of a batch.

        Args:
            batch: Its rows; bad ones get nothing.
            history: Newest events of the rows' users, and their prepared candidates.
            available: Items in stock, by index of the catalogue; [I].
            challenged: Rows that the challenger answers, which has other relevance;
                bool [N], None without a challenger.
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
        segments = self.catalogue.segments_of(batch.fields, rows=rows)
        good = []
        for row in range(rows):
            if row in batch.errors:
                continue
            canary = challenged is not None and bool(challenged[row])
            made = self._prepared(batch, history, row, canary=canary)
            if made is None:
                good.append(row)
                continue
            count = len(made.items)
            ranking["items"][row, :count] = made.items
            ranking["sources"][row, :count] = made.sources
            ranking["relevance"][row, :count] = made.relevance
            ranking["prepared_us"][row] = made.made_us
        if good:
            part = Events(
                items=events.items[good],
                actions=events.actions[good],
                age_s=events.age_s[good],
            )
            skip = [excluded[row] for row in good]
            if not self.catalogue.repeats:
                skip = [
                    np.concatenate((out, own[own != NO_ITEM]))
                    for out, own in zip(skip, part.items, strict=True)
                ]
            retrieved = retrieve(
                self.catalogue,
                self._session,
                part,
                available=available,
                skip=skip,
                segments=segments[good],
            )
            features[good] = candidate_features(self.catalogue, part, retrieved)
            ranking["items"][good] = retrieved.items
            ranking["sources"][good] = retrieved.sources
        return CandidateBatch(features, ranking)

    def _prepared(
        self, batch: Batch, history: UserHistory, row: int, *, canary: bool
    ) -> PreparedCandidates | None:
        """Return the prepared candidates of a row if they hold, and count them."""
        time_us = int(batch.time_us[row])
        found, made = self._look_at(history, row, time_us=time_us)
        if found == "hit" and canary:
            found = "canary"
        self.prepared.rows[found] += 1
        if found != "hit" or made is None:
            return None
        self.prepared.ages_s.append(max(time_us - made.made_us, 0) / 1e6)
        return made

    def _look_at(
        self, history: UserHistory, row: int, *, time_us: int
    ) -> tuple[Found, PreparedCandidates | None]:
        raw = history.prepared[row]
        if raw is None or not history.known[row]:
            return "unread", None
        if not raw:
            return "none", None
        made = decode_prepared(raw, items=self.catalogue.size)
        if made is None:
            return "damaged", None
        if made.ranker != self._ranker:
            return "other_release", None
        if abs(time_us - made.made_us) >= made.life_us:
            return "expired", None
        if made.history != history_hash(history, row):
            return "other_events", None
        return "hit", made

    def _excluded(self, batch: Batch, ranking: Array) -> list[Array]:
        """Look up the excluded items of each row, and note them in its context."""
        found = [np.zeros(0, np.int32)] * len(ranking)
        for row, ids in enumerate(batch.excluded):
            if ids:
                known = self.catalogue.index_of(hash_words(ids))
                found[row] = known[known != NO_ITEM]
                ranking["excluded"][row, : len(found[row])] = found[row]
        return found

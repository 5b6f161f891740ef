"""The last stage of a ranking: relevance to lists, and the answer's columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import structs

from tollgate.engine.decision_stage import (
    BAD,
    FOREIGN,
    Canary,
    DecisionBatch,
    DecisionStage,
)
from tollgate.engine.ranking_context import NO_ITEM
from tollgate.errors import RepositoryError
from tollgate.policy import Policy, PolicyDecisions
from tollgate.ranking.catalogue import CATALOGUE_FILE, Catalogue
from tollgate.ranking.draws import seed_of
from tollgate.ranking.rank import (
    RankedList,
    RankingInput,
    bind_rules,
    rank_row,
)
from tollgate.ranking.ranking_record import RankingRecord, encode_ranking
from tollgate.schema import PREPARED_PREFIX, SOURCES, TRANSACTION_ID

Array = npt.NDArray[Any]
Bool = npt.NDArray[np.bool_]

_WORDS = np.array([one.encode() for one in SOURCES], np.object_)
_PREPARED_WORDS = np.array(
    [(PREPARED_PREFIX + one).encode() for one in SOURCES], np.object_
)
_FALLBACK = np.uint8(SOURCES.index("fallback"))
_OTHERS = ("degraded", "error", "release")


class RankingBatch(DecisionBatch, frozen=True, eq=False):
    """
    Hold the rows of all requests of a dynamic batch of a product that ranks.

    `probabilities` holds the relevance of the candidates, float32 [N, C].

    Attributes:
        ranking: Ranking contexts, of `ranking_dtype`; [N], contiguous.
        rival: Relevance by a challenger that is interleaved, NaN in rows where it is
            not; float32 [N, C], None for no row.
    """

    ranking: Array
    rival: Array | None = None

    @property
    def signed(self) -> Array:
        """Return what the tag of a context covers besides the context; [N, ...]."""
        return signed_rows(self.features, self.ranking)


def signed_rows(features: Array, ranking: Array) -> Array:
    """Join features and ranking contexts to bytes, for the tag; uint8 [N, ...]."""
    rows = len(features)
    both = [
        np.ascontiguousarray(one).view(np.uint8).reshape(rows, -1)
        for one in (features, ranking)
    ]
    return np.hstack(both)


class RankedDecisions(PolicyDecisions, frozen=True, eq=False):
    """
    Decisions on N lists, and the lists.

    Attributes:
        given: What decided each list; None for a row that is not answered.
        lists: The lists; None for a row that is not answered.
    """

    given: list[RankingInput | None]
    lists: list[RankedList | None]


class RankingStage(DecisionStage):
    """
    Rank the candidates of batches, and decide on the lists by a policy.

    Args:
        policy: The policy, with `ranking`.
        catalogue: Items of the release.
        available: Returns the items in stock, by index of the catalogue; bool [I].
        release: Release name in the answers.
        spec_hash: Hash of the feature spec that the release was made for.
        fields: Names of the declared fields.
        canary: Share of the users that the challenger answers; None for none.
    """

    def __init__(
        self,
        policy: Policy,
        catalogue: Catalogue,
        *,
        available: Callable[[], Bool],
        release: str,
        spec_hash: int,
        fields: Sequence[str],
        canary: Canary | None = None,
    ) -> None:
        super().__init__(
            policy, release=release, spec_hash=spec_hash, fields=fields, canary=canary
        )
        rules = policy.ranking
        assert rules is not None
        self._ranking = rules
        self._bound = bind_rules(rules, catalogue)
        self._catalogue = catalogue
        self._available = available
        self._names = np.array([*catalogue.item_ids, b""], np.object_)
        self._segment_field = catalogue.segment_field
        if self._segment_field not in fields:
            self._segment_field = ""
        exploration = rules.exploration
        self._salt = exploration.salt if exploration is not None else ""

    def decide(self, batch: DecisionBatch) -> RankedDecisions:
        """Rank the candidates of each row, and decide on its list."""
        assert isinstance(batch, RankingBatch)
        rows = len(batch.context)
        marks = self.marks(batch.context)
        skipped = np.zeros(rows, np.uint8)
        if marks is not None:
            skipped = marks & np.uint8(BAD | FOREIGN)
        unscored = self._facts(
            batch.context, batch.features, np.zeros((rows, 1), np.float32)
        )
        in_force = self._ranking.in_force(unscored).tolist()
        available = self._available()
        segments = self._segments(batch.context)
        lists: list[RankedList | None] = []
        given: list[RankingInput | None] = []
        for row, bits in enumerate(in_force):
            one = None
            if not skipped[row]:
                one = self._input(
                    batch,
                    row,
                    in_force=bits,
                    available=available,
                    segment=segments[row],
                )
            given.append(one)
            lists.append(None if one is None else self._rank(batch, row, one))
        best = np.array([_best(one) for one in lists], np.float32)
        decided = super().decide(structs.replace(batch, probabilities=best[:, None]))
        columns = {
            name: getattr(decided, name) for name in PolicyDecisions.__struct_fields__
        }
        return RankedDecisions(**columns, given=given, lists=lists)

    def _segments(self, context: Array) -> list[int]:
        """Return the index of each row's segment in the catalogue."""
        name = self._segment_field
        fields = {name: context[f"field_{name}"]} if name else {}
        found: list[int] = self._catalogue.segments_of(
            fields, rows=len(context)
        ).tolist()
        return found

    def _input(
        self,
        batch: RankingBatch,
        row: int,
        *,
        in_force: int,
        available: Bool,
        segment: int,
    ) -> RankingInput:
        """Collect everything that decides the list of a row."""
        ranking, context = batch.ranking[row], batch.context[row]
        if int(ranking["catalogue"]) != self._catalogue.hash:
            found, ours = int(ranking["catalogue"]), self._catalogue.hash
            problem = (
                f"candidates of catalogue {found:016x}, the release has {ours:016x}"
            )
            raise RepositoryError(CATALOGUE_FILE, problem)
        prepared = ranking["prepared_us"]
        relevance = ranking["relevance"] if prepared else batch.probabilities[row]
        age_us = int(context["event_time_us"]) - np.asarray(ranking["event_times_us"])
        length = int(context["transaction_id_length"])
        excluded = np.asarray(ranking["excluded"])
        popular = self._catalogue.popular[segment]
        return RankingInput(
            count=int(ranking["count"]) or self._ranking.items,
            seed=seed_of(context[TRANSACTION_ID].tobytes()[:length], salt=self._salt),
            in_force=in_force,
            candidates=np.asarray(ranking["items"]),
            sources=np.asarray(ranking["sources"]),
            relevance=np.asarray(relevance),
            history_items=np.asarray(ranking["event_items"]),
            history_actions=np.asarray(ranking["event_actions"]),
            history_age_s=np.maximum(age_us, 0) / 1e6,
            excluded=excluded[excluded != NO_ITEM],
            available=available,
            fill=popular[popular != NO_ITEM],
            rival=_rival(batch, row),
        )

    def _rank(self, batch: RankingBatch, row: int, given: RankingInput) -> RankedList:
        ranked = rank_row(given, self._bound)
        if batch.ranking["history_known"][row]:
            return ranked
        sources = np.full_like(ranked.sources, _FALLBACK)
        return structs.replace(ranked, sources=sources)

    def counts(self, batch: RankingBatch) -> list[int]:
        """Return the number of items that each request of a batch gets, K."""
        firsts = batch.bounds[:-1]
        return [
            int(count) or self._ranking.items
            for count in batch.ranking["count"][firsts].tolist()
        ]

    def recorded_probabilities(
        self, batch: DecisionBatch, decided: PolicyDecisions
    ) -> Array:
        """Return the score of each list, as the journal's only probability; [N, 1]."""
        return decided.score[:, None]

    def details(
        self, batch: DecisionBatch, decided: PolicyDecisions
    ) -> list[bytes] | None:
        """Return the records of the lists, per row; empty for a row without one."""
        assert isinstance(batch, RankingBatch)
        assert isinstance(decided, RankedDecisions)
        return [
            b""
            if given is None or ranked is None
            else encode_ranking(
                RankingRecord(
                    self._catalogue.hash,
                    given,
                    ranked,
                    prepared_age_us=time_us - made_us if made_us else None,
                    challenger=self._challenger_of(ranked),
                )
            )
            for given, ranked, time_us, made_us in zip(
                decided.given,
                decided.lists,
                batch.context["event_time_us"].tolist(),
                batch.ranking["prepared_us"].tolist(),
                strict=True,
            )
        ]

    def _challenger_of(self, ranked: RankedList) -> str:
        """Return the challenger whose items a list has; empty for none."""
        if ranked.teams is None or self.canary is None:
            return ""
        return self.canary.release

    def columns(
        self, batch: DecisionBatch, decided: PolicyDecisions, *, marks: Array | None
    ) -> dict[str, Array]:
        """
        Fill the answer's columns.

        Returns:
            `items`, `scores` and `source` [N, K] for the longest list of the batch,
            and [N, 1] each for the others.
        """
        assert isinstance(batch, RankingBatch)
        assert isinstance(decided, RankedDecisions)
        columns = super().columns(batch, decided, marks=marks)
        rows, most = len(decided.lists), max(self.counts(batch))
        places = np.full((rows, most), NO_ITEM, np.int32)
        scores = np.full((rows, most), np.nan, np.float32)
        source = np.full((rows, most), b"", np.object_)
        prepared = batch.ranking["prepared_us"].tolist()
        for row, one in enumerate(decided.lists):
            if one is None:
                continue
            words = _PREPARED_WORDS if prepared[row] else _WORDS
            size = len(one.items)
            places[row, :size] = one.items
            scores[row, :size] = one.scores
            source[row, :size] = words[one.sources]
            source[row, :size][one.items == NO_ITEM] = b""
        lists = {"items": self._names[places], "scores": scores, "source": source}
        return lists | {name: columns[name] for name in _OTHERS}


def _rival(batch: RankingBatch, row: int) -> Array | None:
    """Return the challenger's relevance of an interleaved row; None for another."""
    if batch.rival is None or np.isnan(batch.rival[row]).all():
        return None
    return np.asarray(batch.rival[row])


def _best(ranked: RankedList | None) -> float:
    """Return the score of a list's first item that has one; NaN without any."""
    if ranked is None:
        return np.nan
    scored = ranked.scores[~np.isnan(ranked.scores)]
    return float(scored[0]) if len(scored) else np.nan

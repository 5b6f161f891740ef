"""
Rank sealed lists again from their records, and list the differences.

The history in a record gives the features of its candidates again, the model of the
release their relevance, and the rules of its policy the list. The stock is that of the
record: an item that is not in it counts as in stock.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from tollgate.audit.releases.past_release import OpenedRelease
from tollgate.engine.onnx_session import OnnxSession
from tollgate.errors import JournalError, RepositoryError
from tollgate.ranking.candidates import (
    Events,
    candidate_features,
    score_candidates,
)
from tollgate.ranking.catalogue import CATALOGUE_FILE, RETRIEVAL_FILE, Catalogue
from tollgate.ranking.rank import NONE, RankedList, bind_rules, rank_row
from tollgate.ranking.ranking_record import RankingRecord, decode_ranking, replay_input
from tollgate.repository.models.model_files import MODEL_FILE, arithmetic_of
from tollgate.schema import CANDIDATE_FEATURES, RELEVANCE, SOURCES

F32 = npt.NDArray[np.float32]
Bool = npt.NDArray[np.bool_]

_FALLBACK = SOURCES.index("fallback")
# Columns of a list that are compared, by the name of the difference.
_COLUMNS = {
    "items": "items",
    "item scores": "scores",
    "sources": "sources",
    "propensities": "propensities",
}


class ReplayedList(msgspec.Struct, frozen=True, eq=False):
    """
    A list that was ranked again.

    Attributes:
        best: Score of the first item that has one; NaN without any.
        differences: Descriptions, was → is, by what differs.
    """

    best: float
    differences: dict[str, str]


class ListReplay:
    """
    Ranks the lists of a release again.

    Attributes:
        catalogue: Its items.
        arithmetic: Accuracy that follows from the operators of its model.

    Raises:
        RepositoryError: A file is not in the repository, was changed, or cannot be
            used.
    """

    def __init__(self, release: OpenedRelease) -> None:
        rules = release.policy.ranking
        if rules is None:
            raise RepositoryError(f"release {release.name}", "its policy ranks nothing")
        path = release.files.path(MODEL_FILE)
        self.catalogue = Catalogue.load(release.files.path(CATALOGUE_FILE).parent)
        self.arithmetic = arithmetic_of(path)
        self._model = OnnxSession(path, intra_op_threads=1)
        for name, known in (
            (CANDIDATE_FEATURES, self._model.inputs),
            (RELEVANCE, self._model.outputs),
        ):
            if name not in known:
                raise RepositoryError(path, f"has no tensor {name}")
        self._retrieval = OnnxSession(
            release.files.path(RETRIEVAL_FILE), intra_op_threads=1
        )
        self._bound = bind_rules(rules, self.catalogue)

    def relevance(self, record: RankingRecord) -> F32:
        """Compute the relevance of a record's candidates, alone; float32 [C]."""
        given = record.given
        age_s = given.history_age_s
        if record.prepared_age_us is not None:  # the model saw the ages of that time
            age_s = (np.rint(age_s * 1e6) - record.prepared_age_us) / 1e6
        events = Events(
            items=given.history_items[None],
            actions=given.history_actions[None],
            age_s=age_s[None],
        )
        retrieved = score_candidates(
            self.catalogue,
            self._retrieval,
            events,
            items=given.candidates[None],
            sources=given.sources[None],
        )
        features = candidate_features(self.catalogue, events, retrieved)
        (found,) = self._model.run([RELEVANCE], {CANDIDATE_FEATURES: features})
        relevance: F32 = np.asarray(found[0], np.float32)
        return relevance

    def again(
        self, record: RankingRecord, *, in_force: int, tolerance: float
    ) -> ReplayedList:
        """
        Rank the list of a record again.

        Args:
            record: Of this catalogue.
            in_force: Bit i: the conditions of the policy's i-th ranking rule hold.
            tolerance: Allowed difference of a relevance; within it, the recorded
                relevance is ranked.

        Raises:
            JournalError: The record has an item that the catalogue does not have.
        """
        given = replay_input(record, items=self.catalogue.size)
        differences: dict[str, str] = {}
        was = given.relevance
        # Where the model gave no answer, the record has no relevance at all.
        if not np.isnan(was).all():
            now = self.relevance(record)
            if now.shape != was.shape:
                problem = f"{now.shape[0]} candidates, the record has {was.shape[0]}"
                raise JournalError("the model", f"scores {problem}")
            apart = _apart(was, now, tolerance) & (given.candidates != NONE)
            if apart.any():
                differences["relevance"] = self._relevance_text(
                    record, now=now, apart=apart
                )
                given = msgspec.structs.replace(given, relevance=now)
        given = msgspec.structs.replace(given, in_force=in_force)
        ranked = rank_row(given, self._bound)
        if (record.ranked.sources == _FALLBACK).all():
            # The user's history was not known, so no item can be personal.
            sources = np.full_like(ranked.sources, _FALLBACK)
            ranked = msgspec.structs.replace(ranked, sources=sources)
        for aspect, column in _COLUMNS.items():
            before, after = getattr(record.ranked, column), getattr(ranked, column)
            if before.tobytes() != after.tobytes():
                differences[aspect] = (
                    f"{aspect} {self._column_text(before, column)} → "
                    f"{self._column_text(after, column)}"
                )
        return ReplayedList(best_score(ranked), differences)

    def _relevance_text(self, record: RankingRecord, *, now: F32, apart: Bool) -> str:
        at = int(np.flatnonzero(apart)[0])
        was = record.given.relevance[at]
        item = self._item(int(record.given.candidates[at]))
        text = f"relevance of {item} {float(was):.9g} → {float(now[at]):.9g}"
        more = int(apart.sum()) - 1
        return f"{text}, and of {more} more" if more else text

    def _column_text(self, values: npt.NDArray[np.generic], column: str) -> str:
        if column == "items":
            return ", ".join(self._item(int(one)) for one in values.tolist())
        if column == "sources":
            return ", ".join(SOURCES[one] for one in values.tolist())
        return ", ".join(f"{float(one):.9g}" for one in values.tolist())

    def _item(self, index: int) -> str:
        return "none" if index == NONE else self.catalogue.item_ids[index].decode()


def read_rankings(details: Sequence[bytes | None]) -> list[RankingRecord | str | None]:
    """
    Decode details; None where a record has none, a text where they are damaged.

    Args:
        details: Column of the details in a segment.
    """
    found: list[RankingRecord | str | None] = []
    for raw in details:
        try:
            found.append(decode_ranking(raw) if raw else None)
        except JournalError as exc:
            found.append(str(exc))
    return found


def best_score(ranked: RankedList) -> float:
    """Return the score of a list's first item that has one; NaN without any."""
    scored = ranked.scores[~np.isnan(ranked.scores)]
    return float(scored[0]) if len(scored) else float("nan")


def _apart(was: F32, now: F32, tolerance: float) -> Bool:
    """Return where two values differ by more than a tolerance of their size; [C]."""
    exact = was.astype(np.float64)
    with np.errstate(invalid="ignore"):
        near = np.abs(exact - now) <= tolerance * np.maximum(np.abs(exact), 1.0)
    same = was.view(np.uint32) == now.view(np.uint32)
    both = np.isnan(was) & np.isnan(now)
    apart: Bool = ~(same | both | (near & (tolerance > 0)))
    return apart

"""Decide journalled rows as another release would have decided them."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from tollgate.audit.releases.past_release import OpenedRelease, ReleaseModel
from tollgate.audit.releases.ranking_replay import ListReplay, read_rankings
from tollgate.challenger.decision_counts import Decisions, clusters
from tollgate.engine.batches import decide_in_batches
from tollgate.engine.hysteresis_stage import decide_recorded
from tollgate.errors import InputError
from tollgate.features.spec.description import vector_parts
from tollgate.features.spec.spec_definition import FeatureSpec
from tollgate.journal.decision_record import Records
from tollgate.policy import Policy, RowFacts
from tollgate.ranking.catalogue import CATALOGUE_FILE, Catalogue
from tollgate.ranking.ranking_record import RankingRecord
from tollgate.repository.releases.release_file import spec_hash_text
from tollgate.schema import Degraded

log = logging.getLogger(__name__)

F32 = npt.NDArray[np.float32]
U32 = npt.NDArray[np.uint32]
I64 = npt.NDArray[np.int64]

_MODEL_OUTPUT = np.uint32(Degraded.MODEL_OUTPUT)


class ScoredRows(msgspec.Struct, frozen=True, eq=False):
    """
    Rows as decided originally, and as decided by the other release.

    Attributes:
        recorded: Decisions in the journal.
        other: Decisions of the other release; the latency of a row is that of its batch
            of up to 32 rows.
        worked_us: Total time, µs.
    """

    recorded: Decisions
    other: Decisions
    worked_us: int


class Scorer:
    """
    Decides rows of one release again with another release.

    Attributes:
        segments: Names of the segments.
        money: True if the rows have amounts.

    Raises:
        InputError: The rows lack an input of the other release; the message names it.
        RepositoryError: Its model cannot be loaded.
    """

    def __init__(self, recorded: OpenedRelease, other: OpenedRelease) -> None:
        self._columns = columns_for(recorded.spec, other)
        _require_fields(recorded.spec, other)
        self._lists = _list_places(recorded.policy, other)
        self._recorded, self._other = recorded, other
        self._spec_hash = recorded.spec.spec_hash
        self._model: ReleaseModel | None = None
        self._ranker: ListReplay | None = None
        if other.policy.ranking is None:
            self._model = other.model()
        else:
            _require_catalogue(recorded, other)
            self._ranker = ListReplay(other)
        self.segments = recorded.policy.segments
        self.money = recorded.spec.amount
        self._failure_logged = False

    def fits(self, records: Records) -> bool:
        """Return whether records have the expected features and fields."""
        return (
            records.spec_hash == self._spec_hash
            and {*self._recorded.spec.field_names} <= records.fields.keys()
        )

    def score(self, records: Records) -> ScoredRows:
        """Decide rows again."""
        started_ns = time.perf_counter_ns()
        recorded = recorded_decisions(records)
        facts = _facts(records)
        own = msgspec.structs.replace(
            facts,
            features=np.ascontiguousarray(facts.features[:, self._columns]),
            list_hits=_moved(facts.list_hits, self._lists),
        )
        took_us = np.zeros(len(own.cents), np.int64)
        if self._ranker is not None:
            best, took_us = self._rank(records.details, own, self._ranker)
            own = msgspec.structs.replace(own, probabilities=best[:, None])
        other = self._again(own, recorded.cluster, degraded=records.degraded)
        other = msgspec.structs.replace(other, took_us=other.took_us + took_us)
        worked_us = (time.perf_counter_ns() - started_ns) // 1_000
        return ScoredRows(recorded, other, worked_us)

    def segment(self, records: Records) -> npt.NDArray[np.uint8]:
        """Return rows' segments, by the recorded release's policy; uint8 [N]."""
        policy = self._recorded.policy
        return decide_in_batches(_facts(records), policy=policy).decisions.segment

    def _again(self, facts: RowFacts, cluster: I64, *, degraded: U32) -> Decisions:
        score = self._probabilities if self._ranker is None else None
        found = decide_in_batches(facts, policy=self._other.policy, score=score)
        decided = decide_recorded(
            found.decisions,
            facts.fields,
            settings=self._other.policy.hysteresis,
            degraded=degraded,
        )
        return Decisions(
            decision=decided.decision,
            score=decided.score,
            failed=(decided.degraded & _MODEL_OUTPUT) != 0,
            degraded=decided.degraded != 0,
            took_us=found.took_us,
            cluster=cluster,
        )

    def _rank(
        self, details: Sequence[bytes], facts: RowFacts, ranker: ListReplay
    ) -> tuple[F32, I64]:
        """
        Rank the lists of rows again.

        Returns:
            The score of each list's best item, NaN for none or a list that cannot be
            ranked, and how long each took, µs; [N] each.
        """
        rules = self._other.policy.ranking
        assert rules is not None
        best = np.full(len(facts.cents), np.nan, np.float32)
        took_us = np.zeros(len(best), np.int64)
        in_force = rules.in_force(facts).tolist()
        for row, one in enumerate(read_rankings(details)):
            started_ns = time.perf_counter_ns()
            if isinstance(one, RankingRecord):
                try:
                    alone = msgspec.structs.replace(one.given, rival=None)
                    again = ranker.again(
                        msgspec.structs.replace(one, given=alone),
                        in_force=in_force[row],
                        tolerance=0.0,
                    )
                    best[row] = again.best
                except Exception:  # noqa: BLE001 - onnxruntime's errors share no base
                    self._log_failure()
            took_us[row] = (time.perf_counter_ns() - started_ns) // 1_000
        return best, took_us

    def _log_failure(self) -> None:
        if not self._failure_logged:  # log once, not per batch
            log.exception("%s: its model failed", self._other.name)
        self._failure_logged = True

    def _probabilities(self, facts: RowFacts) -> F32:
        """Run the model; if it fails, its rows have no score."""
        width = len(self._other.policy.labels)
        assert self._model is not None
        try:
            found = self._model.score(facts, self._other.spec)
        except Exception:  # noqa: BLE001 - onnxruntime's errors share no base
            self._log_failure()
            found = np.full((len(facts.cents), width), np.nan, np.float32)
        if found.shape != (len(facts.cents), width):
            found = np.full((len(facts.cents), width), np.nan, np.float32)
        return found


def recorded_decisions(records: Records) -> Decisions:
    """Return the decisions of records; their latencies are those in the server."""
    took = (records.features_us, records.model_us, records.decision_us)
    return Decisions(
        decision=records.decision,
        score=records.score,
        failed=(records.degraded & _MODEL_OUTPUT) != 0,
        degraded=records.degraded != 0,
        took_us=np.sum([one.astype(np.int64) for one in took], axis=0),
        # The ids are those that choose a canary's rows.
        cluster=clusters(records.owner[1]),
    )


def columns_for(recorded: FeatureSpec, other: OpenedRelease) -> list[int]:
    """
    Return the columns of a release's features in the vectors of another release.

    Raises:
        InputError: A feature is missing there, or is defined differently.
    """
    wanted = other.spec
    if wanted.spec_hash == recorded.spec_hash:
        return list(range(len(recorded.features)))
    if wanted.state_hash != recorded.state_hash:
        old, new = spec_hash_text(recorded.spec_hash), spec_hash_text(wanted.spec_hash)
        problem = (
            f"stores another state than the release that answers (features {old} "
            f"and {new}): its vectors cannot be derived from journalled ones; "
            "compare the two offline, with `features build` and `evaluate`"
        )
        raise InputError(other.name, problem)
    places = {one.name: at for at, one in enumerate(recorded.features)}
    columns = []
    for feature in wanted.features:
        at = places.get(feature.name)
        if at is None or vector_parts(recorded.features[at], recorded) != vector_parts(
            feature, wanted
        ):
            what = "not in" if at is None else "defined differently in"
            problem = (
                f"its feature {feature.name} is {what} the vectors of the release that "
                "answers: a shadow can leave features out, and add none"
            )
            raise InputError(other.name, problem)
        columns.append(at)
    return columns


def _require_catalogue(recorded: OpenedRelease, other: OpenedRelease) -> None:
    ours, theirs = (
        Catalogue.decode(one.files.read(CATALOGUE_FILE)) for one in (recorded, other)
    )
    if ours.hash != theirs.hash:
        problem = (
            "its catalogue is not that of the release that answers: the candidates in "
            "the records cannot be ranked with it"
        )
        raise InputError(other.name, problem)


def _require_fields(recorded: FeatureSpec, other: OpenedRelease) -> None:
    there = {one.name: one for one in recorded.fields}
    for one in other.spec.fields:
        if there.get(one.name) != one:
            problem = (
                f"its field {one.name} is not declared like this by the release that "
                "answers"
            )
            raise InputError(other.name, problem)


def _list_places(recorded: Policy, other: OpenedRelease) -> list[int]:
    """Return the positions of a policy's lists among those that were looked up."""
    places = {(one.name, one.of): at for at, one in enumerate(recorded.lists)}
    found = []
    for one in other.policy.lists:
        if (one.name, one.of) not in places:
            problem = (
                "the release that answers does not look up its list "
                f"{one.name} of {one.of}"
            )
            raise InputError(other.name, problem)
        found.append(places[one.name, one.of])
    return found


def _moved(hits: U32, places: Sequence[int]) -> U32:
    moved = np.zeros_like(hits)
    for at, place in enumerate(places):
        moved |= (hits >> np.uint32(place) & np.uint32(1)) << np.uint32(at)
    return moved


def _facts(records: Records) -> RowFacts:
    return RowFacts(
        probabilities=records.probabilities,
        features=records.features,
        cents=records.cents,
        degraded=records.degraded & ~_MODEL_OUTPUT,  # the policy sets it again
        event_time_us=records.event_time_us,
        list_hits=records.list_hits,
        fields=records.fields,
    )

"""The last stage: probabilities to decisions, and the columns of the answer."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import numpy.typing as npt

from tollgate import compiled
from tollgate.engine.hysteresis_stage import (
    EVIDENCE_FIELDS,
    AnsweredDecisions,
    HysteresisStage,
)
from tollgate.policy import (
    Policy,
    PolicyDecisions,
    RowFacts,
    decide,
    needs_model,
)
from tollgate.schema import (
    CANARY_PERCENT_PARAMETER,
    CANARY_SEED_PARAMETER,
    CHALLENGER_PARAMETER,
    INTERLEAVED_PARAMETER,
    TRANSACTION,
    context_dtype,
)
from tollgate.store.stored_decisions import read_stored_decisions

if TYPE_CHECKING:
    from typing_extensions import Self

Array = npt.NDArray[Any]

# Divide customers between a release and its challenger.

_PARTS = 2**32


def in_share(
    ids: Sequence[bytes], *, percent: float, seed: int
) -> npt.NDArray[np.bool_]:
    """
    Return which ids are in a share.

    The hash of an id (BLAKE2b, keyed by the seed) maps it to a number between 0 and
    100; the id is in the share when that number is below the percentage. So a larger
    share contains all of a smaller one, and shares of different seeds are independent.

    Args:
        ids: N ids.
        percent: 0 for none to 100 for all.
        seed: 0 to 2**64 - 1.

    Returns:
        bool [N].
    """
    blake2b, key = hashlib.blake2b, seed.to_bytes(8, "little")
    hashes = b"".join([blake2b(one, digest_size=4, key=key).digest() for one in ids])
    places = np.frombuffer(hashes, "<u4").astype(np.float64) * (100.0 / _PARTS)
    chosen: npt.NDArray[np.bool_] = places < percent
    return chosen


# Marks of rows that leave no record, as bits.
DRY, BAD, STORED, FOREIGN = 1, 2, 4, 8
_LAYOUT: Mapping[str, Any] = context_dtype(()).fields or {}  # starts every context
_MARKING = ("dry_run", "bad", "earlier_length", "spec_hash")
_OFFSETS = [_LAYOUT[name][1] for name in _MARKING]


def row_marks(context: Array, *, spec_hash: int) -> Array | None:
    """
    Mark rows that are a dry run, bad, decided before, or of another spec.

    Args:
        context: Of tollgate.schema.context_dtype; [N].
        spec_hash: Hash of the spec that the release was made for.

    Returns:
        Bits, uint8 [N]; None, as mostly, if no row has one.
    """
    if compiled.decisions is not None and compiled.decisions.are_unmarked(
        context, spec_hash, *_OFFSETS
    ):
        return None
    stored = context["earlier_length"] > 0
    foreign = context["spec_hash"] != spec_hash
    if not np.count_nonzero(context["dry_run"] | context["bad"] | stored | foreign):
        return None
    marks = np.where(context["dry_run"], np.uint8(DRY), np.uint8(0))
    for found, mark in (
        (context["bad"] > 0, BAD),
        (stored, STORED),
        (foreign, FOREIGN),
    ):
        marks[found] |= mark
    return marks


# Route a share of the entities to the challenger's model inside the decision step.


class Canary(msgspec.Struct, frozen=True):
    """
    Describe the share of entities for which the challenger's model decides.

    Attributes:
        release: Release name in these answers.
        percent: Share of the ids, 0 to 100.
        seed: Seed of the hash that assigns ids to the share.
        entity: Entity whose ids are hashed: the first of the spec, or the transaction
            if the spec has no entities or the canary is interleaved.
        interleaved: True if the challenger answers no row alone: in the lists of its
            share, both models pick the items in turns.
    """

    release: str
    percent: float
    seed: int
    entity: str
    interleaved: bool = False

    def rows(self, context: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        """Return which rows of a batch the challenger answers; bool [N]."""
        name = f"{self.entity}_id"
        lengths = context[f"{name}_length"].tolist()
        raw = context[name].tobytes()
        width = context[name].dtype.itemsize
        ids = [
            raw[row * width : row * width + length]
            for row, length in enumerate(lengths)
        ]
        return in_share(ids, percent=self.percent, seed=self.seed)

    def divide(
        self, context: Array, output: Array, *, theirs: Callable[[], Array]
    ) -> tuple[Array, Array | None, Array | None]:
        """
        Divide a batch between both models.

        Args:
            context: Of tollgate.schema.context_dtype; [N].
            output: Output of the release's model; [N, ...].
            theirs: Returns that of the challenger's.

        Returns:
            The output of the model that decides each row; which rows are the
            challenger's, None if it is interleaved; and then its output where it is,
            NaN in other rows, None for no row.
        """
        share = self.rows(context)
        chosen = None if self.interleaved else share
        if not share.any():
            return output, chosen, None
        if self.interleaved:
            rival = np.where(share[:, None], theirs(), np.float32(np.nan))
            return output, None, rival
        return np.where(share[:, None], theirs(), output), chosen, None


def read_canary(
    parameters: Mapping[str, str], entities: Sequence[str]
) -> Canary | None:
    """Read the challenger from the release's parameters; None when there is none."""
    release = parameters.get(CHALLENGER_PARAMETER, "")
    if not release:
        return None
    interleaved = INTERLEAVED_PARAMETER in parameters
    return Canary(
        release=release,
        percent=float(parameters[CANARY_PERCENT_PARAMETER]),
        seed=int(parameters[CANARY_SEED_PARAMETER]),
        entity=entities[0] if entities and not interleaved else TRANSACTION,
        interleaved=interleaved,
    )


class DecisionBatch(msgspec.Struct, frozen=True, eq=False):
    """
    Hold the rows of all requests of a dynamic batch.

    Attributes:
        context: Of `tollgate.schema.context_dtype`; [N], contiguous.
        features: [N, F].
        probabilities: float32 [N, K], of the model that decides each row.
        chosen: True where that model is the challenger's; bool [N], None without a
            challenger.
        bounds: First row of each request, then the end of the last.
        began_us: Time at which the step took the batch, on the monotonic clock.
    """

    context: Array
    features: Array
    probabilities: Array
    chosen: Array | None
    bounds: list[int]
    began_us: int

    @property
    def signed(self) -> Array:
        """Return what the tag of a context covers besides the context; [N, ...]."""
        return self.features

    def requests(self, positions: Sequence[int]) -> Self:
        """Copy the rows of some requests, at least one."""
        spans = [np.arange(*self.bounds[at : at + 2]) for at in positions]
        rows = np.concatenate(spans)
        columns = {
            name: getattr(self, name)[rows]
            for name in self.__struct_fields__
            if isinstance(getattr(self, name), np.ndarray)
        }
        bounds = list(itertools.accumulate(map(len, spans), initial=0))
        return msgspec.structs.replace(self, **columns, bounds=bounds)


def recorded_fields(policy: Policy, fields: Sequence[str]) -> tuple[str, ...]:
    """Return the names of a record's fields: declared ones, and those of evidence."""
    return (*fields, *EVIDENCE_FIELDS) if policy.hysteresis is not None else (*fields,)


class DecisionStage:
    """
    Decide batches by a policy, in the name of a release.

    Args:
        policy: The policy.
        release: Release name in the answers.
        spec_hash: Hash of the feature spec that the release was made for.
        fields: Names of the declared fields.
        canary: Share of the entities that the challenger answers; None for none.
        hysteresis: Applies the hysteresis of the policy; None for a policy without it.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        release: str,
        spec_hash: int,
        fields: Sequence[str],
        canary: Canary | None = None,
        hysteresis: HysteresisStage | None = None,
    ) -> None:
        self.canary = canary
        self._policy = policy
        self._hysteresis = hysteresis
        self._release = release.encode()
        self._spec_hash = spec_hash
        words = [word.encode() for word in policy.outcomes.words]
        self._words = np.array(words, np.object_)
        conditions = {one.name for one in policy.tables.named}
        if policy.ranking is not None:
            conditions |= {one.name for one in policy.ranking.tables.named}
        self._fields = tuple(name for name in fields if name in conditions)
        self._usual: dict[int, tuple[Array, Array]] = {}  # columns by number of rows

    def decide(self, batch: DecisionBatch) -> PolicyDecisions:
        """
        Apply the policy, and then its hysteresis.

        A row changes the state of its machine once, however often it is decided.
        """
        facts = self._facts(batch.context, batch.features, batch.probabilities)
        decided = decide(facts, policy=self._policy)
        if self._hysteresis is None:
            return decided
        marks = self.marks(batch.context)
        return self._hysteresis.apply(
            batch.context,
            decided,
            bounds=batch.bounds,
            skipped=None if marks is None else (marks & ~np.uint8(DRY)) > 0,
        )

    def close(self) -> None:
        """Close the store of the hysteresis."""
        if self._hysteresis is not None:
            self._hysteresis.close()

    def needs_model(self, context: Array, features: Array) -> bool:
        """
        Return whether a row needs its probabilities.

        None does that is bad, has a stored decision, or is decided by a rule before the
        model: nothing of its probabilities reaches the answer or the journal.
        """
        done = (context["earlier_length"] > 0) | (context["bad"] > 0)
        if not self._policy.before_model:
            return not done.all()
        unknown = np.zeros((len(context), len(self._policy.labels)), np.float32)
        facts = self._facts(context, features, unknown)
        return needs_model(facts, done, policy=self._policy)

    def recorded_probabilities(
        self, batch: DecisionBatch, decided: PolicyDecisions
    ) -> Array:
        """
        Return the probabilities for the journal, float32 [N, K].

        They are NaN where a rule decided before the model, whether or not it ran.
        """
        if not self._policy.before_model:
            return batch.probabilities
        unscored = self._policy.unscored(decided.rules)[:, None]
        return np.where(unscored, np.float32(np.nan), batch.probabilities)

    def details(
        self, batch: DecisionBatch, decided: PolicyDecisions
    ) -> list[bytes] | None:
        """Return what the journal's records have besides, per row; None for nothing."""
        return None

    def recorded_context(self, context: Array, decided: PolicyDecisions) -> Array:
        """
        Return the context for the journal, [N].

        With hysteresis, each row ends with the evidence of its answer, as if that were
        more declared fields: `recorded_fields` names them.
        """
        if not isinstance(decided, AnsweredDecisions):
            return context
        rows = len(context)
        evidence = decided.evidence.astype("<i8").view(np.uint8).reshape(rows, -1)
        both = np.hstack((context.view(np.uint8).reshape(rows, -1), evidence))
        columns = [(name, "<i8") for name in EVIDENCE_FIELDS]
        return both.view(np.dtype([("context", context.dtype), *columns]))[:, 0]

    def _facts(self, context: Array, features: Array, probabilities: Array) -> RowFacts:
        return RowFacts(
            probabilities=probabilities,
            features=features,
            cents=context["cents"],
            degraded=context["degraded"],
            event_time_us=context["event_time_us"],
            list_hits=context["list_hits"],
            fields={name: context[f"field_{name}"] for name in self._fields},
        )

    def marks(self, context: Array) -> Array | None:
        """Mark the unusual rows of a batch; see `row_marks`."""
        return row_marks(context, spec_hash=self._spec_hash)

    def columns(
        self, batch: DecisionBatch, decided: PolicyDecisions, *, marks: Array | None
    ) -> dict[str, Array]:
        """Fill the answer's columns, [N, 1] each; `marks` are those of `row_marks`."""
        context = batch.context
        errors, releases = self._usual_columns(len(context))
        if marks is not None or self.canary is not None:
            errors, releases = errors.copy(), releases.copy()
        columns = {
            "decision": self._words[decided.decision],
            "score": decided.score,
            "reason_codes": decided.reason_codes,
            "degraded": decided.degraded,
            "error": errors,
            "release": releases,
        }
        if self.canary is not None and batch.chosen is not None:
            columns["release"][batch.chosen] = self.canary.release.encode()
        if marks is not None and len(stored := np.flatnonzero(marks & STORED)):
            earlier = read_stored_decisions(context["earlier"][stored])
            columns["decision"][stored] = self._words[earlier.decision]
            for name in ("score", "reason_codes", "degraded", "release"):
                columns[name][stored] = getattr(earlier, name)
        if marks is not None and len(bad := np.flatnonzero(marks & BAD)):
            columns["decision"][bad] = b""
            columns["score"][bad] = np.nan
            columns["reason_codes"][bad] = b""
            columns["degraded"][bad] = 0
            for row in bad.tolist():
                length = int(context["error_length"][row])
                columns["error"][row] = context["error"][row].tobytes()[:length]
        return {name: column[:, None] for name, column in columns.items()}

    def _usual_columns(self, rows: int) -> tuple[Array, Array]:
        """Return `error` and `release` of a usual batch, made once for each size."""
        found = self._usual.get(rows)
        if found is None:
            found = self._usual[rows] = (
                np.full(rows, b"", np.object_),
                np.full(rows, self._release, np.object_),
            )
        return found

"""
Decide sealed records again from their vectors, and list the differences.

The vector of each record goes through the model.onnx of the release, and the
probabilities through its policy.yaml. The list of a product that ranks items is ranked
again first. Replay proves nothing about the files; `verify` does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from tollgate.audit.chain.chain import Chain
from tollgate.audit.releases.archive import ReleaseArchive
from tollgate.audit.releases.past_release import (
    OpenedRelease,
    ReleaseModel,
    open_release,
)
from tollgate.audit.releases.ranking_replay import (
    ListReplay,
    ReplayedList,
    read_rankings,
)
from tollgate.audit.releases.record_rows import (
    DETAILS,
    EVENT,
    FEATURE,
    FIELD,
    PROBABILITY,
    SEQUENCE,
    WRITER,
    levels_of,
    read_table,
)
from tollgate.engine.batches import decide_in_batches
from tollgate.engine.hysteresis_stage import (
    EVIDENCE_FIELDS,
    decide_recorded,
    recorded_levels,
)
from tollgate.errors import JournalError, TollgateError
from tollgate.features.spec.spec_definition import FeatureSpec
from tollgate.features.windows.entity_entries import MISSING
from tollgate.policy import PolicyDecisions, RowFacts, without_model
from tollgate.ranking.ranking_record import RankingRecord
from tollgate.repository.releases.release_file import spec_hash_text
from tollgate.schema import Degraded, Outcomes

# Convert sealed records into the row facts that a policy decides on.

# The decision step sets these bits itself: from the probabilities, and after the
# policy.
_MADE_LATER = np.uint32(
    0xFFFFFFFF & ~int(Degraded.MODEL_OUTPUT | Degraded.HYSTERESIS_UNREAD)
)


def facts_of(table: pl.DataFrame, spec: FeatureSpec) -> RowFacts:
    """
    Return the facts of rows that were known when they were decided.

    Args:
        table: Rows of a segment that have consent.

    Raises:
        KeyError: A feature has no column; holds its name.
    """
    names = [name for name in table.columns if name.startswith(PROBABILITY)]
    return RowFacts(
        probabilities=_floats(table, names),
        features=_floats(table, feature_columns(table, spec.feature_names)),
        cents=table["amount_cents"].to_numpy(),
        degraded=table["degraded"].to_numpy() & _MADE_LATER,
        event_time_us=table[EVENT].to_physical().to_numpy(),
        list_hits=table["list_hits"].to_numpy(),
        fields={one.name: _field(table, one.name) for one in spec.fields},
    )


def evidence_of(table: pl.DataFrame) -> dict[str, npt.NDArray[np.int64]]:
    """Return the evidence of hysteresis in records; empty if they have none."""
    if FIELD + EVIDENCE_FIELDS[0] not in table.columns:
        return {}
    return {name: _field(table, name) for name in EVIDENCE_FIELDS}


def feature_columns(table: pl.DataFrame, names: Sequence[str]) -> list[str]:
    """
    Return the column names of features; some segments number them instead.

    Raises:
        KeyError: A feature has no column; holds its name.
    """
    found = []
    for at, name in enumerate(names):
        known = [
            FEATURE + one for one in (name, str(at)) if FEATURE + one in table.columns
        ]
        if not known:
            raise KeyError(name)
        found.append(known[0])
    return found


def _floats(table: pl.DataFrame, names: Sequence[str]) -> npt.NDArray[np.float32]:
    columns = [table[name].to_numpy() for name in names]
    stacked: npt.NDArray[np.float32] = np.stack(columns, axis=1).astype(np.float32)
    return stacked


def _field(table: pl.DataFrame, name: str) -> npt.NDArray[np.int64]:
    if FIELD + name not in table.columns:
        return np.full(len(table), MISSING, np.int64)
    values: npt.NDArray[np.int64] = table[FIELD + name].to_numpy()
    return values


# Compare sealed decisions with decisions computed now; describe the differences.

Bool = npt.NDArray[np.bool_]
F32 = npt.NDArray[np.float32]


def near_rows(was: F32, now: F32, tolerance: float) -> Bool:
    """
    Return which rows have equal bits or differ by at most `tolerance`; bool [N].

    A number, which is one column, may differ by so much of its size.
    """
    same = _same_bits(was, now)
    if tolerance:
        exact = was.astype(np.float64)
        size = np.maximum(np.abs(exact), 1.0) if was.shape[1] == 1 else 1.0
        with np.errstate(invalid="ignore"):
            same |= np.abs(exact - now) <= tolerance * size
    near: Bool = same.all(axis=1)
    return near


def _same_bits(was: F32, now: F32) -> Bool:
    """Compare bit by bit; any two NaN are equal."""
    same: Bool = was.view(np.uint32) == now.view(np.uint32)
    both: Bool = np.isnan(was) & np.isnan(now)
    return same | both


def wrong_by_aspect(
    rows: pl.DataFrame, decided: PolicyDecisions, *, outcomes: Outcomes, rules: bool
) -> dict[str, Bool]:
    """
    Return by aspect which rows differ; bool [N] each.

    Decisions are compared by level: another release may have other words.

    Args:
        outcomes: Words of the recorded decisions.
        rules: False for another release: its rule bits have other meanings.
    """
    codes = [one.decode() for one in decided.reason_codes.tolist()]
    score = np.ascontiguousarray(rows["score"].to_numpy(), np.float32)
    found: dict[str, Bool] = {
        "score": ~_same_bits(score, decided.score),
        "decision": levels_of(rows["decision"], outcomes) != decided.decision,
        "codes": (rows["reason_codes"] != pl.Series(codes, dtype=pl.String)).to_numpy(),
        "degraded": rows["degraded"].to_numpy() != decided.degraded,
    }
    if rules:
        found["rules"] = rows["rules"].to_numpy() != decided.rules
    return found


def describe_difference(
    aspect: str,
    row: int,
    rows: pl.DataFrame,
    decided: PolicyDecisions,
    *,
    was: F32,
    now: F32,
    words: Sequence[str],
) -> str:
    """
    Describe one aspect of a record: value as sealed → value computed now.

    Args:
        words: Words of the computed decisions.
    """
    if aspect == "probabilities":
        return f"probabilities {_numbers(was[row])} → {_numbers(now[row])}"
    if aspect == "score":
        return f"score {_numbers([rows['score'][row]])} → " + _numbers(
            [decided.score[row]]
        )
    if aspect == "raw level":
        level = recorded_levels(evidence_of(rows[row : row + 1]))[0]
        return f"raw level {words[level]} → another one"
    if aspect == "decision":
        return f"decision {rows['decision'][row]} → {words[decided.decision[row]]}"
    if aspect == "codes":
        after = decided.reason_codes[row].decode()
        return f"codes {rows['reason_codes'][row] or 'none'} → {after or 'none'}"
    if aspect == "degraded":
        return f"degraded {rows['degraded'][row]:#x} → {int(decided.degraded[row]):#x}"
    return f"rules {rows['rules'][row]:#b} → {int(decided.rules[row]):#b}"


def _numbers(values: Sequence[float] | F32) -> str:
    """Write float32 values so that different bits give different texts."""
    return ", ".join(f"{float(one):.9g}" for one in values)


MOST_NAMED = 100  # differing records; the rest are counted


class Difference(msgspec.Struct, frozen=True):
    """A record that is decided differently: its name, and the differences, was → is."""

    record: str
    release: str
    what: tuple[str, ...]


class ReleaseReplay(msgspec.Struct):
    """
    Result of the records that one release decided.

    Attributes:
        release: Release that decided the records.
        through: Release that decided them again.
        promise: Required accuracy of its probabilities, as text.
        problem: Cause why no record was decided again; empty if they were.
        same: Number of records with the same result.
        withheld: Number of records without a vector, for lack of consent.
        foreign: Number of records with a vector of another feature spec, or a list of
            another catalogue, than the release's.
        without_list: Number of records without the details of their list.
        differing: Number of records with a different result.
        aspects: Number of differing records by aspect; a record may have several.
    """

    release: str
    through: str
    promise: str = ""
    problem: str = ""
    rows: int = 0
    same: int = 0
    withheld: int = 0
    foreign: int = 0
    without_list: int = 0
    differing: int = 0
    aspects: dict[str, int] = {}


class ReplayResult(msgspec.Struct, frozen=True):
    """
    Result of the replay of a journal.

    Attributes:
        parts: Results by release, in the order in which releases first decided.
        differences: The first MOST_NAMED records that differ.
    """

    parts: list[ReleaseReplay]
    differences: list[Difference]

    @property
    def sound(self) -> bool:
        """Return whether no release had a problem and no record differs."""
        return not any(one.problem or one.differing for one in self.parts)


class _Decider(msgspec.Struct, frozen=True, eq=False):
    """An opened release with its model, of which it has one."""

    release: OpenedRelease
    model: ReleaseModel | ListReplay
    tolerance: float


def replay(
    chain: Chain,
    releases: ReleaseArchive,
    *,
    repository: Path | None,
    through: str | None = None,
    tolerance: float | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> ReplayResult:
    """
    Decide all records of a journal again.

    Args:
        repository: Model repository with their models; None for none.
        through: Release that decides all records; None for each record's own.
        tolerance: Allowed difference of a probability; None for the tolerance that
            follows from the operators of the graph.
        progress: Called with (segments done, segments in total).

    Raises:
        JournalError: A segment cannot be read.
    """
    deciders: dict[str, _Decider | str] = {}
    parts: dict[str, ReleaseReplay] = {}
    differences: list[Difference] = []

    def decider(name: str) -> _Decider | str:
        if name not in deciders:
            deciders[name] = _opened(
                name, chain, releases, repository=repository, tolerance=tolerance
            )
        return deciders[name]

    segments = chain.alive("segment")
    for done, link in enumerate(segments, start=1):
        table = read_table(chain.folder, link)
        for (name,), own in table.group_by("release", maintain_order=True):
            release = str(name)
            part = parts.setdefault(release, ReleaseReplay(release, through or release))
            found = decider(part.through)
            part.rows += len(own)
            if isinstance(found, str):
                part.problem = found
            else:
                part.promise = _promise(found)
                outcomes = releases.outcomes(release)
                differences += _again(own, found, part, outcomes=outcomes)
                del differences[MOST_NAMED:]
        progress(done, len(segments))
    return ReplayResult(list(parts.values()), differences)


def _opened(
    name: str,
    chain: Chain,
    releases: ReleaseArchive,
    *,
    repository: Path | None,
    tolerance: float | None,
) -> _Decider | str:
    """Open a release, or return the reason why it cannot be opened."""
    try:
        release = open_release(
            name,
            archived=releases.get(name),
            repository=repository,
            product=chain.links[0].product,
        )
        ranks = release.policy.ranking is not None
        model = ListReplay(release) if ranks else release.model()
    except TollgateError as exc:
        return str(exc)
    allowed = model.arithmetic.tolerance if tolerance is None else tolerance
    return _Decider(release, model, allowed)


def _promise(found: _Decider) -> str:
    if found.tolerance == found.model.arithmetic.tolerance:
        return str(found.model.arithmetic)
    return f"within {found.tolerance:g}, as requested"


def _again(
    own: pl.DataFrame, found: _Decider, part: ReleaseReplay, *, outcomes: Outcomes
) -> list[Difference]:
    """
    Decide the records of one release in one segment again, and count the results.

    Args:
        outcomes: Words of the recorded decisions.
    """
    spec = spec_hash_text(found.release.spec.spec_hash)
    fits = own["spec"] == spec
    part.withheld += int((~own["consent"]).sum())
    part.foreign += int((own["consent"] & ~fits).sum())
    rows = own.filter(pl.col("consent") & (pl.col("spec") == spec))
    rankings: list[RankingRecord | str] = []
    if isinstance(found.model, ListReplay):
        rows, rankings = _with_lists(rows, found.model, part)
    if rows.is_empty():
        return []
    try:
        facts = facts_of(rows, found.release.spec)
    except KeyError as exc:
        part.problem = f"records have no feature {exc.args[0]}"
        return []
    lists: list[ReplayedList] = []
    if isinstance(found.model, ListReplay):
        lists = _lists_again(rankings, facts, found)
        computed = np.array([[one.best] for one in lists], np.float32)
    else:
        computed = found.model.score(facts, found.release.spec)
    if computed.shape != facts.probabilities.shape:
        classes = facts.probabilities.shape[1]
        part.problem = f"has {computed.shape[1]} classes, its records have {classes}"
        return []
    # The record of a row that a rule decides before the model has no probabilities.
    early = without_model(facts, policy=found.release.policy)
    computed[early] = np.nan
    near = near_rows(facts.probabilities, computed, found.tolerance)
    # Probabilities within the tolerance count as equal. Then the policy must agree
    # exactly on the recorded ones.
    used = np.where(near[:, None], facts.probabilities, computed)
    facts_used = msgspec.structs.replace(facts, probabilities=used)
    decided = decide_in_batches(facts_used, policy=found.release.policy).decisions
    evidence = evidence_of(rows)
    wrong: dict[str, Bool] = {}
    for aspect in dict.fromkeys(name for one in lists for name in one.differences):
        wrong[aspect] = np.array([aspect in one.differences for one in lists])
    wrong["probabilities"] = ~near
    if evidence and part.through == part.release:
        wrong["raw level"] = recorded_levels(evidence) != decided.decision
    decided = decide_recorded(
        decided,
        evidence,
        settings=found.release.policy.hysteresis,
        degraded=rows["degraded"].to_numpy(),
    )
    wrong |= wrong_by_aspect(
        rows,
        decided,
        outcomes=outcomes,
        rules=part.through == part.release,
    )
    any_wrong: Bool = np.any(list(wrong.values()), axis=0)
    part.differing += int(any_wrong.sum())
    part.same += int((~any_wrong).sum())
    for aspect, where in wrong.items():
        if where.any():
            part.aspects[aspect] = part.aspects.get(aspect, 0) + int(where.sum())
    return [
        Difference(
            record=f"{rows[WRITER][row]}:{rows[SEQUENCE][row]}",
            release=part.release,
            what=tuple(
                lists[row].differences[aspect]
                if lists and aspect in lists[row].differences
                else describe_difference(
                    aspect,
                    row,
                    rows,
                    decided,
                    was=facts.probabilities,
                    now=computed,
                    words=found.release.policy.outcomes.words,
                )
                for aspect, where in wrong.items()
                if where[row]
            ),
        )
        for row in np.flatnonzero(any_wrong)[:MOST_NAMED].tolist()
    ]


def _with_lists(
    rows: pl.DataFrame, lists: ListReplay, part: ReleaseReplay
) -> tuple[pl.DataFrame, list[RankingRecord | str]]:
    """Return the rows with a list of the release's catalogue, and their lists."""
    none: list[bytes | None] = [None] * len(rows)
    details = rows[DETAILS].to_list() if DETAILS in rows.columns else none
    rankings = read_rankings(details)
    chosen, found = [], []
    for row, one in enumerate(rankings):
        if one is None:
            part.without_list += 1
        elif isinstance(one, str) or one.catalogue_hash == lists.catalogue.hash:
            chosen.append(row)
            found.append(one)
        else:
            part.foreign += 1
    return rows[chosen], found


def _lists_again(
    rankings: Sequence[RankingRecord | str], facts: RowFacts, found: _Decider
) -> list[ReplayedList]:
    """Rank the lists of rows again."""
    rules = found.release.policy.ranking
    assert rules is not None
    assert isinstance(found.model, ListReplay)
    replayed = []
    for one, in_force in zip(rankings, rules.in_force(facts).tolist(), strict=True):
        try:
            if isinstance(one, str):
                raise JournalError("details", one)
            again = found.model.again(one, in_force=in_force, tolerance=found.tolerance)
        except JournalError as exc:
            again = ReplayedList(float("nan"), {"details": str(exc)})
        replayed.append(again)
    return replayed

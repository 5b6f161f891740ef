"""
Estimate what users would have done with the lists of another policy.

Exploration shows each item at a position with a known probability, which the journal
has. Where the other policy would have shown the same item at the same position, its
response counts, divided by that probability; all others count 0: inverse propensity
scoring. On average this is the other policy's number of responses, as long as a
response depends on the item and its position, and not on the rest of the list.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from tollgate.audit.chain.chain import Chain
from tollgate.audit.releases.archive import ReleaseArchive
from tollgate.audit.releases.journal_replay import facts_of
from tollgate.audit.releases.past_release import OpenedRelease, open_release
from tollgate.audit.releases.ranking_replay import read_rankings
from tollgate.audit.releases.record_rows import DETAILS, SUBJECT, read_table
from tollgate.audit.review.list_responses import ItemEvents, responses_of
from tollgate.audit.worker.pseudonyms import Subjects, pseudonym
from tollgate.errors import InputError, JournalError, TollgateError
from tollgate.policy import Policy
from tollgate.policy.ranking_rules import RankingRules
from tollgate.ranking.catalogue import CATALOGUE_FILE, Catalogue
from tollgate.ranking.rank import NONE, CatalogueRules, bind_rules, rank_row
from tollgate.ranking.ranking_record import RankingRecord, replay_input
from tollgate.repository.releases.release_file import spec_hash_text

_NORMAL = 1.959964  # half the width of a 95 % interval, in standard deviations

Bool = npt.NDArray[np.bool_]
F64 = npt.NDArray[np.float64]
I8 = npt.NDArray[np.int8]
I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]


class Value(msgspec.Struct, frozen=True):
    """
    Responses per list, its variance, and its 95 % interval.

    The variance is that between users, whose lists are not independent.
    """

    value: float
    variance: float
    low: float
    high: float


class ActionValue(msgspec.Struct, frozen=True):
    """
    Responses of one kind.

    Attributes:
        action: One of `schema.ACTIONS`, or "any". An item at a position has at most one
            response.
        before: As the lists were shown, or as another policy would have shown them.
        after: As the new policy would have shown them.
        difference: `after` - `before`, of the same lists.
        self_normalized: `after`, divided by the mean weight: less variance, and a bias
            that vanishes with more lists.
    """

    action: str
    before: Value
    after: Value
    difference: Value
    self_normalized: Value


class OffPolicyEstimate(msgspec.Struct, frozen=True):
    """
    Estimate of the responses to the lists of a policy without its exploration.

    Attributes:
        lists: Lists that were explored.
        users: Users who got them.
        left_out: Number of lists by the reason why they are left out.
        within_s: Time after a list in which an event is a response to it, s.
        same_positions: Share of the positions at which the new policy shows the item
            that was shown.
        mean_weight: Mean over positions of the weight; about 1. It lacks the share of
            the positions at which exploration could not show the new policy's item: the
            estimate counts 0 responses there.
        effective_sample_size: Positions that would give the same variance if all
            weights were equal.
        actions: Estimates by action.
    """

    lists: int
    users: int
    left_out: dict[str, int]
    within_s: float
    same_positions: float
    mean_weight: float
    effective_sample_size: float
    actions: tuple[ActionValue, ...]


class Positions(msgspec.Struct, frozen=True, eq=False):
    """
    Items that were shown at the positions of L lists; P rows.

    Attributes:
        list_index: Number of the list; int64 [P].
        users: Pseudonym of the list's user; by list.
        time_us: Time of the list's request; int64 [L].
        items: Ids of the items, by row.
        propensities: Probability that this position showed this item; float64 [P].
        before, after: True where the old and the new policy show this item at this
            position; bool [P]. `before` is None for the lists as shown.
    """

    list_index: I64
    users: Sequence[str]
    time_us: I64
    items: Sequence[str]
    propensities: F64
    before: Bool | None
    after: Bool


def estimate_lists(
    chain: Chain,
    releases: ReleaseArchive,
    *,
    repository: Path | None,
    new: Policy,
    old: Policy | None,
    events: ItemEvents,
    subjects: Subjects,
    within_s: float,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> OffPolicyEstimate:
    """
    Estimate the responses to the lists that another policy makes of the same records.

    Args:
        repository: Model repository with the catalogues; None for none.
        new: Policy that ranks.
        old: Policy to compare with; None for the lists as shown.
        events: What users did.
        subjects: Keys of the journal's subjects.
        within_s: Time after a list in which an event is a response to it, s.
        progress: Called with (segments done, segments in total).

    Raises:
        InputError: No list was explored.
        JournalError: A segment or the keys cannot be read.
    """
    found = _Lists(chain, releases, repository=repository, new=new, old=old)
    segments = chain.alive("segment")
    for done, link in enumerate(segments, start=1):
        found.add(read_table(chain.folder, link))
        progress(done, len(segments))
    positions = found.positions()
    if not len(positions.time_us):
        reasons = ", ".join(f"{n:,} {why}" for why, n in found.left_out.items())
        problem = (
            "no list was explored, so no estimate is possible: the policy that is "
            "served needs a section `ranking.exploration`"
        )
        raise InputError(chain.folder, f"{problem} (lists: {reasons or 'none'})")
    keys = subjects.known(found.entity, [one.encode() for one in set(events.users)])
    names = {
        one.decode(): pseudonym(key, found.entity, one) for one, key in keys.items()
    }
    return estimate(
        positions,
        events.renamed(names),
        within_s=within_s,
        left_out=dict(found.left_out),
    )


def estimate(
    positions: Positions,
    events: ItemEvents,
    *,
    within_s: float,
    left_out: dict[str, int],
) -> OffPolicyEstimate:
    """
    Estimate responses from positions and events.

    Args:
        positions: At least one list.
        events: With the same names of users as the positions.
        within_s: Time after a list in which an event is a response to it, s.
        left_out: Lists that are not among the positions, by reason.
    """
    weights = positions.after / positions.propensities
    if positions.before is None:
        old_weights = np.ones(len(weights))
    else:
        old_weights = positions.before / positions.propensities
    lists = len(positions.users)
    user_index = {name: at for at, name in enumerate(dict.fromkeys(positions.users))}
    of_list = np.array([user_index[name] for name in positions.users])
    users = of_list[positions.list_index]
    user_lists = np.bincount(of_list, minlength=len(user_index))

    def value(summed: F64) -> Value:
        """Return the mean over lists of terms of positions."""
        by_user = np.bincount(users, summed, minlength=len(user_index))
        mean = float(summed.sum() / lists)
        return _value(mean, by_user - mean * user_lists, lists)

    actions = []
    for action, responses in _responses(positions, events, within_s=within_s):
        weighted = weights * responses
        share = float(weighted.sum() / max(weights.sum(), 1e-300))
        rest = np.bincount(users, weighted - share * weights, minlength=len(user_index))
        actions.append(
            ActionValue(
                action=action,
                before=value(old_weights * responses),
                after=value(weighted),
                difference=value(weighted - old_weights * responses),
                self_normalized=_value(
                    share * len(weights) / lists,
                    rest * len(weights) / lists,
                    max(float(weights.sum()), 1e-300),
                ),
            )
        )
    squares = float(np.square(weights).sum())
    return OffPolicyEstimate(
        lists=lists,
        users=len(user_index),
        left_out=left_out,
        within_s=within_s,
        same_positions=float(positions.after.mean()),
        mean_weight=float(weights.mean()),
        effective_sample_size=float(weights.sum() ** 2 / squares) if squares else 0.0,
        actions=tuple(actions),
    )


def _value(mean: float, rest: F64, count: float) -> Value:
    """
    Return a mean with its variance.

    Args:
        rest: Sum of a user's terms, less what the mean predicts; float64 [U].
        count: Number of terms in the mean, or the sum of their weights.
    """
    users = len(rest)
    variance = math.inf
    if users > 1:
        variance = float(np.square(rest).sum()) / count**2 * users / (users - 1)
    half = _NORMAL * math.sqrt(variance)
    return Value(value=mean, variance=variance, low=mean - half, high=mean + half)


def _responses(
    positions: Positions, events: ItemEvents, *, within_s: float
) -> Iterator[tuple[str, Bool]]:
    """Return the positions with a response, by action; bool [P]."""
    users = pl.Series(positions.users, dtype=pl.String)
    shown = pl.DataFrame(
        {
            "user": users.gather(positions.list_index),
            "item": pl.Series(positions.items, dtype=pl.String),
            "time": positions.time_us[positions.list_index],
            "row": np.arange(len(positions.items)),
        }
    )
    for action, responses in responses_of(shown, events, within_s=within_s):
        found = np.zeros(len(positions.items), np.bool_)
        found[responses["row"].to_numpy()] = True
        yield action, found


class _Bound(msgspec.Struct, frozen=True, eq=False):
    """A release with its catalogue, to which both policies are bound."""

    release: OpenedRelease
    catalogue: Catalogue
    new: CatalogueRules
    old: CatalogueRules | None


class _Lists:
    """Collects explored lists, and ranks their records by other policies."""

    def __init__(
        self,
        chain: Chain,
        releases: ReleaseArchive,
        *,
        repository: Path | None,
        new: Policy,
        old: Policy | None,
    ) -> None:
        self._chain = chain
        self._releases = releases
        self._repository = repository
        self._new = _ranking_of(new)
        self._old = None if old is None else _ranking_of(old)
        self._bound: dict[str, _Bound | str] = {}
        self._users: list[str] = []
        self._time_us: list[int] = []
        self._list_index: list[I64] = []
        self._items: list[str] = []
        self._propensities: list[F64] = []
        self._before: list[Bool] = []
        self._after: list[Bool] = []
        self.left_out: Counter[str] = Counter()
        self.entity = ""

    def add(self, table: pl.DataFrame) -> None:
        """Add the lists of a segment."""
        for (name,), own in table.group_by("release", maintain_order=True):
            bound = self._opened(str(name))
            if isinstance(bound, str):
                self.left_out[bound] += len(own)
                continue
            spec = bound.release.spec
            fits = own["consent"] & (own["spec"] == spec_hash_text(spec.spec_hash))
            self.left_out["without consent, or of other features"] += int((~fits).sum())
            rows = own.filter(fits)
            if DETAILS not in rows.columns or spec.history is None:
                self.left_out["without a list"] += len(rows)
                continue
            self.entity = spec.entities[spec.history.entity].name
            self._add(rows, bound)

    def positions(self) -> Positions:
        """Return the positions of all lists so far."""
        self.left_out += Counter()  # drops reasons without a list
        before = None if self._old is None else _joined(self._before, np.bool_)
        return Positions(
            list_index=_joined(self._list_index, np.int64),
            users=self._users,
            time_us=np.array(self._time_us, np.int64),
            items=self._items,
            propensities=_joined(self._propensities, np.float64),
            before=before,
            after=_joined(self._after, np.bool_),
        )

    def _opened(self, name: str) -> _Bound | str:
        if name not in self._bound:
            try:
                release = open_release(
                    name,
                    archived=self._releases.get(name),
                    repository=self._repository,
                    product=self._chain.links[0].product,
                )
                place = release.files.path(CATALOGUE_FILE)
                catalogue = Catalogue.load(place.parent)
            except TollgateError as exc:
                self._bound[name] = f"of a release that cannot be opened: {exc}"
            else:
                old = None if self._old is None else bind_rules(self._old, catalogue)
                new = bind_rules(self._new, catalogue)
                self._bound[name] = _Bound(release, catalogue, new, old)
        return self._bound[name]

    def _add(self, rows: pl.DataFrame, bound: _Bound) -> None:
        facts = facts_of(rows, bound.release.spec)
        new_in_force = self._new.in_force(facts).tolist()
        old_in_force = None if self._old is None else self._old.in_force(facts).tolist()
        users = rows[SUBJECT + self.entity].to_list()
        rankings = read_rankings(rows[DETAILS].to_list())
        for row, record in enumerate(rankings):
            if reason := _unusable(record, bound.catalogue):
                self.left_out[reason] += 1
            elif isinstance(record, RankingRecord):
                in_force = [int(new_in_force[row])]
                if old_in_force is not None:
                    in_force.append(int(old_in_force[row]))
                try:
                    lists = _ranked(record, bound, in_force)
                except JournalError as exc:
                    self.left_out[f"with a damaged record: {exc}"] += 1
                    continue
                self._append(record, lists, bound.catalogue)
                self._users.append(users[row])
                self._time_us.append(int(facts.event_time_us[row]))

    def _append(
        self, record: RankingRecord, lists: list[I32], catalogue: Catalogue
    ) -> None:
        """Add the positions of a record; `lists` are those of the other policies."""
        shown = record.ranked.items
        filled = shown != NONE
        same = [(one == shown)[filled] for one in lists]
        self._after.append(same[0])
        self._before += same[1:]
        self._propensities.append(record.ranked.propensities[filled].astype(np.float64))
        self._items += [catalogue.item_ids[item].decode() for item in shown[filled]]
        number = len(self._users)
        self._list_index.append(np.full(int(filled.sum()), number, np.int64))


def _joined(parts: list[npt.NDArray[Any]], kind: type[np.generic]) -> Any:
    return np.concatenate(parts) if parts else np.zeros(0, kind)


def _ranking_of(policy: Policy) -> RankingRules:
    """Return the section `ranking` of a policy, without exploration."""
    if policy.ranking is None:
        raise InputError(policy.product, "the policy has no section `ranking`")
    return msgspec.structs.replace(policy.ranking, exploration=None)


def _unusable(record: RankingRecord | str | None, catalogue: Catalogue) -> str | None:
    """Return the reason why a record's list says nothing about other policies."""
    if record is None:
        return "without a list"
    if isinstance(record, str):
        return f"with a damaged record: {record}"
    if record.catalogue_hash != catalogue.hash:
        return "of another catalogue"
    if (record.ranked.propensities == 1).all():
        return "without exploration"
    return None


def _ranked(record: RankingRecord, bound: _Bound, in_force: list[int]) -> list[I32]:
    """Rank a record's candidates by the new policy, and by the old one if any."""
    given = replay_input(record, items=bound.catalogue.size)
    policies = [bound.new] if bound.old is None else [bound.new, bound.old]
    return [
        rank_row(msgspec.structs.replace(given, in_force=bits), policy).items
        for bits, policy in zip(in_force, policies, strict=True)
    ]

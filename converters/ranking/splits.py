"""Split interactions by time into parts to learn from, to choose by and to judge."""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt

from converters.ranking.interactions import Interactions
from tollgate.ranking.candidates import Events

PART = 5  # a held-out part is the newest fifth of a user's events

I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]


class Queries(msgspec.Struct, frozen=True, eq=False):
    """
    Users of whom a part of the events is held out; Q users.

    Attributes:
        users: Index of each user; int32 [Q].
        now_us: Time of the first event that is held out; int64 [Q].
        relevant: Distinct items of the events that are held out, sorted, by user.
        seen: Distinct items before them, sorted, by user.
    """

    users: I32
    now_us: I64
    relevant: list[I32]
    seen: list[I32]

    def sample(self, most: int, *, seed: int) -> Queries:
        """Draw users at random if there are more than `most`; their order stays."""
        count = len(self.users)
        if count <= most:
            return self
        chosen = np.random.default_rng(seed).choice(count, most, replace=False)
        chosen.sort()
        return Queries(
            users=self.users[chosen],
            now_us=self.now_us[chosen],
            relevant=[self.relevant[one] for one in chosen],
            seen=[self.seen[one] for one in chosen],
        )


class Split(msgspec.Struct, frozen=True, eq=False):
    """Events before a time of each user, and the next ones, which are held out."""

    before: Interactions
    after: Interactions


def newest_fifth(interactions: Interactions) -> Split:
    """
    Hold out the newest fifth of each user's events, rounded down.

    Events of one user at the same time are in the order of their items' ids.
    """
    place, total = _places(interactions)
    after = place >= total - total // PART
    return Split(before=interactions.only(~after), after=interactions.only(after))


def later_cuts(split: Split, count: int) -> list[Split]:
    """
    Split at several times: before the held-out part, and at equal steps into it.

    Args:
        split: The first of them.
        count: Number of splits.
    """
    after = split.after
    place, total = _places(after)
    cuts = []
    for cut in range(count):
        later = place >= total * cut // count
        both = _joined(split.before, after.only(~later))
        cuts.append(Split(before=both, after=after.only(later)))
    return cuts


def _joined(first: Interactions, second: Interactions) -> Interactions:
    """Put events of the same users together again; the second's are the newer ones."""
    users = np.concatenate((first.users, second.users))
    order = np.argsort(users, kind="stable")
    return msgspec.structs.replace(
        first,
        users=users[order],
        items=np.concatenate((first.items, second.items))[order],
        time_us=np.concatenate((first.time_us, second.time_us))[order],
        actions=np.concatenate((first.actions, second.actions))[order],
    )


def _places(interactions: Interactions) -> tuple[I64, I64]:
    """Return each event's place among its user's, and their number; int64 [N] each."""
    count = np.bincount(interactions.users, minlength=len(interactions.user_ids))
    first = np.concatenate(([0], np.cumsum(count)))[interactions.users]
    return np.arange(len(interactions)) - first, count[interactions.users]


def queries_of(split: Split, *, repeats: bool) -> Queries:
    """
    Return the users who have events on both sides of a split.

    Args:
        split: Events before and after.
        repeats: Count items as relevant that the user has met before.
    """
    users, now_us, relevant, seen = [], [], [], []
    before, after = _bounds(split.before), _bounds(split.after)
    for user in range(len(split.before.user_ids)):
        begin, end = after[user], after[user + 1]
        past = split.before.items[before[user] : before[user + 1]]
        if begin == end or not len(past):
            continue
        known = np.unique(past)
        wanted = np.unique(split.after.items[begin:end])
        if not repeats:
            wanted = np.setdiff1d(wanted, known, assume_unique=True)
        if not len(wanted):
            continue
        users.append(user)
        now_us.append(split.after.time_us[begin])
        relevant.append(wanted)
        seen.append(known)
    return Queries(
        users=np.asarray(users, np.int32),
        now_us=np.asarray(now_us, np.int64),
        relevant=relevant,
        seen=seen,
    )


def repeat_share(split: Split) -> float:
    """Return the share of the held-out events whose item the user met before."""
    size = len(split.before.item_ids)
    met = split.before.users.astype(np.int64) * size + split.before.items
    later = split.after.users.astype(np.int64) * size + split.after.items
    return float(np.isin(later, met).mean()) if len(later) else 0.0


def newest_events(
    interactions: Interactions,
    users: I32,
    now_us: I64,
    *,
    most: int,
) -> Events:
    """
    Return the newest events of users as the store would have them, the newest first.

    Args:
        interactions: Events before `now_us`; the catalogue has the same items.
        users: Users; int32 [Q].
        now_us: Time of each request; int64 [Q].
        most: Most events of a user.
    """
    bounds = _bounds(interactions)
    place = bounds[users + 1][:, None] - 1 - np.arange(most)
    present = place >= bounds[users][:, None]
    place = np.where(present, place, 0)
    age_us = np.maximum(now_us[:, None] - interactions.time_us[place], 0)
    return Events(
        items=np.where(present, interactions.items[place], np.int32(-1)),
        actions=np.where(present, interactions.actions[place], np.int8(-1)),
        age_s=np.where(present, age_us / 1e6, 0.0),
    )


def _bounds(interactions: Interactions) -> I64:
    """Return where each user's events begin, and the end of the last; [U + 1]."""
    places = np.arange(len(interactions.user_ids) + 1)
    return np.searchsorted(interactions.users, places)

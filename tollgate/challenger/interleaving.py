"""
Compare two rankers by what users did with lists in which both picked the items.

An event of a user with an item counts for the release that picked the item in the
latest list that showed it to the user. Users are the units: the lists of one user are
alike. Under team draft both releases are as likely to pick first, so without a
difference a user is as likely to prefer the one as the other: the sign test.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from tollgate.audit.chain.chain import Chain
from tollgate.audit.releases.archive import ReleaseArchive
from tollgate.audit.releases.past_release import open_release
from tollgate.audit.releases.ranking_replay import read_rankings
from tollgate.audit.releases.record_rows import DETAILS, EVENT, SUBJECT, read_table
from tollgate.audit.review.list_responses import ItemEvents, responses_of
from tollgate.audit.worker.pseudonyms import Subjects, pseudonym
from tollgate.challenger.intervals import Interval, share, sign_test
from tollgate.errors import InputError
from tollgate.ranking.catalogue import CATALOGUE_FILE, Catalogue
from tollgate.ranking.rank import CHALLENGER, CHAMPION
from tollgate.ranking.ranking_record import RankingRecord

I8 = npt.NDArray[np.int8]
I64 = npt.NDArray[np.int64]
U8 = npt.NDArray[np.uint8]


class DraftedItems(msgspec.Struct, frozen=True, eq=False):
    """
    Items of interleaved lists that one of the releases picked; P rows.

    Attributes:
        users: Pseudonyms of the lists' users, by row.
        items: Ids.
        time_us: Time of the list's request; int64 [P].
        teams: CHAMPION or CHALLENGER; uint8 [P].
    """

    users: Sequence[str]
    items: Sequence[str]
    time_us: I64
    teams: U8


class Preference(msgspec.Struct, frozen=True):
    """
    Preference of users by events of one kind.

    Attributes:
        action: One of `schema.ACTIONS`, or "any".
        champion, challenger: Items with an event that this release picked.
        wins, losses: Users with more events for the challenger, or for the champion.
        ties: Users with as many for both, at least one each.
        share: Share of wins among wins and losses, with its 95 % interval (Wilson).
        p_value: Chance of a share this far from a half if there is no difference (exact
            two-sided sign test).
    """

    action: str
    champion: int
    challenger: int
    wins: int
    losses: int
    ties: int
    share: Interval
    p_value: float


class InterleavingReport(msgspec.Struct, frozen=True):
    """
    Comparison of a challenger with the release that it was interleaved with.

    Attributes:
        lists: Interleaved lists.
        users: Users who got them.
        within_s: Time after a list in which an event counts, s.
        preferences: By action; the first is of any event.
    """

    champion: str
    challenger: str
    lists: int
    users: int
    within_s: float
    preferences: tuple[Preference, ...]


def compare_interleaved(
    chain: Chain,
    releases: ReleaseArchive,
    *,
    repository: Path | None,
    challenger: str,
    events: ItemEvents,
    subjects: Subjects,
    within_s: float,
) -> InterleavingReport:
    """
    Credit events to the releases of interleaved lists in a journal.

    Args:
        repository: Model repository with the catalogues that were not archived; None
            for none.
        challenger: Name of the challenger; empty for that of the newest such list.
        events: What users did.
        subjects: Keys of the journal's subjects.
        within_s: Time after a list in which an event counts, s.

    Raises:
        InputError: There is no interleaved list of the challenger, or its release
            cannot be opened.
        JournalError: A segment or the keys cannot be read.
    """
    found: dict[tuple[str, str], list[pl.DataFrame]] = {}
    product = chain.links[0].product if chain.links else ""
    entity, newest = "", ("", "")
    for link in chain.alive("segment"):
        table = read_table(chain.folder, link)
        if DETAILS not in table.columns:
            continue
        for (name,), own in table.group_by("release", maintain_order=True):
            if not any(map(_is_interleaved, read_rankings(own[DETAILS].to_list()))):
                continue
            release = open_release(
                str(name),
                archived=releases.get(str(name)),
                repository=repository,
                product=product,
            )
            spec = release.spec
            if spec.history is None:
                continue
            entity = spec.entities[spec.history.entity].name
            catalogue = Catalogue.decode(release.files.read(CATALOGUE_FILE))
            for rival, rows in _drafted(own, catalogue, entity=entity).items():
                newest = (str(name), rival)
                found.setdefault(newest, []).append(rows)
    pair = next((one for one in reversed(found) if one[1] == challenger), newest)
    if not challenger:
        challenger = newest[1]
    if pair not in found or pair[1] != challenger:
        problem = f"has no interleaved list of {challenger or 'any challenger'}"
        raise InputError(chain.folder, problem)
    table = pl.concat(found[pair])
    keys = subjects.known(entity, [one.encode() for one in set(events.users)])
    names = {one.decode(): pseudonym(key, entity, one) for one, key in keys.items()}
    drafted = DraftedItems(
        users=table["user"].to_list(),
        items=table["item"].to_list(),
        time_us=table["time"].to_numpy(),
        teams=table["team"].to_numpy(),
    )
    return InterleavingReport(
        champion=pair[0],
        challenger=pair[1],
        lists=table.select("user", "time").n_unique(),
        users=table["user"].n_unique(),
        within_s=within_s,
        preferences=preferences_of(drafted, events.renamed(names), within_s=within_s),
    )


def preferences_of(
    drafted: DraftedItems, events: ItemEvents, *, within_s: float
) -> tuple[Preference, ...]:
    """
    Compute the preferences by action.

    An item of a list counts once for each action, however often the user came back.

    Args:
        drafted: With the same names of users as the events.
    """
    shown = pl.DataFrame(
        {
            "user": pl.Series(drafted.users, dtype=pl.String),
            "item": pl.Series(drafted.items, dtype=pl.String),
            "time": drafted.time_us,
            "team": drafted.teams,
        }
    )
    return tuple(
        _preference(action, credited)
        for action, credited in responses_of(shown, events, within_s=within_s)
    )


def _preference(action: str, credited: pl.DataFrame) -> Preference:
    once = credited.unique(["user", "item", "listed"])
    teams = once["team"].to_numpy()
    by_user = once.group_by("user").agg(
        ((pl.col("team") == CHALLENGER).sum().cast(pl.Int64)).alias("ours"),
        ((pl.col("team") == CHAMPION).sum().cast(pl.Int64)).alias("theirs"),
    )
    apart = (by_user["ours"] - by_user["theirs"]).to_numpy()
    wins, losses = int((apart > 0).sum()), int((apart < 0).sum())
    return Preference(
        action=action,
        champion=int((teams == CHAMPION).sum()),
        challenger=int((teams == CHALLENGER).sum()),
        wins=wins,
        losses=losses,
        ties=int((apart == 0).sum()),
        share=share(wins, wins + losses),
        p_value=sign_test(wins, losses),
    )


def _is_interleaved(record: RankingRecord | str | None) -> bool:
    return isinstance(record, RankingRecord) and record.ranked.teams is not None


def _drafted(
    own: pl.DataFrame, catalogue: Catalogue, *, entity: str
) -> Mapping[str, pl.DataFrame]:
    """Return the drafted items of interleaved lists with consent, by challenger."""
    rows: dict[str, list[tuple[str, str, int, int]]] = {}
    users = own[SUBJECT + entity].to_list()
    times_us = own[EVENT].dt.epoch("us").to_list()
    for at, record in enumerate(read_rankings(own[DETAILS].to_list())):
        if (
            not isinstance(record, RankingRecord)
            or record.ranked.teams is None
            or record.catalogue_hash != catalogue.hash
        ):
            continue
        rows.setdefault(record.challenger, []).extend(
            (users[at], catalogue.item_ids[item].decode(), times_us[at], team)
            for item, team in zip(
                record.ranked.items.tolist(), record.ranked.teams.tolist(), strict=True
            )
            if team
        )
    schema = {"user": pl.String, "item": pl.String, "time": pl.Int64, "team": pl.UInt8}
    return {
        name: pl.DataFrame(items, schema=schema, orient="row")
        for name, items in rows.items()
    }

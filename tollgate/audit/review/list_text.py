"""Describe a ranked list from the details of its record: its items, and why each."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from tollgate.audit.releases.archived_release import ArchivedRelease
from tollgate.audit.releases.past_release import open_release
from tollgate.audit.releases.record_rows import DETAILS
from tollgate.errors import JournalError, TollgateError
from tollgate.ranking.catalogue import CATALOGUE_FILE, Catalogue
from tollgate.ranking.rank import NONE
from tollgate.ranking.ranking_record import RankingRecord, decode_ranking
from tollgate.schema import ACTIONS, SOURCES

_VERBS = dict(zip(ACTIONS, ("viewed", "put into the cart", "bought"), strict=True))
_WITHOUT_EVENT = {
    "personal": "fits the events of the user together",
    "similar": "similar to the newest items of the user",
    "popular": "popular",
    "fallback": "popular: the events of the user were not known",
}


class ShownItem(msgspec.Struct, frozen=True):
    """
    An item of a list.

    Attributes:
        item: Its id; its index in the catalogue if that is not there.
        score: Relevance after the rules; None for an item that was not scored.
        source: Origin of the item.
        why: Event of the user, or other reason, that brought the item.
        explored: True if exploration chose it.
        propensity: Probability that this position shows this item.
    """

    item: str
    score: float | None
    source: str
    why: str
    explored: bool
    propensity: float


class ExplainedList(msgspec.Struct, frozen=True):
    """
    A ranked list as its record has it.

    Attributes:
        items: Its items, the best first.
        candidates: Number of candidates.
        events: Newest events of the user, the newest first.
        notes: What else a reader should know, such as why ids are missing.
    """

    items: list[ShownItem]
    candidates: int
    events: list[str]
    notes: list[str]


def explain_list(
    values: Mapping[str, Any],
    *,
    product: str,
    archived: ArchivedRelease | None,
    repository: Path | None,
) -> ExplainedList | None:
    """
    Explain the list of a record; None if the record has none.

    Args:
        values: Columns of the record.
        product: Product of the record.
        archived: Release as archived in the journal; None if it was not archived.
        repository: Model repository with the catalogue; without it the items have
            numbers in place of ids.
    """
    raw = values.get(DETAILS)
    if not raw:
        return None
    catalogue: Catalogue | None = None
    notes: list[str] = []
    try:
        record = decode_ranking(raw)
    except JournalError as exc:
        return ExplainedList([], 0, [], [str(exc)])
    try:
        files = open_release(
            values["release"], archived=archived, repository=repository, product=product
        ).files
        catalogue = Catalogue.load(files.path(CATALOGUE_FILE).parent)
        if catalogue.hash != record.catalogue_hash:
            catalogue = None
            notes.append("The list is of another catalogue than the release's.")
    except TollgateError as exc:
        notes.append(f"Items have numbers: {exc}")
    return describe_list(record, catalogue, notes=notes)


def describe_list(
    record: RankingRecord, catalogue: Catalogue | None, *, notes: list[str]
) -> ExplainedList:
    """
    Describe a list.

    Args:
        catalogue: Catalogue of its indices; None for numbers in place of ids.
        notes: Notes of the caller, which come first.
    """
    given, ranked = record.given, record.ranked
    items = [
        ShownItem(
            item=_name(item, catalogue),
            score=None if math.isnan(score) else score,
            source=SOURCES[source],
            why=_why(record, item, SOURCES[source], catalogue),
            explored=explored,
            propensity=propensity,
        )
        for item, score, source, explored, propensity in zip(
            ranked.items.tolist(),
            ranked.scores.tolist(),
            ranked.sources.tolist(),
            ranked.explored.tolist(),
            ranked.propensities.tolist(),
            strict=True,
        )
        if item != NONE
    ]
    more = list(notes)
    if record.prepared_age_us is not None:
        age = _age(record.prepared_age_us / 1e6)
        more.append(f"Candidates and relevance were prepared {age} before.")
    if not ranked.by_relevance:
        more.append("The model gave no usable relevance: the order is the retrieval's.")
    if ranked.caps_relaxed:
        more.append("Too few items were left: a cap on a category does not hold.")
    if len(ranked.unavailable):
        more.append(f"Items that were out of stock: {len(ranked.unavailable)}.")
    return ExplainedList(
        items=items,
        candidates=int((given.candidates != NONE).sum()),
        events=[
            f"{_event(action)} {_name(item, catalogue)} {_age(age_s)} before"
            for item, action, age_s in _events(record)
        ],
        notes=more,
    )


def _events(record: RankingRecord) -> list[tuple[int, int, float]]:
    """Return item, action and age of the events with a known item."""
    given = record.given
    every = zip(
        given.history_items.tolist(),
        given.history_actions.tolist(),
        given.history_age_s.tolist(),
        strict=True,
    )
    return [one for one in every if one[0] != NONE]


def _why(
    record: RankingRecord, item: int, source: str, catalogue: Catalogue | None
) -> str:
    """Return the event to which the catalogue ties an item most, or its origin."""
    best, text = 0.0, _WITHOUT_EVENT[source]
    if source == "fallback" or catalogue is None:
        return text
    for other, action, age_s in _events(record):
        done = f"because you {_event(action)}"
        if other == item:
            return f"{done} it {_age(age_s)} before"
        done += f" {_name(other, catalogue)}"
        similar = _strength(catalogue.neighbours, catalogue.similarities, other, item)
        if similar > best:
            best, text = similar, f"{done}: similarity {similar:.2f}"
        next_ = _strength(catalogue.followers, catalogue.follow_shares, other, item)
        if next_ > best:
            best, text = next_, f"{done}: often followed by this, {next_:.2f}"
    return text


def _strength(lists: Any, strengths: Any, item: int, wanted: int) -> float:
    there = (lists[item] == wanted).nonzero()[0]
    return float(strengths[item][there[0]]) if len(there) else 0.0


def _name(item: int, catalogue: Catalogue | None) -> str:
    if catalogue is None or item >= catalogue.size:
        return f"item {item}"
    return catalogue.item_ids[item].decode()


def _event(action: int) -> str:
    return _VERBS[ACTIONS[action]] if action >= 0 else "used"


def _age(age_s: float) -> str:
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if age_s >= size:
            return f"{age_s / size:.1f} {unit}"
    return f"{age_s:.0f} s"

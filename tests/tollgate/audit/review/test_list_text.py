"""A list of a record in words: its items, and why each is in it."""

from __future__ import annotations

import html
import re
from pathlib import Path

import numpy as np
import pytest

from tests.support.audit.ranked_records import catalogue_of, ranked, write_ranked_shop
from tollgate.audit.chain.chain import Chain
from tollgate.audit.releases.archive import ReleaseArchive
from tollgate.audit.releases.record_rows import read_table
from tollgate.audit.review.explanation import RANKED, ExplainedRecord, explain_record
from tollgate.audit.review.list_text import describe_list, explain_list
from tollgate.audit.review.lookup import find_record
from tollgate.audit.review.pending import pending_table
from tollgate.audit.review.record_text import decision_page
from tollgate.audit.worker.pseudonyms import Subjects
from tollgate.audit.worker.sealing import Sealer
from tollgate.cli.decisions.decision_commands import _print
from tollgate.journal.decision_record import Records
from tollgate.ranking.ranking_record import decode_ranking
from tollgate.schema import SOURCES

ROWS = 40


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Name the repository of a small shop."""
    return tmp_path_factory.mktemp("shop") / "models"


@pytest.fixture(scope="module")
def records(repository: Path) -> Records:
    """Make records of its lists."""
    return ranked(ROWS, by=write_ranked_shop(repository))


@pytest.fixture(scope="module")
def journal(
    records: Records, repository: Path, tmp_path_factory: pytest.TempPathFactory
) -> Chain:
    """Seal them."""
    home = tmp_path_factory.mktemp("journal")
    chain = Chain(home / "journal", product="shop")
    Sealer(
        chain,
        subjects=Subjects(home / "journal.keys"),
        releases=ReleaseArchive(chain, repository=repository),
    ).seal([records])
    return chain


def explained(journal: Chain, row: int, *, repository: Path | None) -> ExplainedRecord:
    """Explain one record."""
    (link,) = journal.alive("segment")
    table = read_table(journal.folder, link)
    return explain_record(
        table[row : row + 1],
        place="here",
        product="shop",
        archived=ReleaseArchive(journal).get(table["release"][row]),
        repository=repository,
    )


def test_each_item_has_the_event_that_brought_it(
    journal: Chain, records: Records, repository: Path
) -> None:
    """The strongest tie of the catalogue, found by plain loops; its own first."""
    catalogue = catalogue_of()
    verbs = ("viewed", "put into the cart", "bought")
    tied = 0
    for row in range(ROWS):
        found = explained(journal, row, repository=repository)
        assert found.ranked is not None
        assert found.unexplained == RANKED
        record = decode_ranking(records.details[row])
        shown = record.ranked.items.tolist()
        assert [one.item for one in found.ranked.items] == [f"i{one}" for one in shown]
        sources = [SOURCES[one] for one in record.ranked.sources]
        assert [one.source for one in found.ranked.items] == sources
        events = [
            (item, verbs[action], age)
            for item, action, age in zip(
                record.given.history_items.tolist(),
                record.given.history_actions.tolist(),
                record.given.history_age_s.tolist(),
                strict=True,
            )
            if item >= 0
        ]
        assert len(found.ranked.events) == len(events)
        for item, one in zip(shown, found.ranked.items, strict=True):
            if one.source == "fallback":
                assert one.why == "popular: the events of the user were not known"
                continue
            if item in [other for other, _, _ in events]:
                assert re.fullmatch(
                    r"because you .* it [\d.]+ (d|h|min|s) before", one.why
                )
                continue
            ties = []
            for other, verb, _ in events:
                for lists, strengths, text in (
                    (catalogue.neighbours, catalogue.similarities, ": similarity "),
                    (
                        catalogue.followers,
                        catalogue.follow_shares,
                        ": often followed by this, ",
                    ),
                ):
                    for near, strength in zip(
                        lists[other].tolist(), strengths[other].tolist(), strict=True
                    ):
                        if near == item and strength > 0:
                            words = f"because you {verb} i{other}{text}{strength:.2f}"
                            ties.append((strength, words))
            if ties:
                tied += 1
                assert one.why == max(ties, key=lambda tie: tie[0])[1]
            else:
                assert not one.why.startswith("because")
    assert tied > 40


def test_without_a_catalogue_items_have_numbers(
    journal: Chain, records: Records
) -> None:
    """A journal outlives the repository; the note says what is missing."""
    found = explained(journal, 1, repository=None)
    assert found.ranked is not None
    shown = decode_ranking(records.details[1]).ranked.items.tolist()
    assert [one.item for one in found.ranked.items] == [f"item {one}" for one in shown]
    assert "shop_candidates is not in the repository" in found.ranked.notes[0]


def test_notes_name_what_is_unusual(records: Records) -> None:
    """No relevance, items out of stock, damaged details."""
    without = decode_ranking(records.details[5])
    found = describe_list(without, catalogue_of(), notes=[])
    assert any("no usable relevance" in one for one in found.notes)
    assert [one.score for one in found.items] == [None] * len(found.items)
    sold = [
        one
        for one in map(decode_ranking, records.details)
        if len(one.ranked.unavailable) == 1
    ]
    assert sold
    assert (
        "Items that were out of stock: 1."
        in describe_list(sold[0], None, notes=[]).notes
    )
    values = {"details": b"damaged", "release": "shop-1"}
    damaged = explain_list(values, product="shop", archived=None, repository=None)
    assert damaged is not None
    assert damaged.notes[0].startswith("a ranking: cannot be read")
    nothing = {"details": None}
    assert explain_list(nothing, product="shop", archived=None, repository=None) is None


def test_list_is_printed_and_on_the_page(
    journal: Chain,
    records: Records,
    repository: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In the order in which it was shown."""
    explored = [
        row
        for row, raw in enumerate(records.details)
        if decode_ranking(raw).ranked.explored.any()
    ]
    row = explored[0]
    found = explained(journal, row, repository=repository)
    assert found.ranked is not None
    _print(found)
    printed = capsys.readouterr().out
    assert f"5 items of {found.ranked.candidates} candidates:" in printed
    assert "chosen by exploration, propensity 0." in printed
    sealed = find_record(journal.folder, f"{records.writer}:{row}", subjects=None)
    archived = ReleaseArchive(journal).get(found.release)
    page = decision_page(sealed, archived, ranked=found.ranked)
    body = page.partition("<body>")[2]
    text = " ".join(html.unescape(re.sub(r"<[^>]+>", " ", body)).split())
    for place in (printed, text):
        at = [place.index(one.why) for one in found.ranked.items]
        assert len(at) == 5
        assert all(one.item in place for one in found.ranked.items)
    assert "chosen by exploration" in text
    assert "Newest events of the user: " in text


def test_a_pending_list_is_explained(records: Records, repository: Path) -> None:
    """Before it is sealed, too."""
    table = pending_table(records, spec=None, releases=None)
    found = explain_record(
        table[2:3],
        place="the stream",
        product="shop",
        archived=None,
        repository=repository,
    )
    assert found.ranked is not None
    shown = decode_ranking(records.details[2]).ranked.items
    assert [one.item for one in found.ranked.items] == [
        f"i{one}" for one in np.asarray(shown).tolist()
    ]

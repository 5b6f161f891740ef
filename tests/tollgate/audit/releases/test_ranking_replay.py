"""Sealed lists are ranked again from their records, and differences are named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from tests.support.audit.ranked_records import catalogue_of, ranked, write_ranked_shop
from tests.support.products.small_shop import write_linear_model
from tests.support.server.next_release import next_release
from tollgate.audit.chain.chain import Chain
from tollgate.audit.chain.verification import verify
from tollgate.audit.releases.archive import ReleaseArchive
from tollgate.audit.releases.journal_replay import ReplayResult, replay
from tollgate.audit.releases.past_release import OpenedRelease
from tollgate.audit.worker.pseudonyms import Subjects
from tollgate.audit.worker.sealing import Sealer
from tollgate.journal.decision_record import Records
from tollgate.ranking.ranking_record import (
    RankingRecord,
    decode_ranking,
    encode_ranking,
)


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the repository of a small shop."""
    repository = tmp_path_factory.mktemp("shop") / "models"
    write_ranked_shop(repository)
    return repository


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> OpenedRelease:
    """Open the same release from a repository of its own."""
    return write_ranked_shop(tmp_path_factory.mktemp("other") / "models")


def sealed(records: Records, folder: Path, repository: Path) -> Chain:
    """Seal records into a journal of the shop."""
    chain = Chain(folder / "journal", product="shop")
    Sealer(
        chain,
        subjects=Subjects(folder / "journal.keys"),
        releases=ReleaseArchive(chain, repository=repository),
    ).seal([records])
    return chain


def again(chain: Chain, repository: Path, **more: Any) -> ReplayResult:
    """Decide a journal again."""
    return replay(chain, ReleaseArchive(chain), repository=repository, **more)


def test_every_list_is_ranked_again_to_the_bit(
    tmp_path: Path, shop: Path, release: OpenedRelease
) -> None:
    """With and without history, rules, exploration, stock; no relevance, too."""
    records = ranked(120, by=release)
    chain = sealed(records, tmp_path, shop)
    assert verify(chain.folder).findings == []
    found = again(chain, shop, tolerance=0.0)
    (part,) = found.parts
    assert [one.what for one in found.differences] == []
    assert (part.rows, part.same, part.problem) == (120, 120, "")
    assert found.sound
    # The lists are worth the test.
    lists = [decode_ranking(one) for one in records.details]
    assert sum(one.ranked.explored.any() for one in lists) > 10
    assert sum(bool(len(one.ranked.unavailable)) for one in lists) > 10
    assert {source for one in lists for source in one.ranked.sources} == {0, 1, 2, 3}
    assert len({one.given.in_force for one in lists}) > 2
    assert len(set(records.decision.tolist())) > 1


def change(record: RankingRecord, **columns: Any) -> RankingRecord:
    """Change columns of the list of a record."""
    shown = msgspec.structs.replace(record.ranked, **columns)
    return msgspec.structs.replace(record, ranked=shown)


def next_score(record: RankingRecord) -> RankingRecord:
    """Raise the last score by one bit."""
    scores = record.ranked.scores.copy()
    scores[-1] = np.nextafter(scores[-1], np.float32(np.inf))
    return change(record, scores=scores)


def next_relevance(record: RankingRecord) -> RankingRecord:
    """Raise the relevance of one candidate by one bit."""
    relevance = record.given.relevance.copy()
    relevance[7] = np.nextafter(relevance[7], np.float32(np.inf))
    given = msgspec.structs.replace(record.given, relevance=relevance)
    return msgspec.structs.replace(record, given=given)


@pytest.mark.parametrize(
    ("changed", "aspect", "words"),
    [
        (lambda r: change(r, items=r.ranked.items[::-1].copy()), "items", "items i"),
        (next_score, "item scores", "item scores "),
        (
            lambda r: change(r, sources=np.array([3, 0, 0, 0, 0], np.uint8)),
            "sources",
            "sources fallback, personal",
        ),
        (
            lambda r: change(r, propensities=np.full(5, 0.5, np.float32)),
            "propensities",
            "propensities 0.5, 0.5",
        ),
        (next_relevance, "relevance", "relevance of i"),
    ],
)
def test_a_difference_of_a_list_is_named(
    tmp_path: Path,
    shop: Path,
    release: OpenedRelease,
    changed: Callable[[RankingRecord], RankingRecord],
    aspect: str,
    words: str,
) -> None:
    """Another order, one bit of a score or a relevance, a source, a propensity."""
    records = ranked(20, by=release)
    details = list(records.details)
    details[4] = encode_ranking(changed(decode_ranking(details[4])))
    records = msgspec.structs.replace(records, details=details)
    found = again(sealed(records, tmp_path, shop), shop, tolerance=0.0)
    (part,) = found.parts
    assert (part.same, part.differing) == (19, 1)
    assert part.aspects[aspect] == 1
    (one,) = found.differences
    assert one.record == f"{records.writer}:4"
    (text,) = [text for text in one.what if text.startswith(words)]
    assert " → " in text


def test_relevance_within_the_tolerance_ranks_as_recorded(
    tmp_path: Path, shop: Path, release: OpenedRelease
) -> None:
    """A matrix product may round by the shape of the batch."""
    records = ranked(20, by=release)
    details = list(records.details)
    details[4] = encode_ranking(next_relevance(decode_ranking(details[4])))
    records = msgspec.structs.replace(records, details=details)
    chain = sealed(records, tmp_path, shop)
    found = again(chain, shop, tolerance=1e-5)
    # The list itself was not ranked from the changed relevance.
    assert all("relevance" not in one.aspects for one in found.parts)


def test_lists_that_cannot_be_ranked_again_are_counted(
    tmp_path: Path, shop: Path, release: OpenedRelease
) -> None:
    """No details, another catalogue, damaged details."""
    records = ranked(20, by=release)
    details = list(records.details)
    read = decode_ranking(details[2])
    details[1] = b""
    other = msgspec.structs.replace(read, catalogue_hash=catalogue_of(59).hash)
    details[4] = encode_ranking(other)
    details[6] = b"damaged"
    records = msgspec.structs.replace(records, details=details)
    found = again(sealed(records, tmp_path, shop), shop)
    (part,) = found.parts
    assert (part.without_list, part.foreign) == (1, 1)
    assert (part.rows, part.same, part.differing) == (20, 17, 1)
    assert part.aspects["details"] == 1
    assert found.differences[0].what[0].startswith("details: a ranking: cannot be")


def test_another_release_ranks_the_same_records(
    tmp_path: Path, shop: Path, release: OpenedRelease
) -> None:
    """A model that only counts popularity shows other items of the same candidates."""
    second = shop / "shop_model" / "2"
    second.mkdir()
    write_linear_model(second, release.spec, weights={"popularity": 1.0})
    other = next_release(shop, product="shop", shop_model=2).name
    chain = sealed(ranked(30, by=release), tmp_path, shop)
    found = again(chain, shop, through=other)
    (part,) = found.parts
    assert part.differing > 20
    assert part.aspects["items"] > 10
    assert part.aspects["relevance"] >= part.aspects["items"]


def test_a_repository_without_the_catalogue_is_named(
    tmp_path: Path, release: OpenedRelease
) -> None:
    """Its records are not ranked again."""
    repository = tmp_path / "models"
    own = write_ranked_shop(repository)
    chain = sealed(ranked(5, by=own), tmp_path, repository)
    for step in ("shop_candidates", "shop_ranking"):
        (repository / step / "1" / "catalogue.npz").unlink()
    found = again(chain, repository)
    (part,) = found.parts
    assert part.problem.startswith(f"release {own.name}: catalogue.npz: version 1 of")
    assert not found.sound

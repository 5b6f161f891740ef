"""The candidate stage uses what was prepared, or counts why it does not."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.audit.ranked_records import write_ranked_shop
from tollgate.backfill.prepared_lists import PreparedRelease, open_ranking_release
from tollgate.engine.candidate_stage import CandidateStage
from tollgate.engine.row_batches import Batch
from tollgate.ranking.history import UserHistory, no_history
from tollgate.ranking.prepared import (
    PreparedCandidates,
    encode_prepared,
    history_hash,
)
from tollgate.schema import hash_words

NOW_US = 1_700_000_000_000_000
RANKER = 7


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> PreparedRelease:
    """A small shop of 60 items."""
    repository = tmp_path_factory.mktemp("shop") / "models"
    write_ranked_shop(repository)
    return open_ranking_release(repository, "shop")


@pytest.fixture
def stage(release: PreparedRelease) -> CandidateStage:
    """Its stage, which uses what RANKER prepared."""
    return CandidateStage(
        release.stage.catalogue, release.stage._session, release.spec, ranker=RANKER
    )


def histories(release: PreparedRelease, rows: int) -> UserHistory:
    """Users who looked at one item each."""
    form = release.spec.history
    assert form is not None
    history = no_history(form, rows)
    history.known[:] = True
    history.count[:] = 1
    history.time_us[:, 0] = NOW_US - 60_000_000
    history.columns["item"][:, 0] = hash_words([b"i%d" % at for at in range(rows)])
    history.columns["action"][:, 0] = hash_words([b"view"])[0]
    return history


def batch_of(rows: int) -> Batch:
    """One request of some rows; the last one is bad."""
    return Batch(
        ids={},
        cents=np.zeros(rows, np.int64),
        time_us=np.full(rows, NOW_US),
        errors={rows - 1: "bad"},
        bounds=[0, rows],
        dry=[False],
        counts=[0],
    )


def entry(history: UserHistory, row: int) -> bytes:
    """Prepare two items, which no retrieval would choose alone."""
    return encode_prepared(
        PreparedCandidates(
            ranker=RANKER,
            history=history_hash(history, row),
            made_us=NOW_US - 30_000_000,
            life_us=60_000_000,
            items=np.array([59, 58], np.int32),
            sources=np.array([1, 0], np.uint8),
            relevance=np.array([0.25, 0.5], np.float32),
        )
    )


def test_each_row_gets_its_own(stage: CandidateStage, release: PreparedRelease) -> None:
    """Hit, no entry, not read, the challenger's, unknown events, bad."""
    history = histories(release, 6)
    for row in (0, 3, 4, 5):
        history.prepared[row] = entry(history, row)
    history.prepared[1] = b""
    history.known[4] = False
    available = np.ones(stage.catalogue.size, np.bool_)
    challenged = np.arange(6) == 3
    found = stage.fill(batch_of(6), history, available=available, challenged=challenged)
    assert dict(stage.prepared.rows) == {"hit": 1, "none": 1, "unread": 2, "canary": 1}
    assert list(stage.prepared.ages_s) == [30.0]
    first = found.ranking[0]
    assert first["prepared_us"] == NOW_US - 30_000_000
    assert first["items"][:3].tolist() == [59, 58, -1]
    assert first["sources"][:2].tolist() == [1, 0]
    assert first["relevance"][:3].tolist() == [0.25, 0.5, 0.0]
    assert not found.features[0].any()
    assert not found.ranking["prepared_us"][1:].any()
    plain = CandidateStage(stage.catalogue, stage._session, release.spec)
    expected = plain.fill(batch_of(6), history, available=available)
    np.testing.assert_array_equal(found.features[1:], expected.features[1:])
    assert found.ranking[1:].tobytes() == expected.ranking[1:].tobytes()


@pytest.mark.parametrize(
    ("age_us", "found"),
    [
        (59_999_999, "hit"),
        (60_000_000, "expired"),
        (-59_999_999, "hit"),
        (-60_000_000, "expired"),
    ],
)
def test_an_entry_holds_for_its_life(
    stage: CandidateStage, release: PreparedRelease, age_us: int, found: str
) -> None:
    history = histories(release, 2)
    history.prepared[0] = entry(history, 0)
    batch = batch_of(2)
    batch.time_us[0] = NOW_US - 30_000_000 + age_us
    stage.fill(batch, history, available=np.ones(60, np.bool_))
    assert dict(stage.prepared.rows) == {found: 1}

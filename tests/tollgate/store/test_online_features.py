"""The online path over a real Redis: what a batch reads, and what it leaves behind."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import pytest
import redis

from tests.support.store.online_rows import (
    DAY_US,
    NOW_US,
    OpenStore,
    Row,
    bits,
    named,
    purchases,
    score,
    stored,
)
from tollgate.features.spec.feature_spec import FeatureSpec
from tollgate.features.windows.entity_entries import unpack_values
from tollgate.schema import Applied, Degraded
from tollgate.store.online_features import OnlineFeatures
from tollgate.store.store_events import Labels, Purchases

pytestmark = pytest.mark.usefixtures("both_readers")


def label(row: Row, *, fraud: int, known_us: int, revision: int = 0) -> Labels:
    """A label of one purchase."""
    same = purchases(row)
    return Labels(
        transaction_id=same.transaction_id,
        entity_id=same.entity_id,
        event_time_us=same.event_time_us,
        label=np.array([fraud], np.int8),
        label_time_us=np.array([known_us]),
        revision=np.array([revision]),
    )


def random_rows(count: int, *, seed: int) -> list[Row]:
    """Purchases of few customers and terminals within an hour, with many ties."""
    source = np.random.default_rng(seed)
    return [
        (
            str(number),
            f"c{source.integers(4)}",
            f"t{source.integers(3)}",
            NOW_US + int(source.integers(6)) * 600_000_000,
            int(source.integers(1, 10_000)),
        )
        for number in range(count)
    ]


def test_row_reads_itself_and_what_came_before(online: OnlineFeatures) -> None:
    """Counts and means of hand-made purchases, in the batch and before it."""
    score(online, ("1", "c", "t", NOW_US - 3 * DAY_US, 1000))
    vectors = score(
        online,
        ("2", "c", "t", NOW_US, 300),
        ("3", "c", "u", NOW_US + 1, 500),
        ("4", "d", "t", NOW_US + 8 * DAY_US, 70),
    )
    assert named(online, vectors, "amount") == [3.0, 5.0, 0.7]
    assert named(online, vectors, "customer_nb_tx_1d") == [1, 2, 1]
    assert named(online, vectors, "customer_nb_tx_7d") == [2, 3, 1]
    assert named(online, vectors, "customer_avg_amount_7d") == [6.5, 6.0, 0.7]
    assert named(online, vectors, "terminal_nb_tx_7d") == [0, 0, 2]


def test_rows_of_one_instant_see_ids_up_to_their_own(online: OnlineFeatures) -> None:
    """In whatever order they come, "9" is before "10" and both are before "100"."""
    rows = [(one, "c", "t", NOW_US, 100) for one in ("100", "9", "10")]
    vectors = score(online, *rows)
    assert named(online, vectors, "customer_nb_tx_1d") == [3, 1, 2]


def test_permuted_rows_permute_answers(
    online: OnlineFeatures, redis_client: redis.Redis
) -> None:
    """The order of a batch changes no answer and no stored byte."""
    rows = random_rows(32, seed=1)
    first = score(online, *rows)
    before = stored(redis_client)
    for seed in range(4):
        order = np.random.default_rng(seed).permutation(len(rows))
        redis_client.flushall()
        again = score(online, *[rows[n] for n in order])
        np.testing.assert_array_equal(again.features, first.features[order])
        assert again.degraded.tolist() == first.degraded[order].tolist()
        assert again.applied.tolist() == first.applied[order].tolist()
        assert stored(redis_client) == before


def test_alone_equals_batched(
    online: OnlineFeatures, redis_client: redis.Redis
) -> None:
    """Row by row in the order of (time, id): the same vectors and bytes."""
    rows = random_rows(32, seed=2)
    batched = score(online, *rows)
    before = stored(redis_client)
    redis_client.flushall()
    order = sorted(range(len(rows)), key=lambda n: (rows[n][3], int(rows[n][0])))
    for n in order:
        np.testing.assert_array_equal(
            score(online, rows[n]).features[0], batched.features[n]
        )
    assert stored(redis_client) == before


def test_event_applied_twice_changes_nothing(
    online: OnlineFeatures, redis_client: redis.Redis
) -> None:
    """Again in its batch, in another batch or by load: same answer, same bytes."""
    rows = random_rows(20, seed=3)
    first = score(online, *rows)
    assert set(first.applied.tolist()) == {Applied.YES}
    before = stored(redis_client)
    twice = score(online, *rows, *rows)
    np.testing.assert_array_equal(twice.features, np.tile(first.features, (2, 1)))
    assert set(twice.applied.tolist()) == {Applied.DUPLICATE}
    for row in rows[::3]:
        score(online, row)
    assert set(online.load(purchases(*rows)).tolist()) == {Applied.DUPLICATE}
    assert stored(redis_client) == before


def test_load_leaves_the_bytes_that_score_leaves(
    online: OnlineFeatures, redis_client: redis.Redis
) -> None:
    """Feeding history and scoring it end in the same store."""
    rows = random_rows(50, seed=4)
    assert set(online.load(purchases(*rows)).tolist()) == {Applied.YES}
    before = stored(redis_client)
    redis_client.flushall()
    score(online, *rows)
    assert stored(redis_client) == before


def test_dry_run_answers_as_applied_and_writes_nothing(
    online: OnlineFeatures, redis_client: redis.Redis
) -> None:
    """Dry, dry again, then for real: one answer, and the store changes at the end."""
    score(online, *random_rows(10, seed=5))
    before = stored(redis_client)
    rows = [("n1", "c1", "t1", NOW_US + DAY_US // 2, 5), ("n2", "new", "t1", NOW_US, 6)]
    dry = [score(online, *rows, write=False) for _ in range(2)]
    assert stored(redis_client) == before
    wet = score(online, *rows)
    for one in dry:
        np.testing.assert_array_equal(one.features, wet.features)
        assert one.degraded.tolist() == wet.degraded.tolist()


def test_dry_run_counts_an_applied_id_once(online: OnlineFeatures) -> None:
    """Asking "what if" about a purchase that was applied does not count it again."""
    row = ("1", "c", "t", NOW_US, 100)
    wet = score(online, row)
    dry = score(online, row, write=False)
    np.testing.assert_array_equal(dry.features, wet.features)


def test_batches_of_one_call_see_what_was_written_before(
    online: OnlineFeatures, redis_client: redis.Redis
) -> None:
    """Dry, wet, dry in one round trip: no one sees a dry one, all see the wet one."""
    batches = [purchases((one, "c", "t", NOW_US, 100)) for one in ("1", "2", "3")]
    answers = online.score(batches, write=[False, True, False])
    counts = [named(online, one, "customer_nb_tx_1d") for one in answers]
    assert counts == [[1], [1], [2]]
    assert [bits(one) for one in answers] == [
        [Degraded.COLD_START],
        [Degraded.COLD_START],
        [0],
    ]
    (value,) = [stored(redis_client)[key] for key in redis_client.keys("*customer:c")]
    assert unpack_values([value]).entries.starts.tolist() == [0, 1]


def test_empty_batch_has_an_empty_answer(online: OnlineFeatures) -> None:
    """No rows: no vectors, no error."""
    none = Purchases([], [[], []], np.zeros(0, np.int64), np.zeros(0, np.int64))
    (vectors,) = online.score([none], write=[True])
    assert vectors.features.shape == (0, 15)
    assert online.score([], write=[]) == []


def test_first_purchase_of_an_entity_is_a_cold_start(online: OnlineFeatures) -> None:
    """The bit is set until each of the entities has an earlier purchase."""
    rows: Sequence[Row] = [
        ("1", "c", "t", NOW_US, 1),
        ("2", "c", "u", NOW_US + 1, 1),
        ("3", "c", "t", NOW_US + 2, 1),
    ]
    assert bits(score(online, *rows)) == [Degraded.COLD_START, Degraded.COLD_START, 0]


PAST: Row = ("1", "c", "t", NOW_US - 8 * DAY_US, 100)


@pytest.mark.parametrize("label_first", [False, True])
def test_label_counts_whether_it_comes_before_or_after_its_purchase(
    online: OnlineFeatures, redis_client: redis.Redis, *, label_first: bool
) -> None:
    """A waiting label is no purchase; joined, the value is the same either way."""
    known = label(PAST, fraud=1, known_us=NOW_US)
    if label_first:
        online.label(known)
        alone = score(online, ("x", "c", "t", NOW_US, 5), write=False)
        assert named(online, alone, "terminal_nb_tx_7d") == [0]
        assert named(online, alone, "terminal_risk_7d") == [0]
    score(online, PAST)
    if not label_first:
        online.label(known)
    before = stored(redis_client)
    online.label(known)
    assert stored(redis_client) == before
    for time_us, risk in ((NOW_US - 1, 0.0), (NOW_US, 1.0)):
        vectors = score(online, ("2", "c", "t", time_us, 5), write=False)
        assert named(online, vectors, "terminal_nb_tx_7d") == [1]
        assert named(online, vectors, "terminal_risk_7d") == [risk]
    flat = unpack_values(list(before.values())).entries
    assert flat.purchase.astype(bool).tolist() == [True, True]
    assert flat.fraud_at.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("revisions", "risk"),
    [
        ([(0, 1), (1, 0)], 0.0),
        ([(1, 0), (0, 1)], 0.0),
        ([(0, 0), (2, 1), (1, 0)], 1.0),
        ([(1, 1), (1, 0)], 1.0),  # of equal revisions the first stays
    ],
)
def test_higher_revision_replaces_a_lower(
    online: OnlineFeatures, revisions: list[tuple[int, int]], risk: float
) -> None:
    """In any order of arrival; a lower or an equal one changes nothing."""
    score(online, PAST)
    seen = []
    for revision, fraud in revisions:
        known = label(PAST, fraud=fraud, known_us=PAST[3], revision=revision)
        seen += online.label(known).tolist()
    vectors = score(online, ("2", "c", "t", NOW_US, 5), write=False)
    assert named(online, vectors, "terminal_risk_7d") == [risk]
    highest = [
        all(before < revision for before, _ in revisions[:n])
        for n, (revision, _) in enumerate(revisions)
    ]
    assert seen == [Applied.YES if one else Applied.DUPLICATE for one in highest]


def test_products_and_states_do_not_share_values(
    online: OnlineFeatures,
    spec: FeatureSpec,
    store_url: str,
    open_store: OpenStore,
    redis_client: redis.Redis,
) -> None:
    """Another state hash is another key prefix: neither sees the other's events."""
    other = msgspec.structs.replace(spec, state_hash=spec.state_hash ^ 1)
    extra_commands = OnlineFeatures(other, open_store(store_url))
    row = ("1", "c", "t", NOW_US, 100)
    score(online, row)
    assert bits(score(extra_commands, row)) == [Degraded.COLD_START]
    assert len(stored(redis_client)) == 4


def test_ids_of_any_bytes_are_keys(
    online: OnlineFeatures, redis_client: redis.Redis
) -> None:
    """128 bytes, spaces, line ends, zeros and non-ASCII letters name entities apart."""
    ids = ["é" * 64, "é" * 63 + "xy", "a b", "a\r\nb", "a\0", "a", "*", "客户"]
    rows = [(one, one, one, NOW_US, 100) for one in ids]
    vectors = score(online, *rows)
    assert named(online, vectors, "customer_nb_tx_1d") == [1] * len(ids)
    assert redis_client.dbsize() == 2 * len(ids)
    again = score(online, *rows)
    assert set(again.applied.tolist()) == {Applied.DUPLICATE}

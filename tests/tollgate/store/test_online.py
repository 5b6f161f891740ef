"""The online path over a real Redis: what a batch reads, and what it leaves behind."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import numpy as np
import pytest
import redis

from tollgate.features import assemble
from tollgate.features.entries import unpack_values
from tollgate.features.spec import FeatureSpec
from tollgate.schema import Applied, Degraded
from tollgate.store.events import Labels, Packer, Purchases
from tollgate.store.online import OnlineFeatures, Vectors
from tollgate.store.redis import RedisStore

OpenStore = Callable[..., RedisStore]

DAY_US = 86_400_000_000
NOW_US = 1_600_000_000_000_000

# (transaction, customer, terminal, time, cents)
Row = tuple[str, str, str, int, int]


def purchases(*rows: Row) -> Purchases:
    """Purchases, one tuple each."""
    one, customer, terminal, time_us, cents = zip(*rows, strict=True)
    return Purchases(
        transaction_id=[text.encode() for text in one],
        entity_id=[[text.encode() for text in ids] for ids in (customer, terminal)],
        event_time_us=np.array(time_us, np.int64),
        cents=np.array(cents, np.int64),
    )


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


@pytest.fixture
def online(spec: FeatureSpec, store_url: str, open_store: OpenStore) -> OnlineFeatures:
    """The product's features over an empty store."""
    return OnlineFeatures(spec, open_store(store_url))


@pytest.fixture
def small(spec: FeatureSpec, store_url: str, open_store: OpenStore) -> OnlineFeatures:
    """The same with values that are full at four entries."""
    entities = tuple(msgspec.structs.replace(one, cap=4) for one in spec.entities)
    capped = msgspec.structs.replace(spec, entities=entities)
    return OnlineFeatures(capped, open_store(store_url))


def score(online: OnlineFeatures, *rows: Row, write: bool = True) -> Vectors:
    """Score one batch."""
    (vectors,) = online.score([purchases(*rows)], write=[write])
    return vectors


def named(online: OnlineFeatures, vectors: Vectors, name: str) -> list[float]:
    """One feature of every row."""
    return vectors.features[:, online.spec.feature_names.index(name)].tolist()


def stored(client: redis.Redis) -> dict[bytes, bytes]:
    """All values, by key."""
    return {key: client.get(key) for key in client.scan_iter()}


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
    kept = stored(redis_client)
    for seed in range(4):
        order = np.random.default_rng(seed).permutation(len(rows))
        redis_client.flushall()
        again = score(online, *[rows[n] for n in order])
        np.testing.assert_array_equal(again.features, first.features[order])
        assert again.degraded.tolist() == first.degraded[order].tolist()
        assert again.applied.tolist() == first.applied[order].tolist()
        assert stored(redis_client) == kept


def test_alone_equals_batched(
    online: OnlineFeatures, redis_client: redis.Redis
) -> None:
    """Row by row in the order of (time, id): the same vectors and bytes."""
    rows = random_rows(32, seed=2)
    batched = score(online, *rows)
    kept = stored(redis_client)
    redis_client.flushall()
    order = sorted(range(len(rows)), key=lambda n: (rows[n][3], int(rows[n][0])))
    for n in order:
        np.testing.assert_array_equal(
            score(online, rows[n]).features[0], batched.features[n]
        )
    assert stored(redis_client) == kept


def test_event_applied_twice_changes_nothing(
    online: OnlineFeatures, redis_client: redis.Redis
) -> None:
    """Again in its batch, in another batch or by load: same answer, same bytes."""
    rows = random_rows(20, seed=3)
    first = score(online, *rows)
    assert set(first.applied.tolist()) == {Applied.YES}
    kept = stored(redis_client)
    twice = score(online, *rows, *rows)
    np.testing.assert_array_equal(twice.features, np.tile(first.features, (2, 1)))
    assert set(twice.applied.tolist()) == {Applied.DUPLICATE}
    for row in rows[::3]:
        score(online, row)
    assert set(online.load(purchases(*rows)).tolist()) == {Applied.DUPLICATE}
    assert stored(redis_client) == kept


def test_load_leaves_the_bytes_that_score_leaves(
    online: OnlineFeatures, redis_client: redis.Redis
) -> None:
    """Feeding history and scoring it end in the same store."""
    rows = random_rows(50, seed=4)
    assert set(online.load(purchases(*rows)).tolist()) == {Applied.YES}
    kept = stored(redis_client)
    redis_client.flushall()
    score(online, *rows)
    assert stored(redis_client) == kept


def test_dry_run_answers_as_applied_and_writes_nothing(
    online: OnlineFeatures, redis_client: redis.Redis
) -> None:
    """Dry, dry again, then for real: one answer, and the store changes at the end."""
    score(online, *random_rows(10, seed=5))
    kept = stored(redis_client)
    rows = [("n1", "c1", "t1", NOW_US + DAY_US // 2, 5), ("n2", "new", "t1", NOW_US, 6)]
    dry = [score(online, *rows, write=False) for _ in range(2)]
    assert stored(redis_client) == kept
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


def bits(vectors: Vectors) -> list[int]:
    """The degraded bits of every row."""
    return vectors.degraded.tolist()


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
    kept = stored(redis_client)
    online.label(known)
    assert stored(redis_client) == kept
    for time_us, risk in ((NOW_US - 1, 0.0), (NOW_US, 1.0)):
        vectors = score(online, ("2", "c", "t", time_us, 5), write=False)
        assert named(online, vectors, "terminal_nb_tx_7d") == [1]
        assert named(online, vectors, "terminal_risk_7d") == [risk]
    flat = unpack_values(list(kept.values())).entries
    assert flat.purchase.astype(bool).tolist() == flat.fraud.tolist() == [True, True]


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


def test_too_late_event_is_scored_flagged_and_not_applied(
    online: OnlineFeatures, redis_client: redis.Redis
) -> None:
    """Exactly at the horizon it is applied, one µs older it is not; by entity."""
    customer_us = online.spec.entities[0].horizon_us
    score(online, ("1", "c", "t", NOW_US, 100))
    kept = stored(redis_client)
    late = score(online, ("2", "c", "t", NOW_US - customer_us - 1, 900))
    assert late.applied.tolist() == [Applied.NO]
    assert bits(late)[0] & Degraded.EVENT_TOO_LATE
    assert named(online, late, "amount") == [9.0]
    (key,) = redis_client.keys("*customer:c")
    assert redis_client.get(key) == kept[key]
    edge = score(online, ("3", "c", "u", NOW_US - customer_us, 900))
    assert edge.applied.tolist() == [Applied.YES]
    assert redis_client.get(key) != kept[key]


def test_row_whose_windows_were_trimmed_is_flagged(online: OnlineFeatures) -> None:
    """Further behind than the lateness, windows may lack what was trimmed."""
    lateness_us = online.spec.lateness_us
    score(online, ("0", "c", "t", NOW_US - 2 * DAY_US, 1))
    score(online, ("1", "c", "t", NOW_US, 1))
    flags = [
        bits(score(online, (f"2{n}", "c", "t", NOW_US - lateness_us - n, 1)))[0]
        for n in (0, 1)
    ]
    assert flags == [0, Degraded.EVENT_TOO_LATE]


def test_full_value_drops_its_oldest_and_says_so(
    small: OnlineFeatures, redis_client: redis.Redis
) -> None:
    """Six purchases into four places: two counted, the rows that miss them flagged."""
    rows = [(str(n), "c", f"t{n}", NOW_US + n, 100) for n in range(6)]
    for row in rows[:5]:
        vectors = score(small, row)
    assert bits(vectors)[0] & Degraded.WINDOW_OVERFLOW
    vectors = score(small, rows[5])
    assert named(small, vectors, "customer_nb_tx_1d") == [4]
    (key,) = redis_client.keys("*customer:c")
    values = unpack_values([redis_client.get(key)])
    assert values.overflow.tolist() == [2]
    assert (values.entries.time_us - NOW_US).tolist() == [2, 3, 4, 5]
    kept = redis_client.get(key)
    again = score(small, *rows)
    assert redis_client.get(key) == kept
    assert again.applied.tolist() == [Applied.NO] * 2 + [Applied.DUPLICATE] * 4


def test_overflow_is_over_when_no_window_reaches_it(small: OnlineFeatures) -> None:
    """A customer that was busy once is not degraded for ever."""
    for n in range(6):
        score(small, (str(n), "c", "t", NOW_US + n, 100))
    # The row itself pushes out one more, the purchase of NOW_US + 2.
    for after_us, flagged in ((1, True), (2, False)):
        row = ("a", "c", "u", NOW_US + after_us + 30 * DAY_US, 1)
        flags = bits(score(small, row, write=False))[0]
        assert bool(flags & Degraded.WINDOW_OVERFLOW) == flagged


@pytest.mark.parametrize("at", [0, 1, 5, 9, 17, 25, 31, 32, 40, 60, 70, 79])
def test_damaged_value_costs_only_its_own_rows(
    online: OnlineFeatures, redis_client: redis.Redis, at: int
) -> None:
    """One flipped byte: bit and defaults for that customer, neighbours as before."""
    score(online, ("1", "c", "t", NOW_US, 100), ("2", "d", "t", NOW_US, 100))
    rows: Sequence[Row] = [
        ("3", "d", "t", NOW_US + 1, 700),
        ("4", "c", "t", NOW_US + 1, 300),
        ("5", "e", "u", NOW_US + 2, 900),
    ]
    sound = score(online, *rows, write=False)
    (key,) = redis_client.keys("*customer:c")
    damaged = bytearray(redis_client.get(key))
    damaged[at] ^= 0x40
    redis_client.set(key, bytes(damaged))
    vectors = score(online, *rows, write=False)
    assert bits(vectors)[1] & Degraded.STATE_CORRUPT
    batch = purchases(rows[1])
    fallback = assemble.defaults(
        online.spec, cents=batch.cents, time_us=batch.event_time_us
    )
    np.testing.assert_array_equal(vectors.features[1], fallback[0])
    np.testing.assert_array_equal(vectors.features[[0, 2]], sound.features[[0, 2]])
    assert [bits(vectors)[n] for n in (0, 2)] == [bits(sound)[n] for n in (0, 2)]


@pytest.mark.parametrize("at", [2, 13])
def test_damage_to_what_an_update_writes_anew_is_harmless(
    online: OnlineFeatures, redis_client: redis.Redis, at: int
) -> None:
    """Padding and the count of entries are rebuilt: the next update repairs them."""
    score(online, ("1", "c", "t", NOW_US, 100))
    (key,) = redis_client.keys("*customer:c")
    sound = redis_client.get(key)
    damaged = bytearray(sound)
    damaged[at] ^= 0x40
    redis_client.set(key, bytes(damaged))
    again = score(online, ("1", "c", "t", NOW_US, 100))  # changes nothing
    assert bits(again)[0] & Degraded.STATE_CORRUPT
    vectors = score(online, ("2", "c", "t", NOW_US + 1, 100))
    assert bits(vectors) == [0]
    assert named(online, vectors, "customer_nb_tx_1d") == [2]


@pytest.mark.parametrize("at", [4, 9, 17, 25, 35, 45, 70])
def test_damage_survives_updates(
    online: OnlineFeatures, redis_client: redis.Redis, at: int
) -> None:
    """An update keeps a running checksum: it does not make a damaged value sound."""
    score(online, ("1", "c", "t", NOW_US, 100))
    (key,) = redis_client.keys("*customer:c")
    damaged = bytearray(redis_client.get(key))
    damaged[at] ^= 1
    redis_client.set(key, bytes(damaged))
    for n in range(2, 6):
        vectors = score(online, (str(n), "c", "u", NOW_US + n * 20 * DAY_US, 100))
        assert bits(vectors)[0] & Degraded.STATE_CORRUPT


@pytest.mark.parametrize("value", [b"", b"?", bytes(31), b"\2\x30" + bytes(30)])
def test_value_that_is_none_of_ours_costs_only_its_own_rows(
    online: OnlineFeatures, redis_client: redis.Redis, value: bytes
) -> None:
    """Too short or of another version: not applied, not overwritten, no error."""
    key = Packer(online.spec).key(0, b"c")
    redis_client.set(key, value)
    vectors = score(online, ("1", "c", "t", NOW_US, 1), ("2", "d", "t", NOW_US, 2))
    assert vectors.applied.tolist() == [Applied.NO, Applied.YES]
    assert named(online, vectors, "terminal_nb_tx_7d")[1] == 0
    assert redis_client.get(key) == value
    if value:
        assert bits(vectors)[0] & Degraded.STATE_CORRUPT


def test_products_and_states_do_not_share_values(
    online: OnlineFeatures,
    spec: FeatureSpec,
    store_url: str,
    open_store: OpenStore,
    redis_client: redis.Redis,
) -> None:
    """Another state hash is another key prefix: neither sees the other's events."""
    other = msgspec.structs.replace(spec, state_hash=spec.state_hash ^ 1)
    beside = OnlineFeatures(other, open_store(store_url))
    row = ("1", "c", "t", NOW_US, 100)
    score(online, row)
    assert bits(score(beside, row)) == [Degraded.COLD_START]
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

"""The online path over values that are full, trimmed, damaged or none of ours."""

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
from tollgate.features import assemble
from tollgate.features.spec.feature_spec import FeatureSpec
from tollgate.features.windows.entity_entries import unpack_values
from tollgate.schema import Applied, Degraded
from tollgate.store.online_features import OnlineFeatures
from tollgate.store.store_events import Packer

pytestmark = pytest.mark.usefixtures("both_readers")


@pytest.fixture
def small(spec: FeatureSpec, store_url: str, open_store: OpenStore) -> OnlineFeatures:
    """The product's features over an empty store; values are full at four entries."""
    entities = tuple(msgspec.structs.replace(one, cap=4) for one in spec.entities)
    capped = msgspec.structs.replace(spec, entities=entities)
    return OnlineFeatures(capped, open_store(store_url))


def test_too_late_event_is_scored_flagged_and_not_applied(
    online: OnlineFeatures, redis_client: redis.Redis
) -> None:
    """31 days are rounded down to 2**38 µs: at the edge applied, one µs older not."""
    edge_us = NOW_US - 31 * DAY_US
    edge_us -= edge_us % 2**38
    score(online, ("1", "c", "t", NOW_US, 100))
    before = stored(redis_client)
    late = score(online, ("2", "c", "t", edge_us - 1, 900))
    assert late.applied.tolist() == [Applied.NO]
    assert bits(late)[0] & Degraded.EVENT_TOO_LATE
    assert named(online, late, "amount") == [9.0]
    (key,) = redis_client.keys("*customer:c")
    assert redis_client.get(key) == before[key]
    edge = score(online, ("3", "c", "u", edge_us, 900))
    assert edge.applied.tolist() == [Applied.YES]
    assert bits(edge)[0] & Degraded.EVENT_TOO_LATE
    assert redis_client.get(key) != before[key]


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
    before = redis_client.get(key)
    again = score(small, *rows)
    assert redis_client.get(key) == before
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
    fallback = assemble.assemble(
        online.spec, cents=batch.cents, time_us=batch.event_time_us, sums=()
    )
    np.testing.assert_array_equal(vectors.features[1], fallback[0])
    np.testing.assert_array_equal(vectors.features[[0, 2]], sound.features[[0, 2]])
    assert [bits(vectors)[n] for n in (0, 2)] == [bits(sound)[n] for n in (0, 2)]


@pytest.mark.parametrize("at", [2, 13])
def test_damage_to_rewritten_bytes_is_harmless(
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

"""Entries with columns: their bytes, their order, labels that come first, damage."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import redis

from tests.support.store.wide_spec import WIDE
from tollgate.features.fields import hash_words
from tollgate.features.spec.feature_spec import FeatureSpec, load_spec
from tollgate.features.windows.entity_entries import ENTRY, MISSING, unpack_values
from tollgate.schema import Applied, Degraded
from tollgate.store.online_features import OnlineFeatures
from tollgate.store.redis.redis_store import RedisStore
from tollgate.store.store_events import (
    Labels,
    Packer,
    Purchases,
    entity_columns,
    purchase_entries,
    widened,
)

pytestmark = pytest.mark.usefixtures("both_packers", "both_readers")

OpenStore = Callable[..., RedisStore]
AT_US = 1_600_000_000_000_000
# What the store held before entries could have columns: three purchases of one owner,
# of which one was labelled before it came.
KEPT = bytes.fromhex(
    "01300000e2d593de000000000300000000e1990d31af05000000000000000000"
    "0000a40731af050001310000000000000000000000000000f6fc42039fba3776"
    "640000000100000000000000000000000000a40731af05000232320000000000"
    "000000000000000055026919b0714fac00000020010000000000000000000000"
    "00e1990d31af050016612d6c6f6e6765722d69642d6f662df2ba0692c4dd9051"
    "000000000703000005e1990d31af0500"
)


@pytest.fixture
def wide(tmp_path: Path) -> FeatureSpec:
    """Two columns for a customer, none for a terminal."""
    path = tmp_path / "features.yaml"
    path.write_text(WIDE)
    return load_spec(path)


def bought(*rows: tuple[bytes, int, int | None]) -> Purchases:
    """Purchases (id, µs after, items) of one customer at terminals a, b, a, …"""
    items = [MISSING if one is None else one for _, _, one in rows]
    return Purchases(
        transaction_id=[one for one, _, _ in rows],
        entity_id=[
            [b"c"] * len(rows),
            [b"ab"[n % 2 : n % 2 + 1] for n in range(len(rows))],
        ],
        event_time_us=np.array([AT_US + after for _, after, _ in rows]),
        cents=np.full(len(rows), 100),
        fields={"items": np.array(items)},
    )


def test_without_columns_the_bytes_are_those_of_before(
    spec: FeatureSpec, store_url: str, open_store: OpenStore, redis_client: redis.Redis
) -> None:
    """Keys and values of the fraud product, against recorded ones."""
    online = OnlineFeatures(spec, open_store(store_url))
    ids = [b"1", b"22", b"a-longer-id-of-its-own"]
    times = np.array([AT_US, AT_US, AT_US + 100_000_000])
    online.label(
        Labels(
            transaction_id=ids[2:],
            entity_id=[[b"c"], [b"t"]],
            event_time_us=times[2:],
            label=np.array([1], np.int8),
            label_time_us=times[2:] + 5,
            revision=np.array([3]),
        )
    )
    online.load(
        Purchases(
            transaction_id=ids,
            entity_id=[[b"c"] * 3, [b"t"] * 3],
            event_time_us=times,
            cents=np.array([100, 2**29, 0]),
        )
    )
    prefix = b"tollgate:fraud:2cf96ef3ba675808:"
    assert sorted(redis_client.scan_iter()) == [
        prefix + b"customer:c",
        prefix + b"terminal:t",
    ]
    for key in redis_client.scan_iter():
        assert redis_client.get(key) == KEPT


def test_columns_follow_their_entry(
    wide: FeatureSpec, store_url: str, open_store: OpenStore, redis_client: redis.Redis
) -> None:
    """Items, then the terminal's hash, as int64; and a header that says 64 bytes."""
    online = OnlineFeatures(wide, open_store(store_url))
    online.load(bought((b"2", 5, 7), (b"1", 3, None)))
    packer = Packer(wide)
    value = redis_client.get(packer.key(0, b"c"))
    assert len(value) == 32 + 2 * 64
    assert value[:2] == bytes([1, 64])
    shops = hash_words([b"a", b"b"]).tolist()
    assert struct.unpack("<2q", value[32 + 48 : 32 + 64]) == (MISSING, shops[1])
    assert struct.unpack("<2q", value[32 + 112 : 32 + 128]) == (7, shops[0])
    assert len(redis_client.get(packer.key(1, b"a"))) == 32 + 48
    words = np.frombuffer(value, "<u4").tolist()
    assert words[1] == (sum(words) - words[1]) % 2**32


def test_label_that_comes_first_waits_for_the_columns(
    wide: FeatureSpec, store_url: str, open_store: OpenStore
) -> None:
    """The purchase brings them; a label that comes after keeps them."""
    online = OnlineFeatures(wide, open_store(store_url))
    purchases = bought((b"1", 0, 4), (b"2", 1, 5))
    for when, revision in (("before", 0), ("after", 1)):
        if when == "after":
            online.load(purchases)
        online.label(
            Labels(
                transaction_id=[b"1", b"2"],
                entity_id=purchases.entity_id,
                event_time_us=purchases.event_time_us,
                label=np.array([1, 1], np.int8),
                label_time_us=purchases.event_time_us,
                revision=np.full(2, revision),
            )
        )
    (vectors,) = online.score([purchases], write=[False])
    assert vectors.features.tolist() == [[4, 1, 1], [9, 2, 1]]
    assert vectors.applied.tolist() == [Applied.DUPLICATE] * 2


def test_value_of_another_width_is_damage(
    wide: FeatureSpec, store_url: str, open_store: OpenStore, redis_client: redis.Redis
) -> None:
    """Not decoded, not overwritten: a bit, and defaults."""
    online = OnlineFeatures(wide, open_store(store_url))
    key = online._packer.key(0, b"c")
    redis_client.set(key, KEPT)
    (vectors,) = online.score([bought((b"9", 0, 4))], write=[True])
    assert vectors.degraded.tolist() == [Degraded.STATE_CORRUPT | Degraded.COLD_START]
    assert vectors.features.tolist() == [[0, 0, 0]]
    assert redis_client.get(key) == KEPT


def test_values_of_several_widths_unpack_side_by_side(wide: FeatureSpec) -> None:
    """Never seen, damaged, with and without columns, in any order."""
    entries = purchase_entries(bought((b"1", 0, 4), (b"2", 1, 5)))
    columns = np.array([[4, 40], [5, 50]])
    value = packed(widened(entries, columns, width=2).tobytes(), count=2)
    narrow = packed(entries.tobytes(), count=2)
    torn = value[:-8]
    values = unpack_values([value, narrow, b"", torn, value], columns=[2, 0, 2, 2, 2])
    assert values.corrupt.tolist() == [False, False, False, True, False]
    assert values.entries.starts.tolist() == [0, 2, 4, 4, 4, 6]
    missing = [MISSING] * 2
    assert values.entries.columns.tolist() == [
        [4, 5, *missing, 4, 5],
        [40, 50, *missing, 40, 50],
    ]
    assert values.entries.time_us.tolist() == [AT_US, AT_US + 1] * 3
    swapped = unpack_values([value], columns=[1])
    assert swapped.corrupt.tolist() == [True]


def packed(body: bytes, *, count: int) -> bytes:
    """Put a header before entries."""
    size = len(body) // count
    head = struct.pack("<BBHIIIqq", 1, size, 0, 0, 0, count, AT_US + 1, 0)
    words = np.frombuffer(head + body, "<u4").sum(dtype=np.uint32)
    return head[:4] + struct.pack("<I", words) + head[8:] + body


def test_columns_are_laid_out_per_entity(wide: FeatureSpec) -> None:
    """By name; ids of others as hashes; a field that no one sent is missing."""
    customer, terminal = entity_columns(wide, [[b"c", b"c"], [b"a", b"b"]], fields={})
    assert customer[:, 0].tolist() == [MISSING, MISSING]
    assert customer[:, 1].tolist() == hash_words([b"a", b"b"]).tolist()
    assert terminal.shape == (2, 0)
    entries = purchase_entries(bought((b"1", 0, 4)))
    assert widened(entries, None, width=0).dtype == ENTRY
    whole = widened(entries, None, width=2).tobytes()
    assert whole == entries.tobytes() + struct.pack("<2q", MISSING, MISSING)

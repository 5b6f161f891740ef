"""Prepared candidates are packed, and read by hand; damage is found."""

from __future__ import annotations

import struct
import zlib

import msgspec
import numpy as np
import pytest

from tollgate.ranking.history import UserHistory
from tollgate.ranking.prepared import (
    PreparedCandidates,
    decode_prepared,
    encode_prepared,
    history_hash,
    life_of,
    prepared_key,
)

MADE = PreparedCandidates(
    ranker=2**64 - 3,
    history=7,
    made_us=1_700_000_000_000_000,
    life_us=3_600_000_000,
    items=np.array([5, 0, 300], np.int32),
    sources=np.array([0, 1, 2], np.uint8),
    relevance=np.array([1.5, -0.25, np.nan], np.float32),
)


def test_an_entry_has_the_documented_bytes() -> None:
    raw = encode_prepared(MADE)
    head = struct.pack("<BBH", 1, 2, 3)
    rest = struct.pack(
        "<QQqq", 2**64 - 3, 7, 1_700_000_000_000_000, 3_600_000_000
    ) + struct.pack("<3H3B3f", 5, 0, 300, 0, 1, 2, 1.5, -0.25, float("nan"))
    assert raw == head + struct.pack("<I", zlib.crc32(head + rest)) + rest


@pytest.mark.parametrize("most", [300, 65_536])
def test_an_entry_is_read_as_it_was_packed(most: int) -> None:
    items = np.array([5, 0, most], np.int32)
    made = msgspec.structs.replace(MADE, items=items)
    found = decode_prepared(encode_prepared(made), items=most + 1)
    assert found is not None
    for name in PreparedCandidates.__struct_fields__:
        was, now = getattr(made, name), getattr(found, name)
        if isinstance(was, np.ndarray):
            assert was.dtype == now.dtype
            assert was.tobytes() == now.tobytes()
        else:
            assert was == now


def test_every_damage_is_found() -> None:
    raw = encode_prepared(MADE)
    for size in range(len(raw)):
        assert decode_prepared(raw[:size], items=301) is None
    for at in range(len(raw)):
        for bit in range(8):
            changed = bytearray(raw)
            changed[at] ^= 1 << bit
            assert decode_prepared(bytes(changed), items=301) is None
    assert decode_prepared(raw + b"\0", items=301) is None
    assert decode_prepared(raw, items=300) is None  # of a larger catalogue
    source = msgspec.structs.replace(MADE, sources=np.array([0, 1, 3], np.uint8))
    assert decode_prepared(encode_prepared(source), items=301) is None


def test_lives_spread_by_a_fifth() -> None:
    lives = [life_of(b"user-%d" % at, 1_000_000) for at in range(2_000)]
    assert 800_000 <= min(lives) < 802_000
    assert 1_198_000 < max(lives) <= 1_200_000
    assert np.mean(lives) == pytest.approx(1_000_000, rel=0.02)
    assert life_of(b"user-1", 1_000_000) == lives[1]


def test_the_hash_is_that_of_the_events_alone() -> None:
    """Any change of an event changes it; what stands after the last event does not."""
    history = UserHistory(
        time_us=np.array([[30, 20, 99]]),
        columns={"item": np.array([[3, 2, 99]]), "action": np.array([[0, 1, 99]])},
        count=np.array([2]),
        known=np.array([True]),
        prepared=np.array([None], np.object_),
    )
    found = {history_hash(history, 0)}
    history.time_us[0, 2] = history.columns["item"][0, 2] = 5
    assert found == {history_hash(history, 0)}
    for column in (history.time_us, *history.columns.values()):
        for at in range(2):
            column[0, at] += 1
            found.add(history_hash(history, 0))
    history.count[0] = 1
    found.add(history_hash(history, 0))
    assert len(found) == 8


def test_a_key_names_product_and_user() -> None:
    assert prepared_key("shop", b"a:b\xff") == b"tollgate:shop:prepared:a:b\xff"

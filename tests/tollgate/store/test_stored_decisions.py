"""A stored decision: packed values are read back, and damaged ones are refused."""

from __future__ import annotations

import struct
import zlib

import numpy as np
import pytest

from tollgate.schema import EARLIER_BYTES, Decision
from tollgate.store.stored_decisions import (
    DECIDED,
    pack_stored_decision,
    read_stored_decisions,
    store_command,
    stored_decision_key,
    verified_fingerprint,
)

FINGERPRINT = 0xFEDC_BA98_7654_3210
SCORES = np.array([0.0, 1.0, 0.1, np.nan, np.nextafter(np.float32(0.5), 0)], np.float32)


def packed(**changes: object) -> bytes:
    """Pack a decision like many."""
    given = {
        "decision": Decision.REVIEW,
        "score": 0.25,
        "degraded": 5,
        "release": b"fraud-7",
        "codes": b"SCORE_REVIEW|NIGHT",
    } | changes
    return pack_stored_decision(FINGERPRINT, **given)  # type: ignore[arg-type]


def slots(*values: bytes) -> np.ndarray:
    """Lay values out as the context does."""
    return np.array(values, f"S{EARLIER_BYTES}").view(f"V{EARLIER_BYTES}")


def test_layout_is_the_contracts() -> None:
    """Built by hand, byte by byte."""
    texts = b"fraud-7SCORE_REVIEW|NIGHT"
    head = struct.pack("<BBH", 1, 1, 7)
    rest = struct.pack("<QIfH", FINGERPRINT, 5, 0.25, 18) + texts
    checksum = zlib.crc32(head + rest)
    assert packed() == head + struct.pack("<I", checksum) + rest
    assert len(packed()) == DECIDED.itemsize + len(texts)


@pytest.mark.parametrize("score", SCORES, ids=str)
def test_every_bit_comes_back(score: np.float32) -> None:
    """Scores to the last bit, NaN among them; bits and bytes of any value."""
    codes, release = bytes(range(1, 200)), b"r" * 64
    value = packed(score=float(score), codes=codes, release=release, degraded=2**32 - 1)
    assert verified_fingerprint(value) == FINGERPRINT
    rows = read_stored_decisions(slots(packed(), value, packed(codes=b"", release=b"")))
    assert rows.score[1:2].tobytes() == score.tobytes()
    assert rows.degraded.tolist() == [5, 2**32 - 1, 5]
    assert rows.decision.tolist() == [1, 1, 1]
    assert rows.reason_codes.tolist() == [b"SCORE_REVIEW|NIGHT", codes, b""]
    assert rows.release.tolist() == [b"fraud-7", release, b""]


def test_a_decision_that_is_too_long_is_not_stored() -> None:
    """To the byte; nothing is cut."""
    most = EARLIER_BYTES - DECIDED.itemsize - len(b"fraud-7")
    assert len(packed(codes=b"x" * most)) == EARLIER_BYTES
    assert packed(codes=b"x" * (most + 1)) == b""


def test_any_changed_bit_is_found() -> None:
    """Every single one; and every cut, every byte more."""
    value = packed()
    for place in range(len(value)):
        for bit in range(8):
            wrong = bytearray(value)
            wrong[place] ^= 1 << bit
            assert verified_fingerprint(bytes(wrong)) is None, (place, bit)
    assert all(
        verified_fingerprint(value[:length]) is None for length in range(len(value))
    )
    assert verified_fingerprint(value + b"\0") is None
    assert verified_fingerprint(b"\0" * EARLIER_BYTES) is None


def sealed(head: bytes, rest: bytes) -> bytes:
    """Give bytes the right checksum."""
    return head + struct.pack("<I", zlib.crc32(head + rest)) + rest


def test_what_is_no_decision_of_ours_is_foreign() -> None:
    """Another version, no such decision, lengths that lie, all well sealed."""
    value = packed()
    rest = value[8:]
    assert verified_fingerprint(sealed(value[:4], rest)) == FINGERPRINT
    for head in (b"\x02\x01\x07\x00", b"\x01\x03\x07\x00", b"\x01\x01\x08\x00"):
        assert verified_fingerprint(sealed(head, rest)) is None


def test_key_and_command_are_what_redis_is_sent() -> None:
    """Any id is a key; the first one stays."""
    key = stored_decision_key("fraud", b"\xc3\xbc 1:2")
    assert key == b"tollgate:fraud:decided:\xc3\xbc 1:2"
    command = store_command(key, b"v", window_ms=600_000)
    assert command == (b"SET", key, b"v", b"NX", b"PX", 600_000)

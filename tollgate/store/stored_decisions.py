"""
Store decisions by transaction id for a while, so that retries get the same one.

A client that sends a purchase again gets the decision that was made, not a new one. The
value is a header, the release and the reason codes; docs/contract.md has it byte by
byte.
"""

from __future__ import annotations

import struct
import zlib

import msgspec
import numpy as np
import numpy.typing as npt

from tollgate.schema import EARLIER_BYTES, Decision
from tollgate.store.redis.redis_store import Command

DECIDED_VERSION = 1
DECIDED = np.dtype(
    [
        ("version", "u1"),
        ("decision", "u1"),
        ("release_length", "<u2"),
        ("checksum", "<u4"),  # CRC-32 of all other bytes
        ("fingerprint", "<u8"),
        ("degraded", "<u4"),
        ("score", "<f4"),
        ("codes_length", "<u2"),
    ]
)
_HEAD = struct.Struct("<BBHIQIfH")  # the same value; faster for one
_CHECKSUM = slice(4, 8)
_WORST = max(Decision)


class StoredDecisions(msgspec.Struct, frozen=True, eq=False):
    """
    Hold the stored decisions of M rows.

    Attributes:
        decision: Decision; uint8 [M].
        score: float32 [M].
        degraded: uint32 [M].
        reason_codes: Bytes objects; object [M].
        release: Bytes objects; object [M].
    """

    decision: npt.NDArray[np.uint8]
    score: npt.NDArray[np.float32]
    degraded: npt.NDArray[np.uint32]
    reason_codes: npt.NDArray[np.object_]
    release: npt.NDArray[np.object_]


def stored_decision_key(product: str, transaction_id: bytes) -> bytes:
    """Return the store key of a decision."""
    return b"tollgate:%b:decided:%b" % (product.encode(), transaction_id)


def store_command(key: bytes, value: bytes, *, window_ms: int) -> Command:
    """Build the command that stores a decision for a window, unless one is stored."""
    return (b"SET", key, value, b"NX", b"PX", window_ms)


def pack_stored_decision(
    fingerprint: int,
    *,
    decision: int,
    score: float,
    degraded: int,
    release: bytes,
    codes: bytes,
) -> bytes:
    """
    Pack a decision.

    Args:
        fingerprint: Fingerprint of the purchase.
        decision: Decision.
        score: A float32's value.
        degraded: Its bits.
        release: Name of the release that decided.
        codes: Its reason codes, joined.

    Returns:
        The value; empty when it would be longer than EARLIER_BYTES, and cannot be
        stored.
    """
    if DECIDED.itemsize + len(release) + len(codes) > EARLIER_BYTES:
        return b""
    head = _HEAD.pack(
        *(DECIDED_VERSION, decision, len(release), 0),
        *(fingerprint, degraded, score, len(codes)),
    )
    value = bytearray(head + release + codes)
    value[_CHECKSUM] = _checksum(value).to_bytes(4, "little")
    return bytes(value)


def verified_fingerprint(value: bytes) -> int | None:
    """
    Verify a value from the store; return its fingerprint, or None if it is invalid.
    """
    if not DECIDED.itemsize <= len(value) <= EARLIER_BYTES:
        return None
    version, decision, named, checksum, fingerprint, _, _, coded = _HEAD.unpack_from(
        value
    )
    valid = version == DECIDED_VERSION and decision <= _WORST
    if valid and len(value) == _HEAD.size + named + coded:
        return int(fingerprint) if checksum == _checksum(value) else None
    return None


def read_stored_decisions(slots: npt.NDArray[np.void]) -> StoredDecisions:
    """
    Read values that were verified.

    Args:
        slots: M values, each in EARLIER_BYTES.
    """
    raw = slots.tobytes()
    rows = np.frombuffer(raw, np.uint8).reshape(len(slots), EARLIER_BYTES)
    head = np.ascontiguousarray(rows[:, : DECIDED.itemsize]).view(DECIDED)[:, 0]
    release = np.empty(len(slots), np.object_)
    codes = np.empty(len(slots), np.object_)
    lengths = zip(
        head["release_length"].tolist(), head["codes_length"].tolist(), strict=True
    )
    for row, (named, coded) in enumerate(lengths):
        start = row * EARLIER_BYTES + DECIDED.itemsize
        release[row] = raw[start : start + named]
        codes[row] = raw[start + named : start + named + coded]
    return StoredDecisions(
        decision=head["decision"].astype(np.uint8),
        score=head["score"].astype(np.float32),
        degraded=head["degraded"].astype(np.uint32),
        reason_codes=codes,
        release=release,
    )


def _checksum(value: bytes | bytearray) -> int:
    after = zlib.crc32(value[: _CHECKSUM.start])
    return zlib.crc32(value[_CHECKSUM.stop :], after)

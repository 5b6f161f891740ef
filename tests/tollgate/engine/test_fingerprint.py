"""One number for what a purchase was sent with."""

from __future__ import annotations

import hashlib
import struct

import numpy as np
import pytest

from tollgate.engine.row_batches import fingerprints
from tollgate.features.windows.entity_entries import MISSING

MASK = 2**64 - 1
# Transaction, customer, terminal, cents, time, declared fields.
ROWS = [
    (b"t1", b"c1", b"m1", 100, 1_600_000_000_000_000, {}),
    (b"t2", b"c1", b"m1", 100, 1_600_000_000_000_000, {}),
    (b"t1c1", b"", b"m1", 100, 1_600_000_000_000_000, {}),
    (b"t1", b"c1m", b"1", 100, 1_600_000_000_000_000, {}),
    (b"t1", b"c1", b"m1", 101, 1_600_000_000_000_000, {}),
    (b"t1", b"c1", b"m1", 100, 1_600_000_000_000_001, {}),
    (b"t1", b"c1", b"m1", 100, 1_600_000_000_000_000, {"items": 3}),
    (b"t1", b"c1", b"m1", 100, 1_600_000_000_000_000, {"items": -3}),
    (b"t1", b"c1", b"m1", 100, 1_600_000_000_000_000, {"pieces": 3}),
    (b"t1", b"c1", b"m1", 100, 1_600_000_000_000_000, {"items": 3, "pieces": 4}),
    (b"t1", b"c1", b"m1", 100, 1_600_000_000_000_000, {"items": 4, "pieces": 3}),
    ("ü".encode() * 64, b"c" * 128, b"\xf0\x9f\x98\x80", 10**9, 2**60, {"items": 0}),
]


def by_hand(row: tuple) -> int:
    """Follow docs/contract.md with Python's own numbers."""
    *ids, cents, time_us, fields = row
    total = 0
    for name, value in fields.items():
        digest = hashlib.blake2b(name.encode(), digest_size=8).digest()
        mixed = (value & MASK) ^ int.from_bytes(digest, "little")
        mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & MASK
        mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & MASK
        total += mixed ^ mixed >> 31
    head = struct.pack("<5qQ", *map(len, ids), cents, time_us, total & MASK)
    digest = hashlib.blake2b(head + b"".join(ids), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def of(rows: list[tuple]) -> list[int]:
    """Fingerprints of rows, in one batch."""
    names = {name for row in rows for name in row[5]}
    return fingerprints(
        [[row[at] for row in rows] for at in range(3)],
        cents=np.array([row[3] for row in rows]),
        time_us=np.array([row[4] for row in rows]),
        fields={
            name: np.array([row[5].get(name, MISSING) for row in rows])
            for name in sorted(names)
        },
    ).tolist()


def test_fingerprint_is_what_the_contract_says() -> None:
    """Computed once more with Python's integers, alone and in a batch."""
    assert of(ROWS) == [by_hand(row) for row in ROWS]
    assert [of([row])[0] for row in ROWS] == of(ROWS)


def test_every_input_counts() -> None:
    """No two rows that differ anywhere share one; where an id ends is a difference."""
    assert len(set(of(ROWS))) == len(ROWS)


def test_field_nobody_sent_changes_nothing() -> None:
    """A spec that declares one more field knows a retry of yesterday's request."""
    row = ROWS[0]
    assert of([(*row[:5], {"items": MISSING})]) == of([row])


@pytest.mark.parametrize("rows", [0, 1])
def test_small_batches(rows: int) -> None:
    """None is none."""
    assert len(of(ROWS[:rows])) == rows

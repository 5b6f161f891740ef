"""Unpacking of entity values, and the refusal of damaged ones."""

from __future__ import annotations

import numpy as np
import pytest

from tollgate.features.windows.entity_entries import (
    ENTRY,
    HEADER,
    order_of,
    unpack_values,
)


def packed(*times: int, flags: int = 1) -> bytes:
    """Pack a sound value of purchases at some times; its sum by plain Python."""
    body = np.zeros(len(times), ENTRY)
    body["time_us"], body["flags"], body["cents"] = times, flags, 7
    header = np.zeros(1, HEADER)
    header["version"], header["entry_bytes"] = 1, ENTRY.itemsize
    header["count"], header["watermark_us"] = len(times), max(times, default=0)
    rest = header.tobytes() + body.tobytes()
    words = (rest[at : at + 4] for at in range(0, len(rest), 4))
    total = sum(int.from_bytes(word, "little") for word in words)
    header["checksum"] = total % 2**32
    return header.tobytes() + body.tobytes()


def test_layout_is_32_and_48_bytes() -> None:
    """Lua counts in these sizes."""
    assert (HEADER.itemsize, ENTRY.itemsize) == (32, 48)


def test_values_unpack_side_by_side() -> None:
    """Two values and an entity never seen keep their entries apart."""
    values = unpack_values([packed(5, 6), b"", packed(7), packed()])
    assert values.entries.starts.tolist() == [0, 2, 2, 3, 3]
    assert values.entries.time_us.tolist() == [5, 6, 7]
    assert values.watermark_us.tolist() == [6, 0, 7, 0]
    assert values.corrupt.tolist() == [False] * 4


def test_nothing_unpacks_to_nothing() -> None:
    """No values, or only entities never seen: no entries."""
    assert unpack_values([]).entries.starts.tolist() == [0]
    assert unpack_values([b"", b""]).entries.starts.tolist() == [0, 0, 0]


def test_times_before_1970_keep_their_sign() -> None:
    """A negative time has a sound checksum and is read back."""
    assert unpack_values([packed(-5, -1, 3)]).entries.time_us.tolist() == [-5, -1, 3]


@pytest.mark.parametrize(
    ("flags", "purchase", "fraud"),
    [(1, 1, 0), (2, 0, 0), (6, 0, 0), (3, 1, 0), (7, 1, 1), (7 + 256 * 9, 1, 1)],
)
def test_flags_say_what_counts(flags: int, purchase: int, fraud: int) -> None:
    """A label without its purchase counts for nothing, whatever it holds."""
    entries = unpack_values([packed(5, flags=flags)]).entries
    assert entries.purchase.tolist() == [purchase]
    assert entries.cents.tolist() == [7 * purchase]
    assert entries.fraud_at.tolist() == [0] * fraud


def test_order_is_that_of_its_three_numbers() -> None:
    """Compared as bytes: high half, low half, hash; zeros and high bits included."""
    halves = [0, 1, 255, 256, 2**63 - 1, 2**63, 2**64 - 256, 2**64 - 1]
    source = np.random.default_rng(3)
    body = np.zeros(300, ENTRY)
    for name in ("order_hi", "order_lo", "id_hash"):
        body[name] = source.choice(np.array(halves, np.uint64), 300)
    numbers = body[["order_hi", "order_lo", "id_hash"]].tolist()
    order = order_of(body)
    for row, own in enumerate(numbers):
        upto = order <= order[row : row + 1]
        assert upto.tolist() == [one <= own for one in numbers]


@pytest.mark.parametrize("at", range(32 + 48))
def test_any_flipped_byte_marks_its_value_and_no_other(at: int) -> None:
    """Header, checksum and entries: one changed byte is damage, and left out."""
    damaged = bytearray(packed(5))
    damaged[at] ^= 1 << at % 8
    values = unpack_values([packed(1), bytes(damaged), b"", packed(2, 3)])
    assert values.corrupt.tolist() == [False, True, False, False]
    assert values.entries.starts.tolist() == [0, 1, 1, 1, 3]
    assert values.entries.time_us.tolist() == [1, 2, 3]


@pytest.mark.parametrize("length", [1, 12, 31, 33, 32 + 47, 32 + 49])
def test_value_of_a_wrong_length_is_damaged(length: int) -> None:
    """Cut short or grown: damaged, whatever its header says."""
    value = (packed(5) + bytes(9))[:length]
    assert unpack_values([value]).corrupt.tolist() == [True]

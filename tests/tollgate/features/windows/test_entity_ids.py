"""Order and hash of ids, against Python's own sorting and hashlib."""

from __future__ import annotations

import hashlib
import random

import numpy as np
import pytest

from tollgate.features.windows.entity_entries import hash_ids, order_keys, tie_hashes


def sorted_by_key(ids: list[bytes]) -> list[bytes]:
    """Sort ids as the product does."""
    high, low = order_keys(ids)
    return [ids[n] for n in np.lexsort((tie_hashes(ids), low, high))]


def random_ids(*, longest: int, count: int = 2_000) -> list[bytes]:
    """Draw distinct UTF-8 ids of 1 to `longest` bytes over few letters."""
    source = random.Random(longest)
    letters = "01 aZé€𝄞~\x00\x7f"
    ids = set()
    while len(ids) < count:
        text = "".join(source.choices(letters, k=source.randint(1, longest)))
        if len(text.encode()) <= longest:
            ids.add(text.encode())
    return list(ids)


def test_decimal_ids_count_as_numbers() -> None:
    """By (length, bytes), "9" comes before "10", and "10" before "9a1"."""
    ids = [b"10", b"9", b"100", b"9a1", b"2"]
    assert sorted_by_key(ids) == [b"2", b"9", b"10", b"100", b"9a1"]


@pytest.mark.parametrize("longest", [4, 15])
def test_ids_up_to_fifteen_bytes_sort_by_length_and_bytes(longest: int) -> None:
    """Python's sort by (len, bytes) gives the same order, any bytes included."""
    ids = random_ids(longest=longest)
    assert sorted_by_key(ids) == sorted(ids, key=lambda one: (len(one), one))


def test_longer_ids_sort_by_length_prefix_and_hash() -> None:
    """Beyond fifteen bytes the BLAKE2b of the id settles what the prefix does not."""
    ids = [b"x" * 15 + b"%d" % number for number in range(200)]
    ids += random_ids(longest=128, count=200)

    def key(one: bytes) -> tuple[int, bytes, bytes]:
        digest = hashlib.blake2b(one, digest_size=8).digest()
        return len(one), one[:15], digest if len(one) > 15 else b""

    assert sorted_by_key(ids) == sorted(ids, key=key)


def test_ids_of_128_bytes_keep_their_length() -> None:
    """The longest id allowed sorts after every shorter one."""
    ids = [b"a" * 128, b"z" * 127, "é".encode() * 64]
    assert sorted_by_key(ids) == [b"z" * 127, b"a" * 128, "é".encode() * 64]


def test_trailing_zero_bytes_make_another_id() -> None:
    """An id is not padded: "a" and "a\\0" differ in key and in hash."""
    high, low = order_keys([b"a", b"a\0"])
    assert (high[0], low[0]) != (high[1], low[1])
    assert len(set(hash_ids([b"a", b"a\0"]).tolist())) == 2


def test_hash_is_blake2b_of_the_bytes() -> None:
    """The identity of an event is the first 64 bits, big-endian, of a keyless hash."""
    ids = random_ids(longest=40, count=50)
    wanted = [
        int.from_bytes(hashlib.blake2b(one, digest_size=8).digest(), "big")
        for one in ids
    ]
    assert hash_ids(ids).tolist() == wanted


def test_tie_hash_is_left_out_where_the_key_decides() -> None:
    """Up to fifteen bytes the order key is the id; there is no tie to settle."""
    ids = [b"a" * 15, b"a" * 16]
    assert tie_hashes(ids).tolist() == [0, int(hash_ids(ids)[1])]


def test_no_ids_give_no_keys() -> None:
    """An empty batch is a batch."""
    assert [len(part) for part in (*order_keys([]), hash_ids([]), tie_hashes([]))] == [
        0,
        0,
        0,
        0,
    ]

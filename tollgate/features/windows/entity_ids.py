"""
Order and hash ids, to distinguish events of the same instant.

Ids are ordered by (length, bytes), so that decimal ids sort as numbers. An entry stores
that order in sixteen bytes, the length and the first fifteen bytes: exact for ids up to
fifteen bytes. Longer ids that agree in all of these are ordered by their hash, the same
way offline and online.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

_PREFIX = 15

U64 = npt.NDArray[np.uint64]


def order_keys(ids: Sequence[bytes]) -> tuple[U64, U64]:
    """
    Map ids to two numbers that sort as (length, first fifteen bytes).

    Args:
        ids: N ids of at most 255 bytes.

    Returns:
        The high and the low half of the order key; uint64 [N] each.
    """
    key = np.zeros((len(ids), _PREFIX + 1), np.uint8)
    key[:, 0] = np.fromiter(map(len, ids), np.uint8, len(ids))
    key[:, 1:] = np.array(ids, dtype=f"S{_PREFIX}").view(np.uint8).reshape(-1, _PREFIX)
    halves = key.view(">u8").astype(np.uint64)
    return halves[:, 0], halves[:, 1]


def hash_ids(ids: Sequence[bytes]) -> U64:
    """
    Hash ids to 64 bits (BLAKE2b), the identity of an event in an entity value.

    Returns:
        uint64 [N].
    """
    blake2b = hashlib.blake2b
    packed = b"".join([blake2b(one, digest_size=8).digest() for one in ids])
    return np.frombuffer(packed, ">u8").astype(np.uint64)


def tie_hashes(ids: Sequence[bytes]) -> U64:
    """
    Hash only the ids whose order key does not determine their order.

    Returns:
        uint64 [N]; zero for ids of at most fifteen bytes.
    """
    long = [position for position, one in enumerate(ids) if len(one) > _PREFIX]
    hashes = np.zeros(len(ids), np.uint64)
    if long:
        hashes[long] = hash_ids([ids[position] for position in long])
    return hashes

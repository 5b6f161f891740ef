"""Assign ids to a share by their hash, the same way everywhere."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

_PARTS = 2**32


def in_share(
    ids: Sequence[bytes], *, percent: float, seed: int
) -> npt.NDArray[np.bool_]:
    """
    Return which ids are in a share.

    The hash of an id (BLAKE2b, keyed by the seed) maps it to a number between 0 and
    100; the id is in the share when that number is below the percentage. So a larger
    share contains all of a smaller one, and shares of different seeds are independent.

    Args:
        ids: N ids.
        percent: 0 for none to 100 for all.
        seed: 0 to 2**64 - 1.

    Returns:
        bool [N].
    """
    blake2b, key = hashlib.blake2b, seed.to_bytes(8, "little")
    hashes = b"".join([blake2b(one, digest_size=4, key=key).digest() for one in ids])
    places = np.frombuffer(hashes, "<u4").astype(np.float64) * (100.0 / _PARTS)
    chosen: npt.NDArray[np.bool_] = places < percent
    return chosen

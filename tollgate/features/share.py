"""Which customers are in a share: settled by their ids, the same everywhere."""

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
    Tell which ids are in a share.

    An id falls on a place between 0 and 100 by its hash (BLAKE2b, keyed by the seed),
    and is in the share when that is below the percentage. So a larger share holds all
    of a smaller one, and shares of different seeds have nothing to do with each other.

    Args:
        ids: N ids.
        percent: 0 for nobody to 100 for all.
        seed: 0 to 2**64 - 1.

    Returns:
        bool [N].
    """
    blake2b, key = hashlib.blake2b, seed.to_bytes(8, "little")
    hashes = b"".join([blake2b(one, digest_size=4, key=key).digest() for one in ids])
    places = np.frombuffer(hashes, "<u4").astype(np.float64) * (100.0 / _PARTS)
    chosen: npt.NDArray[np.bool_] = places < percent
    return chosen

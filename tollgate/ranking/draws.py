"""
Draw numbers for one request that depend on nothing but its seed.

A draw is a block of BLAKE2b over a counter, with the seed as key and the purpose as
personalisation. There is no state outside of a request: the same seed gives the same
numbers in any process, batch and order, and a record with its seed repeats them.
"""

from __future__ import annotations

import hashlib
from typing import Literal

import numpy as np
import numpy.typing as npt

SEED_BYTES = 16

Purpose = Literal["exploration", "interleaving"]

_WORDS = 8  # 64-bit words of one block
_UNIT = 2.0**-53


def seed_of(request_id: bytes, *, salt: str = "") -> bytes:
    """
    Return the seed of a request, SEED_BYTES long.

    Args:
        request_id: Id as sent; a repeated request has the same seed.
        salt: Text of the policy; with another one, all requests draw again.
    """
    key = hashlib.blake2b(salt.encode(), digest_size=32).digest()
    return hashlib.blake2b(request_id, key=key, digest_size=SEED_BYTES).digest()


class Draws:
    """The draws of one request for one purpose, from the first on."""

    def __init__(self, seed: bytes, purpose: Purpose) -> None:
        self._seed = seed
        self._person = purpose.encode()
        self._block = 0
        self._words: list[int] = []

    def uniforms(self, count: int) -> npt.NDArray[np.float64]:
        """Draw numbers within [0, 1), each a multiple of 2**-53; float64 [count]."""
        return np.array([(self._word() >> 11) * _UNIT for _ in range(count)])

    def below(self, limit: int) -> int:
        """Draw a whole number from 0 to limit - 1; its bias is below limit / 2**64."""
        return self._word() * limit >> 64

    def _word(self) -> int:
        if not self._words:
            digest = hashlib.blake2b(
                self._block.to_bytes(8, "little"), key=self._seed, person=self._person
            ).digest()
            self._block += 1
            self._words = np.frombuffer(digest, "<u8").tolist()[::-1]
        return self._words.pop()

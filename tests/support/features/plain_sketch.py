"""
Estimate the number of different texts from the definition in docs/features.md.

It shares no code with tollgate: registers are a dictionary, the hash is written as
bits, and the estimate is added from the highest rank down.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable

REGISTERS = 128
MOST_RANK = 15


def approximate_count(texts: Iterable[str]) -> float:
    """Estimate how many different texts there are."""
    highest: dict[int, int] = {}
    for text in texts:
        digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
        bits = "".join(f"{byte:08b}" for byte in digest)
        register = int(bits[-7:], 2)
        zeros = len(bits) - len(bits.lstrip("0"))
        highest[register] = max(highest.get(register, 0), min(zeros + 1, MOST_RANK))
    if not highest:
        return 0.0
    counts = [0] * (MOST_RANK + 1)
    for register in range(REGISTERS):
        counts[highest.get(register, 0)] += 1
    total = REGISTERS * tau(1 - counts[MOST_RANK] / REGISTERS)
    for rank in range(MOST_RANK - 1, 0, -1):
        total = (total + counts[rank]) / 2
    total += REGISTERS * sigma(counts[0] / REGISTERS)
    return float(round(REGISTERS**2 / (2 * math.log(2) * total)))


def sigma(x: float) -> float:
    """Sum x + Σ x^(2^k) · 2^(k - 1) over k = 1, 2, …"""
    return x + sum(x ** (2**k) * 2 ** (k - 1) for k in range(1, 40))


def tau(x: float) -> float:
    """Sum (1 - x - Σ (1 - x^(2^-k))² · 2^-k over k = 1, 2, …) / 3."""
    if x == 0:
        return 0.0
    return (1 - x - sum((1 - x ** (2**-k)) ** 2 * 2**-k for k in range(1, 60))) / 3

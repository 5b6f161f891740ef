"""Draw the arrivals of an open loop: requests are due regardless of earlier answers."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]


def evenly(count: int, *, rate_per_s: float) -> F64:
    """Space arrivals evenly; s from the first, float64 [count]."""
    return np.arange(count) / rate_per_s


def poisson(count: int, *, rate_per_s: float, seed: int) -> F64:
    """
    Draw arrivals of independent callers (Poisson), s from the first; float64 [count].

    Distances are exponential, so some are close together, as in real traffic: even
    arrivals flatter a queue.
    """
    gaps_s = np.random.default_rng(seed).exponential(1 / rate_per_s, count)
    return np.cumsum(gaps_s) - gaps_s[0] if count else gaps_s

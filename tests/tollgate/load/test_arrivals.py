"""Arrivals: at even distances, or of callers who know nothing of one another."""

from __future__ import annotations

import numpy as np

from tollgate.load.arrivals import evenly, poisson


def test_even_arrivals_are_a_ruler() -> None:
    """Four in two seconds."""
    assert evenly(4, rate_per_s=2.0).tolist() == [0.0, 0.5, 1.0, 1.5]
    assert len(evenly(0, rate_per_s=2.0)) == 0


def test_poisson_arrivals_have_exponential_distances() -> None:
    """Mean and deviation are both 1 / rate; the same seed gives the same times."""
    at_s = poisson(20_000, rate_per_s=200.0, seed=3)
    gaps_s = np.diff(at_s)
    assert at_s[0] == 0.0
    assert (gaps_s >= 0).all()
    assert abs(gaps_s.mean() * 200 - 1) < 0.03
    assert abs(gaps_s.std() * 200 - 1) < 0.05
    assert np.array_equal(at_s, poisson(20_000, rate_per_s=200.0, seed=3))
    assert len(poisson(0, rate_per_s=200.0, seed=3)) == 0

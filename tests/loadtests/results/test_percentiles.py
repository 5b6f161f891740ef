"""Tests of percentiles of raw samples."""

from __future__ import annotations

import numpy as np
import pytest

from loadtests.results.percentiles import latency_of, percentile
from tollgate.errors import InputError


@pytest.mark.parametrize(
    ("samples", "percent", "expected"),
    [
        ([7], 50, 7),
        ([7], 99.9, 7),
        ([1, 2], 50, 1),
        ([1, 2], 50.1, 2),
        ([1, 2, 3, 4], 50, 2),
        ([1, 2, 3, 4], 75, 3),
        ([1, 2, 3, 4], 100, 4),
        (range(1, 101), 90, 90),
        (range(1, 101), 99, 99),
        (range(1, 101), 99.9, 100),
        (range(1, 1001), 99.9, 999),
        (range(1, 10_001), 99.9, 9_990),
    ],
)
def test_a_percentile_is_the_smallest_sample_that_so_many_do_not_exceed(
    samples: list[int], percent: float, expected: int
) -> None:
    """No figure lies between two samples."""
    assert percentile(np.array(samples), percent) == expected


def test_the_order_of_samples_does_not_matter() -> None:
    """Microseconds come in as they ended, milliseconds go out."""
    samples = np.random.default_rng(0).permutation(np.arange(1_000, 1_001_000, 1_000))
    latency = latency_of(samples)
    assert (latency.p50_ms, latency.p90_ms, latency.p99_ms) == (500, 900, 990)
    assert (latency.p999_ms, latency.max_ms) == (999, 1000)


def test_no_sample_is_no_latency() -> None:
    """Nothing measured is an error, not a zero."""
    with pytest.raises(InputError, match="no request ended"):
        latency_of(np.array([], np.int64))

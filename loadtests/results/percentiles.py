"""Compute percentiles of raw samples."""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt

from tollgate.errors import InputError


class Latency(msgspec.Struct, frozen=True):
    """Percentiles in ms; each is a sample that occurred, none is interpolated."""

    p50_ms: float
    p90_ms: float
    p99_ms: float
    p999_ms: float
    max_ms: float


def percentile(ordered: npt.NDArray[np.int64], percent: float) -> int:
    """
    Return the smallest sample that at least `percent` of all do not exceed.

    Args:
        ordered: Samples in ascending order; at least one.
        percent: Above 0, up to 100.
    """
    # Rounded, because 99.9 / 100 * 1000 is slightly above 999.
    rank = int(np.ceil(round(percent / 100 * len(ordered), 6)))
    return int(ordered[max(rank, 1) - 1])


def latency_of(samples_us: npt.NDArray[np.int64]) -> Latency:
    """
    Compute the percentiles of one run.

    Args:
        samples_us: Latency per request, µs, in any order.

    Raises:
        InputError: There is no sample.
    """
    if not len(samples_us):
        raise InputError("h2load's log", "no request ended inside the measured time")
    ordered = np.sort(samples_us)
    return Latency(
        p50_ms=percentile(ordered, 50) / 1e3,
        p90_ms=percentile(ordered, 90) / 1e3,
        p99_ms=percentile(ordered, 99) / 1e3,
        p999_ms=percentile(ordered, 99.9) / 1e3,
        max_ms=int(ordered[-1]) / 1e3,
    )

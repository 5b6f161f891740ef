"""The slope of memory, against scipy's and against what it must be."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from loadtests.soak import Sample, slope_of, to_markdown
from tollgate.errors import ServerError


def test_a_line_has_its_slope_and_no_width() -> None:
    """3 MB an hour, without noise."""
    at_s = np.arange(0, 3600, 5.0)
    found = slope_of(at_s, 100 + 3 * at_s / 3600)
    assert found.per_hour == pytest.approx(3.0)
    assert found.half == pytest.approx(0.0, abs=1e-9)


def test_the_interval_is_that_of_a_line_through_twelve_means() -> None:
    """scipy's regression of the same means."""
    rng = np.random.default_rng(0)
    at_s = np.arange(0, 1200, 5.0)
    values = 400 + rng.normal(0, 2, len(at_s))
    found = slope_of(at_s, values)
    times = at_s.reshape(12, -1).mean(axis=1) / 3600
    line = stats.linregress(times, values.reshape(12, -1).mean(axis=1))
    assert found.per_hour == pytest.approx(line.slope)
    assert found.half == pytest.approx(stats.t.ppf(0.975, 10) * line.stderr, rel=1e-3)


def test_too_few_samples_are_said() -> None:
    """A slope out of a few points would say nothing."""
    samples = [Sample(float(at), 1.0, 1.0, 1.0, 1.0) for at in range(20)]
    with pytest.raises(ServerError, match="too few"):
        to_markdown(samples)

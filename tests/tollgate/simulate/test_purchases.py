"""One day's purchases: how many, when, where, how much."""

from __future__ import annotations

import numpy as np
import pytest

from tollgate.simulate.population import Population, draw_population
from tollgate.simulate.purchases import Purchases, draw_purchases


@pytest.fixture(scope="module")
def population() -> Population:
    """A town with terminals in reach of everybody."""
    return draw_population(2_000, 1_000, radius=20.0, seed=4)


@pytest.fixture(scope="module")
def fortnight(population: Population) -> list[Purchases]:
    """Fourteen days of that town."""
    return [draw_purchases(population, day, seed=4) for day in range(14)]


def test_purchases_are_in_order_of_time_within_the_day(
    fortnight: list[Purchases],
) -> None:
    """Seconds ascend and lie in 0 to 86,399."""
    for day in fortnight:
        assert (np.diff(day.second) >= 0).all()
        assert day.second[0] >= 0
        assert day.second[-1] < 86_400


def test_customers_use_only_terminals_in_reach(
    population: Population, fortnight: list[Purchases]
) -> None:
    """Every (customer, terminal) pair is one of the reach."""
    owners = np.repeat(np.arange(2_000), np.diff(population.reach_offsets))
    allowed = set(
        zip(owners.tolist(), population.reach_terminals.tolist(), strict=True)
    )
    for day in fortnight:
        assert (
            set(zip(day.customer.tolist(), day.terminal.tolist(), strict=True))
            <= allowed
        )


def test_counts_follow_each_customers_mean(
    population: Population, fortnight: list[Purchases]
) -> None:
    """Counts are Poisson of the customer's mean, less the 3.1 % outside the day."""
    counts = np.array([np.bincount(d.customer, minlength=2_000) for d in fortnight])
    # P(|z| < 43,200 / 20,000) = 0.9692 of the normal distribution.
    expected = population.purchases_a_day * 0.9692
    assert counts.mean() == pytest.approx(expected.mean(), rel=0.02)
    deviation = (counts - expected) / np.sqrt(expected)
    assert deviation.var() == pytest.approx(1, abs=0.03)  # variance equals the mean


def test_times_are_normal_around_noon(fortnight: list[Purchases]) -> None:
    """Mean noon; 20,000 s of spread cut to the day leave the public data's 18,188 s."""
    seconds = np.concatenate([day.second for day in fortnight])
    assert seconds.mean() == pytest.approx(43_200, rel=0.01)
    assert seconds.std() == pytest.approx(18_188, rel=0.01)


def test_amounts_scatter_around_each_customers_mean(
    population: Population, fortnight: list[Purchases]
) -> None:
    """Amounts are at least 0, of the customer's mean and about half of it in spread."""
    cents = np.concatenate([day.cents for day in fortnight])
    means = population.mean_cents[np.concatenate([d.customer for d in fortnight])]
    relative = cents / means
    assert cents.dtype == np.int64
    assert cents.min() >= 0
    # z ~ N(1, 0.5), below 0 replaced by uniform over 0 to 2: by hand
    # E = E[z; z > 0] + P(z < 0) = 1.0270, E² likewise with 4/3: spread 0.4735.
    assert relative.mean() == pytest.approx(1.027, abs=0.005)
    assert relative.std() == pytest.approx(0.4735, abs=0.005)


def test_a_day_does_not_depend_on_the_days_before(
    population: Population, fortnight: list[Purchases]
) -> None:
    """Day 9 drawn alone is day 9 drawn after nine others; days differ."""
    alone = draw_purchases(population, 9, seed=4)
    np.testing.assert_array_equal(alone.second, fortnight[9].second)
    np.testing.assert_array_equal(alone.terminal, fortnight[9].terminal)
    np.testing.assert_array_equal(alone.cents, fortnight[9].cents)
    assert alone.second[:50].tolist() != fortnight[8].second[:50].tolist()


def test_a_day_may_have_no_purchase() -> None:
    """One customer, many days: some days are empty arrays, not errors."""
    hermit = draw_population(1, 1, radius=200.0, seed=0)
    sizes = [draw_purchases(hermit, day, seed=0).cents.size for day in range(60)]
    assert min(sizes) == 0
    assert max(sizes) > 0

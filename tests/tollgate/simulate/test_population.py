"""Places, habits, and who has which terminal in reach."""

from __future__ import annotations

import numpy as np
import pytest

from tollgate.simulate import population
from tollgate.simulate.population import draw_population, find_in_reach


@pytest.mark.parametrize("radius", [0.03, 0.4, 5.0, 33.4, 80.0, 1e6])
def test_reach_equals_the_full_distance_matrix(radius: float) -> None:
    """A customer reaches exactly the terminals strictly nearer than the radius."""
    rng = np.random.default_rng(11)
    places, shops = rng.uniform(0, 100, (70, 2)), rng.uniform(0, 100, (400, 2))
    places[:3] = [[0, 0], [100, 100], [0, 100]]
    shops[:2] = [[0.02, 0], [100, 99.99]]

    offsets, terminals = find_in_reach(places, shops, radius=radius)

    distance = np.hypot(*(places[:, None] - shops[None]).transpose(2, 0, 1))
    expected = [np.flatnonzero(row < radius) for row in distance]
    found = np.split(terminals, offsets[1:-1])
    assert offsets[0] == 0
    assert offsets[-1] == terminals.size > 0
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("pairs", [1, 7, 1000])
def test_reach_does_not_depend_on_the_block_size(
    pairs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks bound memory and change nothing, customers without candidates included."""
    rng = np.random.default_rng(12)
    places, shops = rng.uniform(0, 100, (60, 2)), rng.uniform(0, 100, (50, 2))
    whole = find_in_reach(places, shops, radius=4.0)
    monkeypatch.setattr(population, "BLOCK_CANDIDATES", pairs)
    parts = find_in_reach(places, shops, radius=4.0)
    np.testing.assert_array_equal(parts[0], whole[0])
    np.testing.assert_array_equal(parts[1], whole[1])


def test_nobody_in_reach_gives_an_empty_reach() -> None:
    """A radius below every distance leaves all customers inactive."""
    drawn = draw_population(20, 30, radius=1e-9, seed=0)
    assert drawn.reach_offsets.tolist() == [0] * 21
    assert drawn.active_customers.size == drawn.used_terminals.size == 0


def test_active_and_used_are_those_in_the_reach_lists() -> None:
    """Active customers have a terminal in reach; used terminals have a customer."""
    drawn = draw_population(50, 100, radius=5.0, seed=0)
    sizes = np.diff(drawn.reach_offsets)
    assert drawn.active_customers.tolist() == np.flatnonzero(sizes > 0).tolist()
    assert drawn.used_terminals.tolist() == sorted(set(drawn.reach_terminals.tolist()))
    assert 0 < drawn.active_customers.size < 50


def test_radius_changes_neither_places_nor_habits() -> None:
    """Streams are apart: another radius keeps habits and widens each reach."""
    near = draw_population(80, 300, radius=5.0, seed=3)
    far = draw_population(80, 300, radius=9.0, seed=3)
    np.testing.assert_array_equal(near.mean_cents, far.mean_cents)
    np.testing.assert_array_equal(near.purchases_a_day, far.purchases_a_day)
    for c in range(80):
        inner, outer = (
            set(p.reach_terminals[p.reach_offsets[c] : p.reach_offsets[c + 1]].tolist())
            for p in (near, far)
        )
        assert inner <= outer


def test_habits_fill_their_ranges() -> None:
    """Mean amounts lie in 5 to 100 and purchases a day in 0 to 4, evenly."""
    drawn = draw_population(20_000, 1, radius=5.0, seed=1)
    assert 500 <= drawn.mean_cents.min() < 510
    assert 9_990 < drawn.mean_cents.max() <= 10_000
    assert drawn.mean_cents.mean() == pytest.approx(5_250, rel=0.02)
    assert 0 <= drawn.purchases_a_day.min() < 0.01
    assert drawn.purchases_a_day.mean() == pytest.approx(2, rel=0.02)

"""The three scenarios and the delay of labels, judged against plain re-computation."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from tollgate.simulate.fraud import (
    Frauds,
    Scenarios,
    count_victims,
    draw_label_delays,
    draw_victims,
)
from tollgate.simulate.population import Population, draw_population
from tollgate.simulate.purchases import Purchases, draw_purchases

DAYS = 50
SEED = 8


@pytest.fixture(scope="module")
def population() -> Population:
    """A small town: victims are many, so scenarios overlap."""
    return draw_population(400, 300, radius=15.0, seed=SEED)


@pytest.fixture(scope="module")
def history(population: Population) -> list[tuple[Purchases, Frauds]]:
    """Its days before and after the scenarios."""
    scenarios = Scenarios(population, seed=SEED)
    days = [draw_purchases(population, day, seed=SEED) for day in range(DAYS)]
    return [(bought, scenarios.commit(bought, day)) for day, bought in enumerate(days)]


@pytest.fixture(scope="module")
def victims(population: Population) -> list[tuple[set[int], set[int]]]:
    """For each day the terminals and the customers drawn on it."""
    drawn = [draw_victims(population, day, seed=SEED) for day in range(DAYS)]
    return [(set(ours.tolist()), set(cards.tolist())) for ours, cards in drawn]


def test_every_row_gets_the_scenario_that_the_victims_imply(
    history: list[tuple[Purchases, Frauds]], victims: list[tuple[set[int], set[int]]]
) -> None:
    """Row by row: 3 only with a stolen card, else 2 at a taken terminal, else 1."""
    seen = {0: 0, 1: 0, 2: 0, 3: 0}
    for day, (bought, frauds) in enumerate(history):
        taken = set().union(*(v[0] for v in victims[max(0, day - 27) : day + 1]))
        stolen = set().union(*(v[1] for v in victims[max(0, day - 13) : day + 1]))
        for row, scenario in enumerate(frauds.scenario.tolist()):
            before, after = bought.cents[row], frauds.cents[row]
            seen[scenario] += 1
            if scenario == 3:
                assert bought.customer[row] in stolen
                assert after == 5 * before
                continue
            assert after == before
            if bought.terminal[row] in taken:
                assert scenario == 2
            else:
                assert scenario == (1 if before > 22_000 else 0)
    assert min(seen.values()) > 0


def test_a_third_of_a_stolen_cards_purchases_are_fraud(
    history: list[tuple[Purchases, Frauds]], victims: list[tuple[set[int], set[int]]]
) -> None:
    """Over all stolen cards the share of scenario 3 is one third."""
    hits = []
    for day, (bought, frauds) in enumerate(history):
        stolen = set().union(*(v[1] for v in victims[max(0, day - 13) : day + 1]))
        of_stolen = np.isin(bought.customer, list(stolen))
        hits.append(frauds.scenario[of_stolen] == 3)
    share = np.concatenate(hits)
    assert share.mean() == pytest.approx(1 / 3, abs=4 * (2 / 9 / share.size) ** 0.5)


def test_exactly_220_is_not_large() -> None:
    """Scenario 1 begins one cent above 220."""
    alone = draw_population(1, 1, radius=200.0, seed=0)
    scenarios = Scenarios(alone, seed=0)
    zeros = np.zeros(2, dtype=np.int32)
    for day in range(29):  # both victims of day 0 are clean on day 28, but for new ones
        bought = Purchases(
            customer=zeros,
            terminal=zeros,
            second=zeros,
            cents=np.array([22_000, 22_001]),
        )
        frauds = scenarios.commit(bought, day)
        assert frauds.scenario[1] > 0
        assert frauds.scenario[0] != 1


def test_default_sizes_draw_two_terminals_and_three_cards_a_day() -> None:
    """The public data's proportions hold exactly, without repetition in a day."""
    town = draw_population(5_000, 10_000, radius=5.0, seed=0)
    for day in (0, 1, 100):
        terminals, cards = draw_victims(town, day, seed=0)
        assert len(set(terminals.tolist())) == 2
        assert len(set(cards.tolist())) == 3


@pytest.mark.parametrize(
    ("a_day", "first_week"),
    [
        (Fraction(2), [2, 2, 2, 2, 2, 2, 2]),
        (Fraction(1, 2), [1, 0, 1, 0, 1, 0, 1]),
        (Fraction(7, 3), [3, 2, 2, 3, 2, 2, 3]),
        (Fraction(1, 1000), [1, 0, 0, 0, 0, 0, 0]),
    ],
)
def test_fractions_of_victims_add_up(a_day: Fraction, first_week: list[int]) -> None:
    """A fraction is spread over days; one in seven days is the least."""
    assert [count_victims(day, a_day=a_day) for day in range(7)] == first_week
    weeks = 3_000
    total = sum(count_victims(day, a_day=a_day) for day in range(7 * weeks))
    assert total == pytest.approx(max(7 * a_day, 1) * weeks, abs=1)


def test_never_more_victims_than_there_are() -> None:
    """Few in use and many to draw: all of them, once."""
    crowd = draw_population(9_000, 1, radius=3.0, seed=0)
    assert 0 < crowd.active_customers.size < 100
    terminals, cards = draw_victims(crowd, 0, seed=0)
    assert terminals.tolist() == [0]
    assert set(cards.tolist()) <= set(crowd.active_customers.tolist())


def test_labels_come_after_two_days_in_the_median() -> None:
    """Delays are whole seconds, log-normal: median 2 days, 3.7 % beyond 7 days."""
    delays = draw_label_delays(200_000, 0, seed=0)
    assert delays.min() >= 1
    assert np.median(delays) / 86_400 == pytest.approx(2, rel=0.02)
    assert (delays > 7 * 86_400).mean() == pytest.approx(0.0368, abs=0.003)

"""
Simulate three fraud scenarios, and the time when each label becomes known.

1. Every amount above 220 is fraud: easy, a sanity check for any model.
2. Terminals are compromised, two a day; every purchase there is fraud on that day and
   the 27 after it: only the terminal's recent history reveals it.
3. Cards are stolen, three a day; on that day and the 13 after it each of the
   customer's purchases is, with chance one third, fraud of five times the amount:
   only the customer's own habits reveal it.

Where several apply, the highest number is the purchase's scenario. A purchase is
multiplied once, however often the card was stolen.

Two terminals and three cards a day belong to 10,000 terminals and 5,000 customers.
Other sizes have the same proportion, so the fraud rate does not depend on the size, but
at least one of each falls every seventh day from the first day on: a tiny history has
fraud too, at a higher rate. Only terminals and customers in use are drawn.
"""

from __future__ import annotations

import math
from fractions import Fraction

import msgspec
import numpy as np
import numpy.typing as npt

from tollgate.simulate.population import Indices, Population, Stream, generator
from tollgate.simulate.purchases import DAY_S, Purchases

LARGE_CENTS = 22_000
TERMINAL_DAYS = 28
CARD_DAYS = 14
CARD_USE_CHANCE = 1 / 3
CARD_USE_FACTOR = 5
TERMINALS_A_DAY = Fraction(2, 10_000)  # per terminal
CARDS_A_DAY = Fraction(3, 5_000)  # per customer
AT_LEAST_A_DAY = Fraction(1, 7)

LABEL_DELAY_MEDIAN_S = 2.0 * DAY_S
LABEL_DELAY_SIGMA = 0.7  # of the logarithm; 3.7 % come later than 7 days

Int8s = npt.NDArray[np.int8]


class Frauds(msgspec.Struct, frozen=True):
    """
    Result of the scenarios on one day's purchases; parallel arrays [rows].

    Attributes:
        cents: Amount after the scenarios; int64, at least 0.
        scenario: 0 legitimate, else 1, 2 or 3; int8.
    """

    cents: npt.NDArray[np.int64]
    scenario: Int8s


class Scenarios:
    """State from day to day: compromised terminals and cards, each with its end."""

    def __init__(self, population: Population, *, seed: int) -> None:
        self._seed = seed
        self._population = population
        # The day on which each one is clean again; 0: never compromised.
        self._terminal_clean = np.zeros(population.terminals, dtype=np.int32)
        self._card_clean = np.zeros(population.customers, dtype=np.int32)

    def commit(self, purchases: Purchases, day: int) -> Frauds:
        """
        Compromise the day's victims and turn purchases into frauds.

        Args:
            day: Day of the history; call once for every day, from 0 upwards.
        """
        terminals, cards = draw_victims(self._population, day, seed=self._seed)
        self._terminal_clean[terminals] = day + TERMINAL_DAYS
        self._card_clean[cards] = day + CARD_DAYS

        taken_over = self._terminal_clean[purchases.terminal] > day
        uses = generator(self._seed, Stream.STOLEN_CARD_USES, day=day).random(
            purchases.cents.size
        )
        stolen = self._card_clean[purchases.customer] > day
        stolen &= uses < CARD_USE_CHANCE
        scenario = np.select(
            [stolen, taken_over, purchases.cents > LARGE_CENTS],
            [np.int8(3), np.int8(2), np.int8(1)],
            default=np.int8(0),
        )
        factor = np.where(stolen, CARD_USE_FACTOR, 1)
        return Frauds(cents=purchases.cents * factor, scenario=scenario)


def draw_victims(
    population: Population, day: int, *, seed: int
) -> tuple[Indices, Indices]:
    """
    Draw the terminals taken over and the customers whose card is stolen on a day.

    Args:
        day: Day of the history, from 0.

    Returns:
        Numbers of terminals and of customers, each without repetition; int32.
    """
    drawn = []
    for stream, victims, entities, rate in (
        (
            Stream.STOLEN_TERMINALS,
            population.used_terminals,
            population.terminals,
            TERMINALS_A_DAY,
        ),
        (
            Stream.STOLEN_CARDS,
            population.active_customers,
            population.customers,
            CARDS_A_DAY,
        ),
    ):
        count = min(count_victims(day, a_day=entities * rate), victims.size)
        draws = generator(seed, stream, day=day)
        drawn.append(draws.choice(victims, count, replace=False, shuffle=False))
    return drawn[0], drawn[1]


def count_victims(day: int, *, a_day: Fraction) -> int:
    """
    Count the victims that fall on one day, so that a fraction adds up over days.

    Args:
        day: Day of the history, from 0.
        a_day: Mean number per day; AT_LEAST_A_DAY when that is more.
    """
    rate = max(a_day, AT_LEAST_A_DAY)
    return math.ceil((day + 1) * rate) - math.ceil(day * rate)


def draw_label_delays(rows: int, day: int, *, seed: int) -> npt.NDArray[np.int64]:
    """
    Draw how long after a purchase its label is known: whole s ≥ 1; int64 [rows].

    Frauds and legitimate purchases wait equally long: otherwise a missing label alone
    would reveal the outcome.

    Args:
        day: Day of the history, from 0.
    """
    draws = generator(seed, Stream.LABEL_DELAYS, day=day)
    delays = draws.lognormal(math.log(LABEL_DELAY_MEDIAN_S), LABEL_DELAY_SIGMA, rows)
    whole: npt.NDArray[np.int64] = np.ceil(delays).astype(np.int64)
    return whole

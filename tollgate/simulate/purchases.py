"""
Simulate the purchases of one day, before any fraud.

A customer's number of purchases is Poisson, their times normal around noon, their
amounts normal around the customer's mean, their terminals uniform among those in reach.
A purchase whose time falls outside the day does not happen (3 %).
"""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt

from tollgate.simulate.population import SPREAD, Population, Stream, generator

DAY_S = 86_400
NOON_S = 43_200.0
TIME_SPREAD_S = 20_000.0  # truncated to the day it gives the public data's 18,190 s


class Purchases(msgspec.Struct, frozen=True):
    """
    Purchases in order of time; the fields are parallel arrays [rows].

    Attributes:
        customer: Number of the customer; int32.
        terminal: Number of the terminal; int32.
        second: Second of the day, 0 to 86,399; int32.
        cents: Amount; int64, at least 0.
    """

    customer: npt.NDArray[np.int32]
    terminal: npt.NDArray[np.int32]
    second: npt.NDArray[np.int32]
    cents: npt.NDArray[np.int64]


def draw_purchases(population: Population, day: int, *, seed: int) -> Purchases:
    """Draw the customers' purchases of one day of the history, from 0."""
    active = population.active_customers
    counts = generator(seed, Stream.PURCHASE_COUNTS, day=day).poisson(
        population.purchases_a_day[active]
    )
    customer = np.repeat(active, counts)
    seconds = generator(seed, Stream.PURCHASE_TIMES, day=day).normal(
        NOON_S, TIME_SPREAD_S, customer.size
    )
    inside = (seconds >= 0) & (seconds < DAY_S)
    second, customer = seconds[inside].astype(np.int32), customer[inside]
    in_time = np.argsort(second, kind="stable")
    second, customer = second[in_time], customer[in_time]

    first = population.reach_offsets[customer]
    choices = population.reach_offsets[customer + 1] - first
    picked = generator(seed, Stream.PURCHASE_TERMINALS, day=day).integers(choices)
    return Purchases(
        customer=customer,
        terminal=population.reach_terminals[first + picked],
        second=second,
        cents=_draw_cents(population.mean_cents[customer], day, seed=seed),
    )


def _draw_cents(
    mean_cents: npt.NDArray[np.float64], day: int, *, seed: int
) -> npt.NDArray[np.int64]:
    """
    Draw an amount per purchase: normal, or uniform where that came out negative.

    Args:
        mean_cents: Mean of each purchase's customer; float64 [rows].
        day: Day of the history, from 0.

    Returns:
        Whole cents, at least 0; int64 [rows].
    """
    draws = generator(seed, Stream.PURCHASE_AMOUNTS, day=day)
    cents = draws.normal(mean_cents, SPREAD * mean_cents)
    instead = draws.uniform(0, 2 * mean_cents)  # the same mean
    whole: npt.NDArray[np.int64] = np.rint(np.where(cents < 0, instead, cents)).astype(
        np.int64
    )
    return whole

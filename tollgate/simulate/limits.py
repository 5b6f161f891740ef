"""Check the arguments of a simulation: ranges, and sizes that fit into memory."""

from __future__ import annotations

import datetime
import math

from tollgate.errors import ArgumentError
from tollgate.simulate.population import SIDE

MAX_CUSTOMERS = 10_000_000
MAX_TERMINALS = 10_000_000
MAX_DAYS = 36_525
FIRST_START = datetime.date(2000, 1, 1)  # as schema.MIN_EVENT_TIME_US
LAST_START = datetime.date(2199, 12, 31)

# Expected sizes above which an ordinary machine's memory does not suffice.
MAX_PURCHASES = 100_000_000
MAX_PAIRS_IN_REACH = 100_000_000
PURCHASES_A_DAY = 2  # of the mean customer


def check_population(
    customers: int, terminals: int, *, radius: float, seed: int
) -> None:
    """
    Refuse a population that cannot be drawn.

    Raises:
        InputError: Names the argument, the value and the range.
    """
    _check_integer("customers", customers, lowest=1, highest=MAX_CUSTOMERS)
    _check_integer("terminals", terminals, lowest=1, highest=MAX_TERMINALS)
    _check_integer("seed", seed, lowest=0, highest=2**63 - 1)
    if isinstance(radius, bool) or not (math.isfinite(radius) and radius > 0):
        raise ArgumentError("radius", f"{radius!r} is not a finite number above 0")
    share = min(1.0, math.pi * radius**2 / SIDE**2)
    pairs = customers * terminals * share
    if pairs > MAX_PAIRS_IN_REACH:
        raise ArgumentError(
            "radius",
            f"{radius:g} puts some {pairs:,.0f} pairs of customer and terminal in "
            f"reach; at most {MAX_PAIRS_IN_REACH:,} can be held",
        )


def check_span(customers: int, *, days: int, start: datetime.date) -> None:
    """
    Refuse a span of time that cannot be simulated.

    Args:
        customers: Number of customers, already checked.
        days: Length of the history.
        start: Its first day.

    Raises:
        InputError: Names the argument, the value and the range.
    """
    _check_integer("days", days, lowest=1, highest=MAX_DAYS)
    # A datetime is a date too, but its hours would be lost.
    if type(start) is not datetime.date or not FIRST_START <= start <= LAST_START:
        raise ArgumentError(
            "start", f"{start} is not a day from {FIRST_START} to {LAST_START}"
        )
    purchases = customers * days * PURCHASES_A_DAY
    if purchases > MAX_PURCHASES:
        raise ArgumentError(
            "days",
            f"{days:,} days of {customers:,} customers are some {purchases:,} "
            f"purchases; at most {MAX_PURCHASES:,} can be held",
        )


def _check_integer(argument: str, value: int, *, lowest: int, highest: int) -> None:
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    if not is_whole or not lowest <= value <= highest:
        raise ArgumentError(
            argument, f"{value!r} is not a whole number from {lowest:,} to {highest:,}"
        )

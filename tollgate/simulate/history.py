"""Simulate a whole history and write it as Parquet."""

from __future__ import annotations

import datetime
import math
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl

from tollgate.errors import ArgumentError, InputError
from tollgate.simulate.fraud import Scenarios, draw_label_delays
from tollgate.simulate.population import SIDE, Population, draw_population
from tollgate.simulate.purchases import DAY_S, Purchases, draw_purchases

# Check the arguments of a simulation: ranges, and sizes that fit into memory.

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


DEFAULT_START = datetime.date(2018, 4, 1)
ID_DIGITS = 5  # at least this many; more for a population that needs them


def simulate(
    *,
    customers: int = 5_000,
    terminals: int = 10_000,
    days: int = 183,
    start: datetime.date = DEFAULT_START,
    seed: int = 0,
    radius: float = 5.0,
    progress: Callable[[int, int], None] | None = None,
) -> pl.DataFrame:
    """
    Simulate a history of purchases.

    The same arguments give the same frame (with the same NumPy), and more days only add
    rows at its end. A purchase's label may be known after the last day.

    Args:
        customers: Number of customers, active or not.
        terminals: Number of terminals, in use or not.
        start: Its first day, UTC.
        seed: Seed, at least 0.
        radius: Reach of a customer; the map's side is 100. A customer without a
            terminal in reach never buys.
        progress: Called after each day with the days done and all days.

    Returns:
        One row per purchase, ordered by (event_time, transaction_id): transaction_id
        ("1", "2", ...), customer_id ("C00042"), terminal_id ("T00917"), amount (whole
        cents, in units), event_time and label_time (µs, UTC, without a zone), label (1
        fraud), fraud_scenario (0 to 3).

    Raises:
        InputError: An argument is out of range, or no customer reaches a terminal.
    """
    check_population(customers, terminals, radius=radius, seed=seed)
    check_span(customers, days=days, start=start)
    population = draw_population(customers, terminals, radius=radius, seed=seed)
    if not population.active_customers.size:
        raise ArgumentError(
            "radius",
            f"{radius:g}: no customer has a terminal in reach; "
            "take a larger radius or more customers and terminals",
        )
    scenarios = Scenarios(population, seed=seed)
    parts = []
    for day in range(days):
        purchases = draw_purchases(population, day, seed=seed)
        parts.append(_complete(purchases, scenarios, day, seed=seed))
        if progress is not None:
            progress(day + 1, days)
    return _name(pl.concat(parts, rechunk=True), population, start=start)


def _complete(
    purchases: Purchases, scenarios: Scenarios, day: int, *, seed: int
) -> pl.DataFrame:
    """Add frauds and label times to a day's purchases, in s of the history."""
    frauds = scenarios.commit(purchases, day)
    second = purchases.second + np.int64(day * DAY_S)
    return pl.DataFrame(
        {
            "customer": purchases.customer,
            "terminal": purchases.terminal,
            # In NumPy: Polars divides by a constant by multiplying with its inverse,
            # which misses the nearest double in one amount of seven.
            "amount": frauds.cents / 100,
            "second": second,
            "known": second + draw_label_delays(second.size, day, seed=seed),
            "scenario": frauds.scenario,
        }
    )


def _name(
    rows: pl.DataFrame, population: Population, *, start: datetime.date
) -> pl.DataFrame:
    """Convert numbers to ids, as wide as the population needs, and seconds to times."""
    midnight = datetime.datetime.combine(start, datetime.time())
    customer_ids = _ids("C", population.customers)
    terminal_ids = _ids("T", population.terminals)
    return rows.select(
        transaction_id=pl.int_range(1, pl.len() + 1).cast(pl.String),
        customer_id=customer_ids.gather(rows["customer"]),
        terminal_id=terminal_ids.gather(rows["terminal"]),
        amount="amount",
        event_time=_time(midnight, "second"),
        label=(pl.col("scenario") > 0).cast(pl.Int8),
        label_time=_time(midnight, "known"),
        fraud_scenario="scenario",
    )


def _time(midnight: datetime.datetime, seconds: str) -> pl.Expr:
    return pl.lit(midnight, pl.Datetime("us")) + pl.duration(
        seconds=seconds, time_unit="us"
    )


def _ids(letter: str, count: int) -> pl.Series:
    """Write ids from 1 on, padded to one width; String [count]."""
    width = max(ID_DIGITS, len(str(count)))
    number = pl.int_range(1, count + 1, eager=True).cast(pl.String)
    return pl.select(letter + pl.lit(number).str.zfill(width)).to_series()


def write(frame: pl.DataFrame, path: str | os.PathLike[str]) -> None:
    """
    Write a history as Parquet: completely or not at all.

    Args:
        path: File to write; an existing one is replaced.

    Raises:
        InputError: The path is a folder, its folder is missing, the disk is full, ...
    """
    target = Path(path)
    if target.is_dir():
        raise InputError(target, "is a folder; name a file in it")
    # In the target's folder, because a rename is atomic only inside a file system.
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        with open(part, "xb") as file:
            frame.write_parquet(file, compression="zstd")
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, target)
    except (OSError, pl.exceptions.PolarsError) as error:  # the latter on a full disk
        reason = getattr(error, "strerror", None) or error
        raise InputError(target, f"cannot be written: {reason}") from error
    finally:
        part.unlink(missing_ok=True)

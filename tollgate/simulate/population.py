"""
Simulate customers, terminals, and the terminals that each customer has in reach.

Customers without a terminal in reach are inactive: they never buy (10 of 5,000 in the
handbook's data). Terminals that no customer reaches never sell.
"""

from __future__ import annotations

import enum
import itertools

import msgspec
import numpy as np
import numpy.typing as npt


class Stream(enum.IntEnum):
    """Purposes of the streams. The numbers make the streams: never renumber."""

    CUSTOMER_PLACES = 0
    CUSTOMER_HABITS = 1
    TERMINAL_PLACES = 2
    PURCHASE_COUNTS = 3
    PURCHASE_TIMES = 4
    PURCHASE_TERMINALS = 5
    PURCHASE_AMOUNTS = 6
    STOLEN_TERMINALS = 7
    STOLEN_CARDS = 8
    STOLEN_CARD_USES = 9
    LABEL_DELAYS = 10


def generator(seed: int, stream: Stream, *, day: int = 0) -> np.random.Generator:
    """
    Open one stream at its start.

    Args:
        seed: Seed of the whole simulation, at least 0.
        day: Day of the history, from 0; the population's streams have only day 0.
    """
    source = np.random.SeedSequence(seed, spawn_key=(int(stream), day))
    return np.random.default_rng(source)


SIDE = 100.0  # the map is a square of this side, without a unit
DIAGONAL = SIDE * 2**0.5
MEAN_AMOUNT_CENTS = (500.0, 10_000.0)  # a customer's mean lies in this range
SPREAD = 0.5  # standard deviation of a customer's amounts / their mean
PURCHASES_A_DAY = (0.0, 4.0)  # a customer's mean lies in this range

STRIP_STRIDE = 512.0  # over SIDE + DIAGONAL, so that strips never overlap in the key
MIN_STRIP_HEIGHT = SIDE / 1000  # bounds the key, so that its rounding stays below SLACK
SLACK = 1e-6  # candidates a little beyond the radius; the distance decides
BLOCK_CANDIDATES = 4_000_000  # pairs per block: about 100 MB

Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int32]
Offsets = npt.NDArray[np.int64]


class Population(msgspec.Struct, frozen=True):
    """
    Customers with their habits, and terminals; entities are numbered from 0.

    Attributes:
        customers: Number of customers, active or not.
        terminals: Number of terminals, in use or not.
        mean_cents: Mean amount of each customer; float64 [customers].
        purchases_a_day: Mean number a day of each customer; float64 [customers].
        reach_offsets: The terminals in reach of customer c are
            reach_terminals[reach_offsets[c] : reach_offsets[c + 1]]; int64 [customers +
            1].
        reach_terminals: Terminal numbers; int32 [pairs].
        active_customers: Customers with a terminal in reach; int32, ascending.
        used_terminals: Terminals in some customer's reach; int32, ascending.
    """

    customers: int
    terminals: int
    mean_cents: Floats
    purchases_a_day: Floats
    reach_offsets: Offsets
    reach_terminals: Indices
    active_customers: Indices
    used_terminals: Indices


def draw_population(
    customers: int, terminals: int, *, radius: float, seed: int
) -> Population:
    """
    Position customers and terminals on the map, and draw the customers' habits.

    Args:
        customers: Number of customers, at least 1.
        terminals: Number of terminals, at least 1.
        radius: Distance that a customer goes, in units of the map (its side is 100).
    """
    habits = generator(seed, Stream.CUSTOMER_HABITS)
    places = generator(seed, Stream.CUSTOMER_PLACES).uniform(0, SIDE, (customers, 2))
    shops = generator(seed, Stream.TERMINAL_PLACES).uniform(0, SIDE, (terminals, 2))
    offsets, in_reach = find_in_reach(places, shops, radius=radius)
    return Population(
        customers=customers,
        terminals=terminals,
        mean_cents=habits.uniform(*MEAN_AMOUNT_CENTS, customers),
        purchases_a_day=habits.uniform(*PURCHASES_A_DAY, customers),
        reach_offsets=offsets,
        reach_terminals=in_reach,
        active_customers=np.flatnonzero(np.diff(offsets)).astype(np.int32),
        used_terminals=np.flatnonzero(np.bincount(in_reach)).astype(np.int32),
    )


def find_in_reach(
    places: Floats, shops: Floats, *, radius: float
) -> tuple[Offsets, Indices]:
    """
    Find the terminals strictly nearer than the radius to each customer.

    Args:
        places: Customers' coordinates, 0 to SIDE; float64 [customers, 2].
        shops: Terminals' coordinates, 0 to SIDE; float64 [terminals, 2].
        radius: In units of the map, above 0.

    Returns:
        Offsets and terminal numbers as in Population, ascending per customer.
    """
    # Terminals sorted by (horizontal strip, x): the terminals in a customer's reach lie
    # in three strips, in each of them in one run.
    radius = min(radius, DIAGONAL + SLACK)
    height = max(radius, MIN_STRIP_HEIGHT)
    keys = np.floor(shops[:, 1] / height) * STRIP_STRIDE + shops[:, 0]
    order = np.argsort(keys, kind="stable").astype(np.int32)
    keys = keys[order]
    strips = np.floor(places[:, 1] / height)[:, None] + np.array([-1.0, 0.0, 1.0])
    centres = strips * STRIP_STRIDE + places[:, :1]
    starts = np.searchsorted(keys, centres - (radius + SLACK), side="left")
    ends = np.searchsorted(keys, centres + (radius + SLACK), side="right")
    candidates = np.cumsum((ends - starts).sum(axis=1))
    cuts = np.arange(BLOCK_CANDIDATES, candidates[-1], BLOCK_CANDIDATES)
    edges = np.unique([0, *np.searchsorted(candidates, cuts), len(places)])

    counts: list[npt.NDArray[np.intp]] = []
    found: list[Indices] = []
    for first, last in itertools.pairwise(edges):
        block = slice(first, last)
        owners, runs = _expand(starts[block], ends[block])
        nearby = order[runs]
        squared = ((places[block][owners] - shops[nearby]) ** 2).sum(axis=1)
        owners, nearby = owners[squared < radius**2], nearby[squared < radius**2]
        found.append(nearby[np.lexsort((nearby, owners))])
        counts.append(np.bincount(owners, minlength=last - first))
    offsets = np.concatenate([[0], np.cumsum(np.concatenate(counts))])
    return offsets.astype(np.int64), np.concatenate(found)


def _expand(
    starts: npt.NDArray[np.intp], ends: npt.NDArray[np.intp]
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """
    Write out runs of positions.

    Args:
        starts: First position of each run; [rows, runs].
        ends: Position after the last; same shape.

    Returns:
        The row and the position of every element of every run; both [elements].
    """
    lengths = (ends - starts).ravel()
    before = np.cumsum(lengths) - lengths
    positions: npt.NDArray[np.intp] = np.arange(lengths.sum())
    positions += np.repeat(starts.ravel() - before, lengths)
    rows: npt.NDArray[np.intp] = np.arange(lengths.size) // starts.shape[1]
    return np.repeat(rows, lengths), positions

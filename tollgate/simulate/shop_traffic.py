"""
Model the traffic of a shop: which share of its requests finds a prepared list.

The i-th most active of U users has the share i^-z / (1^-z + … + U^-z) of all requests
and of all events (Zipf's law). Requests and events of a user come at random, with
constant rates, independently of each other (Poisson processes).
"""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt

from tollgate.errors import InputError

F64 = npt.NDArray[np.float64]


class ShopTraffic(msgspec.Struct, frozen=True):
    """
    The traffic of a shop.

    Attributes:
        users: U, number of users.
        exponent: z, 0 for equal users.
        events_per_s: Events of all users that a list depends on, per second.
    """

    users: int
    exponent: float
    events_per_s: float

    def shares(self) -> F64:
        """Return each user's share, the most active first; float64 [U]."""
        weights = np.arange(1, self.users + 1, dtype=np.float64) ** -self.exponent
        shares: F64 = weights / weights.sum()
        return shares


def hit_share(traffic: ShopTraffic, *, prepared: int, every_s: float) -> float:
    """
    Return the share of requests whose user has a prepared list that still holds.

    The lists of the most active users are made every T seconds. A list holds until the
    user's next event, which at rate r comes t seconds later with probability
    1 - exp(-r t). A request comes at any time after a run with equal chances, so it
    finds a list that holds with probability (1 - exp(-r T)) / (r T).

    Args:
        traffic: Users, and how often they have events.
        prepared: Number of users that have lists, the most active ones.
        every_s: T, time between two runs, shorter than the lists' life.

    Raises:
        InputError: An argument is out of range.
    """
    if not 0 <= prepared <= traffic.users:
        problem = f"{prepared} of them, there are {traffic.users} users"
        raise InputError("prepared", problem)
    if not every_s > 0:
        raise InputError("every_s", f"{every_s} is not above 0")
    shares = traffic.shares()[:prepared]
    events = shares * traffic.events_per_s * every_s
    holds = np.ones(prepared)
    some = events > 0
    holds[some] = -np.expm1(-events[some]) / events[some]
    return float((shares * holds).sum())

"""Closed-loop scenarios: rows of a request, and number of requests in flight."""

from __future__ import annotations

import msgspec

from tollgate.errors import InputError


class Scenario(msgspec.Struct, frozen=True):
    """
    A closed loop: each answer is followed at once by the next request.

    Attributes:
        name: Name of the scenario in `--only`.
        rows: Rows per request, 1 to 32.
        connections: TCP connections, each like one replica of a calling service.
        streams: Requests in flight on each of them.
        most_requests_per_s: More than this machine class answers; so many bodies are
            written per second, and they repeat when that is too few.
    """

    name: str
    rows: int
    connections: int
    streams: int
    most_requests_per_s: int

    @property
    def in_flight(self) -> int:
        """Return the number of requests in flight on all connections."""
        return self.connections * self.streams


# Four connections: the server serves one connection by one thread at a time, and one
# connection per request is not how gRPC clients work.
SCENARIOS = (
    Scenario("1-row-1", rows=1, connections=1, streams=1, most_requests_per_s=1_000),
    Scenario("1-row-16", rows=1, connections=4, streams=4, most_requests_per_s=10_000),
    Scenario("1-row-64", rows=1, connections=4, streams=16, most_requests_per_s=15_000),
    Scenario("16-rows-8", rows=16, connections=4, streams=2, most_requests_per_s=4_000),
    Scenario("16-rows-4", rows=16, connections=4, streams=1, most_requests_per_s=4_000),
)


def pick(name: str | None) -> tuple[Scenario, ...]:
    """
    Pick one scenario by name, or all.

    Raises:
        InputError: There is no scenario of that name.
    """
    if name is None:
        return SCENARIOS
    found = tuple(one for one in SCENARIOS if one.name == name)
    if not found:
        known = ", ".join(one.name for one in SCENARIOS)
        raise InputError("--only", f"{name!r} is none of {known}")
    return found

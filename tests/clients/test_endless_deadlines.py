"""A deadline that is longer than anybody waits is an hour, and no error."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator

import pytest

from tollgate.testing import TestServer
from tollgate_client import AsyncDecisionClient, Client, DecisionClient, Fallback

RULE = Fallback(otherwise="review")
HOUR_US = 3_600_000_000
ENDLESS = pytest.mark.parametrize("deadline_s", [math.inf, 1e14])


def purchase(name: str) -> dict[str, object]:
    """A purchase by name."""
    return {
        "transaction_id": name,
        "customer_id": "c",
        "terminal_id": "m",
        "amount": 12.34,
        "event_time": 1_600_000_000_000_000,
    }


@pytest.fixture
def server() -> Iterator[TestServer]:
    """A server of its own for each test."""
    with TestServer() as one:
        yield one


def told_us(server: TestServer) -> int:
    """Give what the server was told last, µs."""
    return int(server.asked[-1].deadline_us)


@ENDLESS
def test_a_server_answers_and_is_told_an_hour(
    server: TestServer, deadline_s: float
) -> None:
    """By each of the clients that wait."""
    with DecisionClient(server.url, fallback=RULE) as client:
        assert client.decide(purchase("t1"), deadline_s=deadline_s).source == "model"
    assert HOUR_US - 60_000_000 < told_us(server) <= HOUR_US
    columns = {name: [value] for name, value in purchase("t2").items()}
    with Client(server.url, timeout_s=deadline_s) as many:
        assert many.decide(columns).decision.tolist() == ["approve"]
    assert told_us(server) == HOUR_US


@ENDLESS
def test_who_waits_endlessly_breaks_no_neighbours_request(
    server: TestServer, deadline_s: float
) -> None:
    """They share one, whose deadline is the longest of theirs."""

    async def both() -> list[str]:
        async with AsyncDecisionClient(server.url, fallback=RULE) as client:
            calls = (
                client.decide(purchase("t1"), deadline_s=30.0),
                client.decide(purchase("t2"), deadline_s=deadline_s),
            )
            return [one.source for one in await asyncio.gather(*calls)]

    assert asyncio.run(both()) == ["model", "model"]
    assert len({row.request for row in server.asked}) == 1
    assert HOUR_US - 60_000_000 < told_us(server) <= HOUR_US

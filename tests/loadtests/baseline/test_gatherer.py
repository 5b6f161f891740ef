"""Tests of gathering requests into batches."""

from __future__ import annotations

import asyncio

import pytest

from loadtests.baseline.gatherer import Gatherer
from loadtests.baseline.lean.work import Purchase
from loadtests.baseline.service import Answers, BadRows


def purchase(name: str) -> Purchase:
    """A purchase of this id."""
    return Purchase(name, "C", "T", 1.0, 10**15)


class Recorder:
    """Answers with the ids of its request; refuses batches that hold a bad one."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    async def decide(self, purchases: list[Purchase]) -> Answers:
        """Wait for a turn of the event loop, and answer."""
        self.sizes.append(len(purchases))
        await asyncio.sleep(0)
        names = [one.transaction_id for one in purchases]
        if "bad" in names:
            raise BadRows({names.index("bad"): "amount: -1: is negative"})
        return Answers(names, [0.0] * len(names), [[] for _ in names])


async def ask(decide: Gatherer, requests: list[list[str]]) -> list[Answers | Exception]:
    """Ask for all of them at once."""
    asked = [decide.decide([purchase(one) for one in rows]) for rows in requests]
    return await asyncio.gather(*asked, return_exceptions=True)


def test_requests_that_wait_together_share_a_batch() -> None:
    """Up to 32 rows, in order; everyone gets his own answers."""
    work = Recorder()
    requests = [[f"a{one}"] for one in range(40)] + [["b1", "b2"], ["c"] * 31]
    answers = asyncio.run(ask(Gatherer(work.decide), requests))
    assert [one.decision for one in answers] == requests
    assert work.sizes == [32, 10, 31]


def test_a_bad_row_costs_only_its_own_request() -> None:
    """Those that shared its batch are asked again without it."""
    work = Recorder()
    good, bad, other = asyncio.run(
        ask(Gatherer(work.decide), [["a"], ["x", "bad"], ["b"]])
    )
    assert (good.decision, other.decision) == (["a"], ["b"])
    assert isinstance(bad, BadRows)
    assert "row 1: amount" in str(bad)
    assert work.sizes == [4, 1, 2, 1]


def test_a_failure_reaches_everyone_and_ends_nothing() -> None:
    """A later request is answered."""
    calls = 0

    async def decide(purchases: list[Purchase]) -> Answers:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise ConnectionError("the store is away")
        return Answers(["approve"], [0.5], [[]])

    async def both() -> None:
        gatherer = Gatherer(decide)
        failed = await ask(gatherer, [["a"], ["b"]])
        assert [type(one) for one in failed] == [ConnectionError] * 2
        with pytest.raises(ConnectionError):
            raise failed[0]
        assert (await gatherer.decide([purchase("c")])).decision == ["approve"]

    asyncio.run(both())

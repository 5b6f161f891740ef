"""Decide a request in a worker, from the parsed body to the answer."""

from __future__ import annotations

from time import perf_counter_ns

import msgspec

from loadtests.baseline import environment
from loadtests.baseline.clock import LayerClock
from loadtests.baseline.lean.link import Link
from loadtests.baseline.lean.rows import Answers
from loadtests.baseline.lean.scoring import Scorer
from tollgate.schema import TRANSACTION_ID


class Purchase(msgspec.Struct, gc=False):
    """A purchase, as a request contains it."""

    transaction_id: str
    customer_id: str
    terminal_id: str
    amount: float
    event_time: int


class Work:
    """One worker's connections, model, policy and journal."""

    def __init__(self) -> None:
        self._link = Link(environment.store_url())
        self._clock = LayerClock(environment.folder())
        self._scorer = Scorer(
            environment.repository(),
            store_url=environment.store_url(),
            folder=environment.folder(),
        )

    async def begin(self) -> None:
        """Prepare the store."""
        await self._link.prepare()

    async def end(self) -> None:
        """Write all records, and close the connections."""
        self._scorer.close()
        await self._link.close()

    async def decide(self, purchases: list[Purchase]) -> Answers:
        """
        Decide 1 to 32 rows.

        Raises:
            BadRows: Any of them breaks a rule; none is decided.
            RedisError: The store has no answer.
        """
        start_ns = perf_counter_ns()
        prepared = self._scorer.ask(
            {
                TRANSACTION_ID: [one.transaction_id.encode() for one in purchases],
                "customer_id": [one.customer_id.encode() for one in purchases],
                "terminal_id": [one.terminal_id.encode() for one in purchases],
            },
            amount=[one.amount for one in purchases],
            time_us=[one.event_time for one in purchases],
        )
        replies = await self._link.ask(prepared.commands)
        stored = perf_counter_ns()
        features = self._scorer.features(prepared, replies)
        made = perf_counter_ns()
        probabilities = self._scorer.probabilities(features)
        scored = perf_counter_ns()
        answers = self._scorer.decide(prepared, features, probabilities=probabilities)
        self._clock.add(start_ns, stored, made, scored, perf_counter_ns())
        return answers

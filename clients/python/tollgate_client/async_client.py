"""Request decisions from asyncio; every call returns a decision."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import partial

import grpc
from msgspec import structs

from tollgate.errors import InvalidRequest
from tollgate_client.addresses import Address
from tollgate_client.asker import Asker, good_ones
from tollgate_client.asking import Ask
from tollgate_client.channel import opener, wait_connected_async
from tollgate_client.coalescing import Coalescing, Lane, Waiting, shared_call
from tollgate_client.counters import Counters
from tollgate_client.decision import Decision, Outcome
from tollgate_client.fallback import Fallback
from tollgate_client.options import DEFAULTS, Options

GATHERED = Coalescing()
_TOO_LATE = "no answer in time"
_NOTHING = nullcontext()


class AsyncDecisionClient:
    """
    Offer `DecisionClient` for asyncio; create and use it inside one event loop.

    Concurrent calls of `decide` share requests.

    Args:
        addresses, fallback, options: See `DecisionClient`.
        coalescing: Rules by which calls share requests; None sends each call alone.

    Raises:
        InputError: Addresses, rule or options do not fit together.
    """

    def __init__(
        self,
        addresses: str | Sequence[str],
        *,
        fallback: Fallback,
        options: Options = DEFAULTS,
        coalescing: Coalescing | None = GATHERED,
    ) -> None:
        self._asker = Asker(
            addresses,
            opener(options, grpc.aio),
            fallback=fallback,
            options=options,
            clock=asyncio.get_running_loop().time,
        )
        self._lanes: dict[bool, Lane] = {}
        if coalescing is not None:
            for dry_run in (False, True):
                late = partial(
                    self._asker.without_server, why=_TOO_LATE, dry_run=dry_run
                )
                self._lanes[dry_run] = Lane(self._send, late, coalescing)

    @property
    def counters(self) -> Counters:
        """Return the client's counters; `register` exports them."""
        return self._asker.counters

    @property
    def addresses(self) -> Sequence[Address]:
        """Return the addresses with the state of each one's circuit breaker."""
        return self._asker.ring.addresses

    async def wait_ready(self, timeout_s: float) -> None:
        """Wait for connections; see `DecisionClient.wait_ready`."""
        await wait_connected_async(self.addresses, timeout_s)

    async def decide(
        self,
        purchase: Mapping[str, object],
        *,
        dry_run: bool = False,
        deadline_s: float | None = None,
        traceparent: str = "",
    ) -> Decision:
        """
        Decide one purchase; see `DecisionClient.decide`.

        A caller that is cancelled affects no other caller.
        """
        asker = self._asker
        call = asker.begin(deadline_s, dry_run=dry_run, traceparent=traceparent)
        with call.span or _NOTHING:
            checked = asker.check(purchase)
            if isinstance(checked, InvalidRequest):
                raise checked
            if self._lanes:
                outcome = await self._lanes[dry_run].ask(checked, call)
            else:
                (outcome,) = await self._ask(Ask(asker, [checked], call=call))
            outcome = asker.record(outcome, call)
            if call.span is not None:
                call.span.report([purchase], [outcome])
            if isinstance(outcome, InvalidRequest):
                raise outcome
            return outcome

    async def decide_rows(
        self,
        purchases: Sequence[Mapping[str, object]],
        *,
        dry_run: bool = False,
        deadline_s: float | None = None,
        traceparent: str = "",
    ) -> list[Outcome]:
        """
        Decide 1 to 32 purchases in one request that no other call shares.

        See `DecisionClient.decide_rows`.
        """
        asker = self._asker
        call = asker.begin(deadline_s, dry_run=dry_run, traceparent=traceparent)
        with call.span or _NOTHING:
            checked = asker.check_all(purchases)
            good = good_ones(checked)
            outcomes = await self._ask(Ask(asker, good, call=call)) if good else []
            answered = asker.put_back(checked, outcomes, call)
            if call.span is not None:
                call.span.report(purchases, answered)
            return answered

    async def _send(self, rows: Sequence[Waiting]) -> list[Outcome]:
        purchases = [row.purchase for row in rows]
        call = shared_call([row.call for row in rows])
        tracer = self._asker.tracer
        if tracer is None or len(rows) == 1:
            return await self._ask(Ask(self._asker, purchases, call=call))
        spans = [row.call.span for row in rows if row.call.span is not None]
        with tracer.request(spans) as span:
            call = structs.replace(call, traceparent=span.traceparent)
            return await self._ask(Ask(self._asker, purchases, call=call))

    async def _ask(self, ask: Ask) -> list[Outcome]:
        while attempt := ask.next():
            try:
                response = await attempt.call()
            except grpc.RpcError as error:
                ask.failed(attempt, error)
            else:
                ask.answered(attempt, response)
        return ask.outcomes()

    async def close(self) -> None:
        """Wait for the requests in flight and close the connections."""
        for lane in self._lanes.values():
            await lane.close()
        for address in self.addresses:
            await address.channel.close(self._asker.options.deadline_s)

    async def __aenter__(self) -> AsyncDecisionClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

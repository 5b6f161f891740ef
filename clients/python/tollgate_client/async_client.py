"""
Request decisions from asyncio; every call returns a decision.

Rows of concurrent calls share requests, because a request costs a server almost the
same with 1 row as with 32. If no request is in flight, a row is sent at once, together
with all rows of the same turn of the event loop. If one is in flight, the row waits
until that request returns, until enough rows fill a request, or for a millisecond,
whichever comes first.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial

import grpc

from tollgate_client.addresses import Address, opener, wait_connected_async
from tollgate_client.attempts import Call, ClientState, RequestAttempts, valid_rows
from tollgate_client.contract import MAX_BATCH_ROWS
from tollgate_client.decisions import Decision, Outcome
from tollgate_client.errors import InvalidRequest
from tollgate_client.fallback import Fallback
from tollgate_client.inputs import Purchase
from tollgate_client.options import DEFAULTS, Options
from tollgate_client.telemetry import Counters

# Part of a caller's remaining time that a row may wait for other rows.
_PATIENCE = 0.1


@dataclass(frozen=True, slots=True)
class Coalescing:
    """
    Define how rows are combined into requests.

    Attributes:
        rows: Maximum number of rows in one request, 1 to 32.
        wait_s: Longest time that a row waits for other rows, seconds.
    """

    rows: int = MAX_BATCH_ROWS
    wait_s: float = 0.001


@dataclass(frozen=True, slots=True, eq=False)
class Waiting:
    """
    A pending row whose caller waits for the outcome.

    Attributes:
        purchase: Purchase to decide.
        call: Deadline, trace context and mode of the call.
        answer: Future that gets the outcome.
    """

    purchase: Purchase
    call: Call
    answer: asyncio.Future[Outcome]


def shared_call(calls: Sequence[Call]) -> Call:
    """
    Combine several calls that differ only in their time and trace into one.

    The request lives as long as one of its callers waits. It can have only one trace
    context: the first one that a caller gave.
    """
    first = calls[0]
    return Call(
        begun_s=min(call.begun_s for call in calls),
        deadline_at_s=max(call.deadline_at_s for call in calls),
        dry_run=first.dry_run,
        traceparent=next((one.traceparent for one in calls if one.traceparent), ""),
    )


class Lane:
    """
    Batch rows that may share a request: all dry runs, or none.

    Args:
        send: Function that sends some rows and returns an outcome for each, in their
            order.
        late: Function that decides a row whose caller's deadline has passed.
        rules: Limits for combining rows into requests.
    """

    def __init__(
        self,
        send: Callable[[Sequence[Waiting]], Awaitable[list[Outcome]]],
        late: Callable[[Purchase], Decision],
        rules: Coalescing,
    ) -> None:
        self._send = send
        self._late = late
        self._rules = rules
        self._loop = asyncio.get_running_loop()
        self._waiting: list[Waiting] = []
        self._on_their_way: set[asyncio.Task[None]] = set()
        self._due: asyncio.Handle | None = None
        self._due_at_s = 0.0  # on the loop's clock, or -inf: this turn of the loop

    async def decide(self, purchase: Purchase, call: Call) -> Outcome:
        """Wait for the outcome of one row, no longer than its caller waits."""
        row = Waiting(purchase, call, self._loop.create_future())
        alarm = self._loop.call_at(call.deadline_at_s, self._give_up, row)
        self._waiting.append(row)
        self._plan(row, now_s=self._loop.time())
        try:
            return await row.answer
        finally:
            alarm.cancel()

    async def decide_each(
        self, purchases: Sequence[Purchase], call: Call
    ) -> list[Outcome]:
        """Wait for the outcomes of several rows of one caller, in their order."""
        rows = [Waiting(one, call, self._loop.create_future()) for one in purchases]
        alarm = self._loop.call_at(call.deadline_at_s, self._give_up, *rows)
        now_s = self._loop.time()
        for row in rows:
            self._waiting.append(row)
            self._plan(row, now_s=now_s)
        try:
            if len(rows) == 1:
                return [await rows[0].answer]
            return await asyncio.gather(*(row.answer for row in rows))
        finally:
            alarm.cancel()

    async def close(self) -> None:
        """Send the pending rows and wait for the requests in flight."""
        self._flush()
        while self._on_their_way:
            await asyncio.wait(self._on_their_way)

    def _plan(self, row: Waiting, *, now_s: float) -> None:
        """Schedule the sending of the row."""
        if len(self._waiting) >= self._rules.rows:
            self._flush()
        elif not self._on_their_way:
            self._schedule(0.0, now_s=now_s)
        else:
            left_s = (row.call.deadline_at_s - now_s) * _PATIENCE
            self._schedule(min(self._rules.wait_s, left_s), now_s=now_s)

    def _schedule(self, after_s: float, *, now_s: float) -> None:
        if self._due is not None:
            if self._due_at_s <= now_s + after_s:
                return
            self._due.cancel()
        if after_s > 0:
            self._due_at_s = now_s + after_s
            self._due = self._loop.call_later(after_s, self._flush)
        else:
            self._due_at_s = -math.inf
            self._due = self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        """Send all pending rows whose callers still wait."""
        if self._due is not None:
            self._due.cancel()
            self._due = None
        rows = [row for row in self._waiting if not row.answer.done()]
        self._waiting = []
        for start in range(0, len(rows), self._rules.rows):
            part = rows[start : start + self._rules.rows]
            task = self._loop.create_task(self._carry(part))
            self._on_their_way.add(task)
            task.add_done_callback(self._returned)

    async def _carry(self, rows: Sequence[Waiting]) -> None:
        try:
            outcomes = await self._send(rows)
        except BaseException as error:
            # A bug of ours must not leave callers waiting forever.
            for row in rows:
                if not row.answer.done():
                    row.answer.set_exception(error)
            raise
        for row, outcome in zip(rows, outcomes, strict=True):
            if not row.answer.done():
                row.answer.set_result(outcome)

    def _returned(self, task: asyncio.Task[None]) -> None:
        self._on_their_way.discard(task)
        if not task.cancelled():
            task.exception()  # its callers have the error
        if self._waiting:
            # Run after the callers that just got an outcome, who may send another row.
            self._schedule(0.0, now_s=self._loop.time())

    def _give_up(self, *rows: Waiting) -> None:
        for row in rows:
            if not row.answer.done():
                row.answer.set_result(self._late(row.purchase))


COALESCING = Coalescing()
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
        coalescing: Coalescing | None = COALESCING,
    ) -> None:
        self._state = ClientState(
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
                    self._state.without_server, why=_TOO_LATE, dry_run=dry_run
                )
                self._lanes[dry_run] = Lane(self._send, late, coalescing)

    @property
    def counters(self) -> Counters:
        """Return the client's counters; `register` exports them."""
        return self._state.counters

    @property
    def addresses(self) -> Sequence[Address]:
        """Return the addresses with the state of each one's circuit breaker."""
        return self._state.ring.addresses

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
        state = self._state
        call = state.begin(deadline_s, dry_run=dry_run, traceparent=traceparent)
        with call.span or _NOTHING:
            checked = state.check(purchase)
            if isinstance(checked, InvalidRequest):
                raise checked
            if self._lanes:
                outcome = await self._lanes[dry_run].decide(checked, call)
            else:
                (outcome,) = await self._run(
                    RequestAttempts(state, [checked], call=call)
                )
            outcome = state.record(outcome, call)
            if call.span is not None:
                call.span.report([purchase], [outcome])
            if isinstance(outcome, InvalidRequest):
                raise outcome
            return outcome

    async def decide_each(
        self,
        purchases: Sequence[Mapping[str, object]],
        *,
        dry_run: bool = False,
        deadline_s: float | None = None,
        traceparent: str = "",
    ) -> list[Outcome]:
        """
        Decide any number of purchases, each as a call of `decide` would.

        They share requests with each other and with concurrent calls. An invalid row is
        returned as its error, in its place, and affects no other row.
        """
        state = self._state
        call = state.begin(deadline_s, dry_run=dry_run, traceparent=traceparent)
        with call.span or _NOTHING:
            checked = [state.check(purchase) for purchase in purchases]
            valid = valid_rows(checked)
            outcomes: list[Outcome] = []
            if not self._lanes:
                for start in range(0, len(valid), MAX_BATCH_ROWS):
                    part = valid[start : start + MAX_BATCH_ROWS]
                    outcomes += await self._run(RequestAttempts(state, part, call=call))
            elif valid:
                outcomes = await self._lanes[dry_run].decide_each(valid, call)
            answered = state.in_order(checked, outcomes, call)
            if call.span is not None:
                call.span.report(purchases, answered)
            return answered

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
        state = self._state
        call = state.begin(deadline_s, dry_run=dry_run, traceparent=traceparent)
        with call.span or _NOTHING:
            checked = state.check_all(purchases)
            valid = valid_rows(checked)
            outcomes = (
                await self._run(RequestAttempts(state, valid, call=call))
                if valid
                else []
            )
            answered = state.in_order(checked, outcomes, call)
            if call.span is not None:
                call.span.report(purchases, answered)
            return answered

    async def _send(self, rows: Sequence[Waiting]) -> list[Outcome]:
        purchases = [row.purchase for row in rows]
        call = shared_call([row.call for row in rows])
        tracer = self._state.tracer
        if tracer is None or len(rows) == 1:
            return await self._run(RequestAttempts(self._state, purchases, call=call))
        spans = [row.call.span for row in rows if row.call.span is not None]
        with tracer.request(spans) as span:
            call = replace(call, traceparent=span.traceparent)
            return await self._run(RequestAttempts(self._state, purchases, call=call))

    async def _run(self, attempts: RequestAttempts) -> list[Outcome]:
        while attempt := attempts.next():
            try:
                response = await attempt.call()
            except grpc.RpcError as error:
                attempts.failed(attempt, error)
            else:
                attempts.answered(attempt, response)
        return attempts.outcomes()

    async def close(self) -> None:
        """Wait for the requests in flight and close the connections."""
        for lane in self._lanes.values():
            await lane.close()
        for address in self.addresses:
            await address.channel.close(self._state.options.deadline_s)

    async def __aenter__(self) -> AsyncDecisionClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

"""
Make the calls of a client for asyncio; every call returns an answer.

Rows of concurrent calls share requests, because a request costs a server almost the
same with 1 row as with 32. If no request is in flight, a row is sent at once, together
with all rows of the same turn of the event loop. If one is in flight, the row waits
until that request returns, until enough rows fill a request, or for a millisecond,
whichever comes first.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Generic, TypeVar

import grpc

from tollgate_client.addresses import Address, opener, wait_connected_async
from tollgate_client.attempts import (
    Answer,
    Call,
    ClientState,
    Given,
    RequestAttempts,
    Row,
    valid_rows,
)
from tollgate_client.contract import MAX_BATCH_ROWS
from tollgate_client.decision_client import DecisionState
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
class Waiting(Generic[Row, Answer]):
    """
    A pending row whose caller waits for the outcome.

    Attributes:
        row: Row to answer.
        call: Deadline, trace context and mode of the call.
        answer: Future that gets the outcome.
    """

    row: Row
    call: Call
    answer: asyncio.Future[Answer | InvalidRequest]


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


class Lane(Generic[Row, Answer]):
    """
    Batch rows that may share a request: all dry runs, or none.

    Args:
        send: Function that sends some rows and returns an outcome for each, in their
            order.
        late: Function that answers a row whose caller's deadline has passed.
        rules: Limits for combining rows into requests.
    """

    def __init__(
        self,
        send: Callable[
            [Sequence[Waiting[Row, Answer]]],
            Awaitable[list[Answer | InvalidRequest]],
        ],
        late: Callable[[Row], Answer],
        rules: Coalescing,
    ) -> None:
        self._send = send
        self._late = late
        self._rules = rules
        self._loop = asyncio.get_running_loop()
        self._waiting: list[Waiting[Row, Answer]] = []
        self._on_their_way: set[asyncio.Task[None]] = set()
        self._due: asyncio.Handle | None = None
        self._due_at_s = 0.0  # on the loop's clock, or -inf: this turn of the loop

    async def decide(self, checked: Row, call: Call) -> Answer | InvalidRequest:
        """Wait for the outcome of one row, no longer than its caller waits."""
        row: Waiting[Row, Answer]
        row = Waiting(checked, call, self._loop.create_future())
        alarm = self._loop.call_at(call.deadline_at_s, self._give_up, row)
        self._waiting.append(row)
        self._plan(row, now_s=self._loop.time())
        try:
            return await row.answer
        finally:
            alarm.cancel()

    async def decide_each(
        self, checked: Sequence[Row], call: Call
    ) -> list[Answer | InvalidRequest]:
        """Wait for the outcomes of several rows of one caller, in their order."""
        rows: list[Waiting[Row, Answer]]
        rows = [Waiting(one, call, self._loop.create_future()) for one in checked]
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

    def _plan(self, row: Waiting[Row, Answer], *, now_s: float) -> None:
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

    async def _carry(self, rows: Sequence[Waiting[Row, Answer]]) -> None:
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

    def _give_up(self, *rows: Waiting[Row, Answer]) -> None:
        for row in rows:
            if not row.answer.done():
                row.answer.set_result(self._late(row.row))


COALESCING = Coalescing()
_TOO_LATE = "no answer in time"
_NOTHING = nullcontext()
_Client = TypeVar("_Client", bound="AsyncClient")  # type: ignore[type-arg]


class AsyncClient(Generic[Given, Row, Answer]):
    """
    Send rows to a product's servers, and answer those that no server answers.

    Args:
        state: What all calls of the client share.
        coalescing: Rules by which calls share requests; None sends each call alone.
    """

    def __init__(
        self, state: ClientState[Given, Row, Answer], coalescing: Coalescing | None
    ) -> None:
        self._calls = state
        self._coalescing = coalescing
        self._lanes: dict[tuple[bool, Hashable], Lane[Row, Answer]] = {}

    @property
    def counters(self) -> Counters:
        """Return the client's counters; `register` exports them."""
        return self._calls.counters

    @property
    def addresses(self) -> Sequence[Address]:
        """Return the addresses with the state of each one's circuit breaker."""
        return self._calls.ring.addresses

    async def wait_ready(self, timeout_s: float) -> None:
        """Wait for connections; see `DecisionClient.wait_ready`."""
        await wait_connected_async(self.addresses, timeout_s)

    async def _answer_one(
        self,
        given: Given,
        *,
        dry_run: bool,
        deadline_s: float | None,
        traceparent: str,
    ) -> Answer:
        """Answer one row, in a request that other calls may share."""
        state = self._calls
        call = state.begin(deadline_s, dry_run=dry_run, traceparent=traceparent)
        with call.span or _NOTHING:
            checked = state.check(given)
            if isinstance(checked, InvalidRequest):
                raise checked
            lane = self._lane(checked, call)
            if lane is not None:
                outcome = await lane.decide(checked, call)
            else:
                (outcome,) = await self._run(
                    RequestAttempts(state, [checked], call=call)
                )
            outcome = state.record(outcome, call)
            state.report([given], [outcome], call)
            if isinstance(outcome, InvalidRequest):
                raise outcome
            return outcome

    async def _answer_each(
        self,
        given: Sequence[Given],
        *,
        dry_run: bool,
        deadline_s: float | None,
        traceparent: str,
    ) -> list[Answer | InvalidRequest]:
        """Answer any number of rows, each as `_answer_one` would."""
        state = self._calls
        call = state.begin(deadline_s, dry_run=dry_run, traceparent=traceparent)
        with call.span or _NOTHING:
            checked = [state.check(one) for one in given]
            valid = valid_rows(checked)
            lane = self._lane(valid[0], call) if valid else None
            outcomes: list[Answer | InvalidRequest] = []
            if lane is not None:
                outcomes = await lane.decide_each(valid, call)
            else:
                for start in range(0, len(valid), MAX_BATCH_ROWS):
                    part = valid[start : start + MAX_BATCH_ROWS]
                    outcomes += await self._run(RequestAttempts(state, part, call=call))
            answered = state.in_order(checked, outcomes, call)
            state.report(given, answered, call)
            return answered

    async def _answer_rows(
        self,
        given: Sequence[Given],
        *,
        dry_run: bool,
        deadline_s: float | None,
        traceparent: str,
    ) -> list[Answer | InvalidRequest]:
        """Answer 1 to 32 rows in one request that no other call shares."""
        state = self._calls
        call = state.begin(deadline_s, dry_run=dry_run, traceparent=traceparent)
        with call.span or _NOTHING:
            checked = state.check_all(given)
            valid = valid_rows(checked)
            outcomes = (
                await self._run(RequestAttempts(state, valid, call=call))
                if valid
                else []
            )
            answered = state.in_order(checked, outcomes, call)
            state.report(given, answered, call)
            return answered

    def _lane(self, row: Row, call: Call) -> Lane[Row, Answer] | None:
        """Return the lane of the rows that may share a request with this one."""
        if self._coalescing is None:
            return None
        key = call.dry_run, self._calls.request_key(row)
        lane = self._lanes.get(key)
        if lane is None:
            late = partial(
                self._calls.without_server, why=_TOO_LATE, dry_run=call.dry_run
            )
            lane = self._lanes[key] = Lane(self._send, late, self._coalescing)
        return lane

    async def _send(
        self, waiting: Sequence[Waiting[Row, Answer]]
    ) -> list[Answer | InvalidRequest]:
        rows = [one.row for one in waiting]
        call = shared_call([one.call for one in waiting])
        tracer = self._calls.tracer
        if tracer is None or len(rows) == 1:
            return await self._run(RequestAttempts(self._calls, rows, call=call))
        spans = [one.call.span for one in waiting if one.call.span is not None]
        with tracer.request(spans) as span:
            call = replace(call, traceparent=span.traceparent)
            return await self._run(RequestAttempts(self._calls, rows, call=call))

    async def _run(
        self, attempts: RequestAttempts[Given, Row, Answer]
    ) -> list[Answer | InvalidRequest]:
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
        for lane in list(self._lanes.values()):
            await lane.close()
        for address in self.addresses:
            await address.channel.close(self._calls.options.deadline_s)

    async def __aenter__(self: _Client) -> _Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class AsyncDecisionClient(AsyncClient[Mapping[str, object], Purchase, Decision]):
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
        state = DecisionState(
            addresses,
            opener(options, grpc.aio),
            fallback=fallback,
            options=options,
            clock=asyncio.get_running_loop().time,
        )
        super().__init__(state, coalescing)

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
        return await self._answer_one(
            purchase, dry_run=dry_run, deadline_s=deadline_s, traceparent=traceparent
        )

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
        return await self._answer_each(
            purchases, dry_run=dry_run, deadline_s=deadline_s, traceparent=traceparent
        )

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
        return await self._answer_rows(
            purchases, dry_run=dry_run, deadline_s=deadline_s, traceparent=traceparent
        )

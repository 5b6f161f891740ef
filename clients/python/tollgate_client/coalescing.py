"""
Combine rows of concurrent calls into one request.

A request costs a server almost the same with 1 row as with 32. If no request is in
flight, a row is sent at once, together with all rows of the same turn of the event
loop. If one is in flight, the row waits until that request returns, until enough rows
fill a request, or for a millisecond, whichever comes first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from tollgate.schema import MAX_BATCH_ROWS
from tollgate_client.asker import Call
from tollgate_client.decision import Decision, Outcome
from tollgate_client.purchase import Purchase

# Part of a caller's remaining time that a row may wait for other rows.
_PATIENCE = 0.1


class Coalescing(msgspec.Struct, frozen=True):
    """
    Define how rows are combined into requests.

    Attributes:
        rows: Maximum number of rows in one request, 1 to 32.
        wait_s: Longest time that a row waits for other rows, seconds.
    """

    rows: int = MAX_BATCH_ROWS
    wait_s: float = 0.001


class Waiting(msgspec.Struct, frozen=True, eq=False):
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

    async def ask(self, purchase: Purchase, call: Call) -> Outcome:
        """Wait for the outcome of one row, no longer than its caller waits."""
        row = Waiting(purchase, call, self._loop.create_future())
        alarm = self._loop.call_at(call.deadline_at_s, self._give_up, row)
        self._waiting.append(row)
        self._plan(row, now_s=self._loop.time())
        try:
            return await row.answer
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
        if isinstance(self._due, asyncio.TimerHandle):
            if self._due.when() <= now_s + after_s:
                return
            self._due.cancel()
        elif self._due is not None:
            return  # this turn of the event loop sends it
        self._due = (
            self._loop.call_later(after_s, self._flush)
            if after_s > 0
            else self._loop.call_soon(self._flush)
        )

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

    def _give_up(self, row: Waiting) -> None:
        if not row.answer.done():
            row.answer.set_result(self._late(row.purchase))

"""
Gathering rows that are asked for at the same time into requests.

A request costs a server almost the same with 1 row and with 32. So a row that finds
nothing on its way goes at once, with all that are asked for in the same turn of the
event loop; one that finds a request on its way waits for that to return, for company
to fill a request, or for a millisecond, whichever is first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from clients.asker import Call
from clients.decision import Decision, Outcome
from clients.purchase import Purchase
from tollgate.schema import MAX_BATCH_ROWS

# Part of what a caller has left that a row may wait for company.
_PATIENCE = 0.1


class Coalescing(msgspec.Struct, frozen=True):
    """
    How rows are gathered.

    Attributes:
        rows: Most in one request, 1 to 32.
        wait_s: Longest that a row waits for company.
    """

    rows: int = MAX_BATCH_ROWS
    wait_s: float = 0.001


class Waiting(msgspec.Struct, frozen=True, eq=False):
    """
    A row whose caller waits.

    Attributes:
        purchase: What is asked.
        call: How.
        answer: Where its caller finds the outcome.
    """

    purchase: Purchase
    call: Call
    answer: asyncio.Future[Outcome]


def shared_call(calls: Sequence[Call]) -> Call:
    """
    Make one call of several that are alike but for their time and trace.

    The request lives as long as one of its callers waits. It can have one trace only:
    the first that there is.
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
    Rows that may travel together: all wet, or all dry.

    Args:
        send: Asks for some rows; gives each an outcome, in their order.
        late: Decides for a row whose caller's time is over.
        rules: How rows are gathered.
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
        """Wait for the outcome of one row, no longer than its caller has."""
        row = Waiting(purchase, call, self._loop.create_future())
        alarm = self._loop.call_at(call.deadline_at_s, self._give_up, row)
        self._waiting.append(row)
        self._plan(row, now_s=self._loop.time())
        try:
            return await row.answer
        finally:
            alarm.cancel()

    async def close(self) -> None:
        """Send what waits and wait for what is on its way."""
        self._flush()
        while self._on_their_way:
            await asyncio.wait(self._on_their_way)

    def _plan(self, row: Waiting, *, now_s: float) -> None:
        """See to it that the row is sent in time."""
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
            return  # it comes with this turn of the loop
        self._due = (
            self._loop.call_later(after_s, self._flush)
            if after_s > 0
            else self._loop.call_soon(self._flush)
        )

    def _flush(self) -> None:
        """Send all rows that wait and whose callers still do."""
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
            # A mistake of ours must not leave callers waiting for nothing.
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
            task.exception()  # its callers have it
        if self._waiting:
            # After the callers that were just answered, who may ask again.
            self._schedule(0.0, now_s=self._loop.time())

    def _give_up(self, row: Waiting) -> None:
        if not row.answer.done():
            row.answer.set_result(self._late(row.purchase))

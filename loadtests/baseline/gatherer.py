"""Put requests that are pending at the same time into one batch."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from loadtests.baseline.service import MAX_ROWS, Answers, BadRows

Row = TypeVar("Row")


class Gatherer(Generic[Row]):
    """
    Decides all rows that arrived during the previous batch, without any other delay.

    Args:
        decide: Function that decides 1 to 32 rows.
    """

    def __init__(self, decide: Callable[[list[Row]], Awaitable[Answers]]) -> None:
        self._decide = decide
        self._waiting: deque[tuple[list[Row], asyncio.Future[Answers]]] = deque()
        self._task: asyncio.Task[None] | None = None

    async def decide(self, rows: list[Row]) -> Answers:
        """Decide the rows of one request, in a batch with those of others."""
        answer: asyncio.Future[Answers] = asyncio.get_running_loop().create_future()
        self._waiting.append((rows, answer))
        if self._task is None:
            self._task = asyncio.create_task(self._work())
        return await answer

    async def _work(self) -> None:
        try:
            while self._waiting:
                await self._answer(self._take())
        finally:
            self._task = None

    def _take(self) -> list[tuple[list[Row], asyncio.Future[Answers]]]:
        """Take the requests whose rows fit into one batch, the oldest first."""
        taken = [self._waiting.popleft()]
        room = MAX_ROWS - len(taken[0][0])
        while self._waiting and len(self._waiting[0][0]) <= room:
            taken.append(self._waiting.popleft())
            room -= len(taken[-1][0])
        return taken

    async def _answer(
        self, batch: list[tuple[list[Row], asyncio.Future[Answers]]]
    ) -> None:
        """Decide a batch; where a row is bad, decide each of its requests alone."""
        try:
            answers = await self._decide([one for rows, _ in batch for one in rows])
        except BadRows as error:
            if len(batch) > 1:
                for request in batch:
                    await self._answer([request])
            else:
                batch[0][1].set_exception(error)
        except Exception as error:  # noqa: BLE001 - each caller gets it
            for _, answer in batch:
                answer.set_exception(error)
        else:
            start = 0
            for rows, answer in batch:
                if not answer.cancelled():
                    answer.set_result(answers.part(start, start + len(rows)))
                start += len(rows)

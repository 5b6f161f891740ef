"""
Look rows up again for requests that let the store take longer than a payment does.

The dynamic batch waits for the store no longer than the step's own deadline, whatever
its requests ask. A request that may wait longer and whose rows the store gave no whole
answer for is answered later, from a thread and over a connection of its own: neither
the requests of its batch nor those of the next one wait for it.
"""

from __future__ import annotations

import logging
import queue
import time
from collections.abc import Callable
from typing import Any, Protocol

import msgspec
import numpy as np

from tollgate.errors import trace_of
from tollgate.schema import STORE_LOST, Degraded
from tollgate.steps import triton
from tollgate.steps.batch import Batch
from tollgate.steps.triton import Array
from tollgate.store.ladder import Ladder
from tollgate.worker import Worker

log = logging.getLogger("tollgate.steps")

_LOST = np.uint32(STORE_LOST)
_LATE = np.uint32(Degraded.STORE_UNAVAILABLE | Degraded.LAST_KNOWN_VECTOR)


class Score(Protocol):
    """Scores a batch over a ladder."""

    def __call__(
        self, batch: Batch, *, arrival_us: int, ladder: Ladder
    ) -> tuple[Array, Array]:
        """Give the features and the contexts of its rows."""


class Waiting(msgspec.Struct, frozen=True, eq=False):
    """
    A request that is looked up again.

    Attributes:
        batch: Its rows.
        features, context: What the first look-up gave; [N, F] and [N].
        deadline_s: How long the store may take for them.
        sender: Triton's response sender of the request.
    """

    batch: Batch
    features: Array
    context: Array
    deadline_s: float
    sender: Any


class SecondLookup:
    """
    The requests that wait for a second answer of the store.

    Args:
        pb: Triton's `triton_python_backend_utils`.
        open_ladder: Opens the store again; called when the first request needs it.
        score: Scores rows over that: their features and contexts.
        respond: Writes the answer to a request, given its rows, features and contexts.
        deadline_s: How long the batch waits; a request that asks for less gets that.
        limit_s: The most that a request may ask for.

    Attributes:
        found: Rows that the store answered at the second look-up, since the start.
        lost: Rows that it was late for again.
    """

    def __init__(
        self,
        pb: Any,
        *,
        open_ladder: Callable[[], Ladder],
        score: Score,
        respond: Callable[[Batch, Array, Array], Any],
        deadline_s: float,
        limit_s: float,
    ) -> None:
        self.found = 0
        self.lost = 0
        self._pb = pb
        self._open_ladder = open_ladder
        self._score, self._respond = score, respond
        self._deadline_s = deadline_s
        self._limit_s = limit_s
        self._ladder: Ladder | None = None
        self._queue: queue.SimpleQueue[Waiting] = queue.SimpleQueue()
        self._worker = Worker(
            "second-lookup",
            self._answer_waiting,
            pause_s=None,
            finish=self._answer_rest,
        )
        self._worker.start()

    def wanted(self, batch: Batch, degraded: Array) -> dict[int, float]:
        """
        Name the requests of a batch to look up again, and their deadlines, seconds.

        Args:
            batch: After its first look-up.
            degraded: Degraded bits of its rows; uint32 [N].
        """
        found: dict[int, float] = {}
        if not batch.store_deadline_ms:
            return found
        lost = (degraded & _LOST) != 0
        lost[list(batch.errors)] = False
        for position, asked_ms in enumerate(batch.store_deadline_ms):
            deadline_s = min(asked_ms * 1e-3, self._limit_s)
            start, stop = batch.bounds[position : position + 2]
            if deadline_s > self._deadline_s and lost[start:stop].any():
                found[position] = deadline_s
        return found

    def add(self, waiting: Waiting) -> None:
        """Look a request up again, behind those that wait already."""
        self._queue.put(waiting)
        self._worker.wake()

    def close(self) -> None:
        """Answer all that wait, and close the store."""
        self._worker.stop()
        if self._ladder is not None:
            self._ladder.close()

    def _answer_waiting(self) -> None:
        while not self._queue.empty():
            self._answer(self._queue.get())

    def _answer_rest(self) -> None:
        """Answer all that wait at the end, though some cannot be answered."""
        while not self._queue.empty():
            try:
                self._answer_waiting()
            except Exception as exc:  # noqa: BLE001 - the next request has its turn
                log.error("an answer was not sent: %s", trace_of(exc))

    def _answer(self, waiting: Waiting) -> None:
        features, context = waiting.features, waiting.context
        try:
            features, context = self._look_up(waiting)
        except Exception as exc:  # noqa: BLE001 - the first answer is there to send
            log.error("a second look-up failed: %s", trace_of(exc))
        lost = int(((context["degraded"] & _LOST) != 0).sum())
        self.lost += lost
        self.found += len(context) - lost
        try:
            response = self._respond(waiting.batch, features, context)
        except Exception as exc:  # noqa: BLE001 - a caller waits for an answer
            log.error("a second look-up was not answered: %s", trace_of(exc))
            text = f"the step failed: {type(exc).__name__}; the server's log has more"
            response = triton.refuse(self._pb, text, invalid=False)
        final = self._pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL
        waiting.sender.send(response, flags=final)

    def _look_up(self, waiting: Waiting) -> tuple[Array, Array]:
        """Score a request again; rows that the store is late for stay as they were."""
        if self._ladder is None:
            self._ladder = self._open_ladder()
        self._ladder.wait_for_store(waiting.deadline_s)
        begun_us = time.monotonic_ns() // 1000
        features, context = self._score(
            waiting.batch, arrival_us=begun_us, ladder=self._ladder
        )
        # No latency of the product holds the wait that this request asked for.
        waited_us = round((self._ladder.counts.call_s or 0.0) * 1e6)
        context["arrival_us"] += waited_us
        context["features_us"] -= np.minimum(context["features_us"], waited_us)
        late = (context["degraded"] & _LATE) != 0
        features[late], context[late] = waiting.features[late], waiting.context[late]
        return features, context

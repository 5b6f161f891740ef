"""
Repeat the store look-up for requests that allow a longer store deadline.

The dynamic batch waits for the store no longer than the step's own deadline, whatever
deadline its requests allow. A request gets a second look-up if it allows a longer
deadline and the store did not return all of its rows. A thread with its own connection
does this look-up and sends the response later, so neither the requests of this batch
nor those of the next one wait for it.
"""

from __future__ import annotations

import logging
import queue
import time
from collections.abc import Callable
from typing import Any, Protocol

import msgspec
import numpy as np

from tollgate.engine.row_batches import Batch
from tollgate.errors import trace_of
from tollgate.schema import STORE_LOST, Degraded
from tollgate.steps import triton
from tollgate.steps.triton import Array
from tollgate.store.fallback.fallback_chain import FallbackChain
from tollgate.worker import Worker

log = logging.getLogger("tollgate.steps")

_LOST = np.uint32(STORE_LOST)
_LATE = np.uint32(Degraded.STORE_UNAVAILABLE | Degraded.LAST_KNOWN_VECTOR)


class Score(Protocol):
    """Score a batch over a fallback chain."""

    def __call__(
        self, batch: Batch, *, arrival_us: int, chain: FallbackChain
    ) -> tuple[Array, Array]:
        """Return the features and the contexts of its rows."""


class PendingRequest(msgspec.Struct, frozen=True, eq=False):
    """
    Hold a request that waits for its second look-up.

    Attributes:
        batch: Its rows.
        features, context: Results of the first look-up; [N, F] and [N].
        deadline_s: Deadline of the store for them.
        request: The request, for its parameters and id.
        sender: Triton's response sender of the request.
    """

    batch: Batch
    features: Array
    context: Array
    deadline_s: float
    request: Any
    sender: Any


class SecondLookup:
    """
    Queue requests for a second look-up, and answer them from a thread.

    Args:
        pb: Triton's `triton_python_backend_utils`.
        open_chain: Opens the store again; called when the first request needs it.
        score: Scores rows over that store: returns their features and contexts.
        respond: Writes the answer to a request, given its features and contexts.
        deadline_s: Deadline of the batch; a second look-up needs a longer one.
        limit_s: Longest deadline that a request may set.

    Attributes:
        found: Rows that the store answered at the second look-up, since the start.
        lost: Rows for which the store was late again.
    """

    def __init__(
        self,
        pb: Any,
        *,
        open_chain: Callable[[], FallbackChain],
        score: Score,
        respond: Callable[[PendingRequest, Array, Array], Any],
        deadline_s: float,
        limit_s: float,
    ) -> None:
        self.found = 0
        self.lost = 0
        self._pb = pb
        self._open_chain = open_chain
        self._score, self._respond = score, respond
        self._deadline_s = deadline_s
        self._limit_s = limit_s
        self._chain: FallbackChain | None = None
        self._queue: queue.SimpleQueue[PendingRequest] = queue.SimpleQueue()
        self._worker = Worker(
            "second-lookup",
            self._answer_pending,
            pause_s=None,
            finish=self._answer_rest,
        )
        self._worker.start()

    def eligible(self, batch: Batch, degraded: Array) -> dict[int, float]:
        """
        Return the requests of a batch to look up again, and their deadlines, seconds.

        Args:
            batch: After its first look-up.
            degraded: Degraded bits of its rows; uint32 [N].
        """
        found: dict[int, float] = {}
        if not batch.store_deadline_ms:
            return found
        lost = (degraded & _LOST) != 0
        lost[list(batch.errors)] = False
        for position, requested_ms in enumerate(batch.store_deadline_ms):
            deadline_s = min(requested_ms * 1e-3, self._limit_s)
            start, stop = batch.bounds[position : position + 2]
            if deadline_s > self._deadline_s and lost[start:stop].any():
                found[position] = deadline_s
        return found

    def add(self, pending: PendingRequest) -> None:
        """Queue a request for its second look-up."""
        self._queue.put(pending)
        self._worker.wake()

    def close(self) -> None:
        """Answer all queued requests, and close the store."""
        self._worker.stop()
        if self._chain is not None:
            self._chain.close()

    def _answer_pending(self) -> None:
        while not self._queue.empty():
            self._answer(self._queue.get())

    def _answer_rest(self) -> None:
        """Answer all queued requests at shutdown, even if some fail."""
        while not self._queue.empty():
            try:
                self._answer_pending()
            except Exception as exc:  # noqa: BLE001 - the next request is served anyway
                log.error("an answer was not sent: %s", trace_of(exc))

    def _answer(self, pending: PendingRequest) -> None:
        features, context = pending.features, pending.context
        try:
            features, context = self._look_up(pending)
        except Exception as exc:  # noqa: BLE001 - the first answer can be sent
            log.error("a second look-up failed: %s", trace_of(exc))
        lost = int(((context["degraded"] & _LOST) != 0).sum())
        self.lost += lost
        self.found += len(context) - lost
        try:
            response = self._respond(pending, features, context)
        except Exception as exc:  # noqa: BLE001 - a caller waits for an answer
            log.error("a second look-up was not answered: %s", trace_of(exc))
            text = f"the step failed: {type(exc).__name__}; the server's log has more"
            response = triton.refuse(self._pb, text, invalid=False)
        final = self._pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL
        pending.sender.send(response, flags=final)

    def _look_up(self, pending: PendingRequest) -> tuple[Array, Array]:
        """Score a request again; rows for which the store is late stay as they were."""
        if self._chain is None:
            self._chain = self._open_chain()
        self._chain.wait_for_store(pending.deadline_s)
        started_us = time.monotonic_ns() // 1000
        features, context = self._score(
            pending.batch, arrival_us=started_us, chain=self._chain
        )
        # The product's latencies exclude the wait that this request allowed.
        waited_us = round((self._chain.counts.call_s or 0.0) * 1e6)
        context["arrival_us"] += waited_us
        context["features_us"] -= np.minimum(context["features_us"], waited_us)
        late = (context["degraded"] & _LATE) != 0
        features[late], context[late] = pending.features[late], pending.context[late]
        return features, context

"""Keep several requests in flight and return their responses in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from random import uniform
from time import perf_counter, sleep

import grpc
from tritonclient.grpc import service_pb2

from clients.codec import decisions_of
from clients.decisions import Decisions, bad_rows
from clients.errors import client_error, row_errors
from tollgate.errors import InvalidRequest, Overloaded

Metadata = Callable[[], tuple[tuple[str, str], ...]]

_PATIENCE_S = 30.0  # with a server that is overloaded
_FIRST_WAIT_S, _LAST_WAIT_S = 0.02, 1.0


class Call:
    """One request in flight."""

    def __init__(
        self,
        infer: grpc.UnaryUnaryMultiCallable,
        request: service_pb2.ModelInferRequest,
        *,
        deadline_s: float,
        metadata: Metadata,
    ) -> None:
        self._infer, self._request, self._metadata = infer, request, metadata
        self._rows = int(request.inputs[0].shape[0])
        self._deadline_s = deadline_s
        self._send()

    def _send(self) -> None:
        self._answered: float | None = None
        self._sent = perf_counter()
        self._future = self._infer.future(
            self._request, timeout=self._deadline_s, metadata=self._metadata()
        )
        self._future.add_done_callback(self._stamp)

    def _stamp(self, _: object) -> None:
        self._answered = perf_counter()

    def cancel(self) -> None:
        """Cancel the request."""
        self._future.cancel()

    def answer(self, *, where: str) -> Decisions:
        """
        Wait for the response; a request of only bad rows gives rows with errors.

        A request that an overloaded server refuses is sent again, after a wait that
        doubles.

        Raises:
            InvalidRequest, DeadlineExceeded, Unavailable: See `client_error`.
        """
        until = perf_counter() + _PATIENCE_S
        wait_s = _FIRST_WAIT_S
        while True:
            try:
                return self._once(where=where)
            except Overloaded:
                if perf_counter() + wait_s > until:
                    raise
            sleep(wait_s * uniform(0.5, 1.0))  # callers must not all retry at once
            wait_s = min(2 * wait_s, _LAST_WAIT_S)
            self._send()

    def _once(self, *, where: str) -> Decisions:
        try:
            response = self._future.result()
        except grpc.RpcError as error:
            mapped = client_error(error, where=where, deadline_s=self._deadline_s)
            refused = (
                row_errors(str(mapped), rows=self._rows)
                if isinstance(mapped, InvalidRequest)
                else None
            )
            if refused is None:
                raise mapped from error
            return bad_rows(refused, latency_s=self._latency_s())
        return decisions_of(response, latency_s=self._latency_s())

    def _latency_s(self) -> float:
        # The result can be available a moment before its callback ran.
        return (self._answered or perf_counter()) - self._sent


def answers(
    requests: Iterable[service_pb2.ModelInferRequest],
    *,
    infer: grpc.UnaryUnaryMultiCallable,
    in_flight: int,
    deadline_s: float,
    metadata: Metadata,
    where: str,
) -> Iterator[Decisions]:
    """
    Send requests, at most `in_flight` at once, and yield responses in order.

    Args:
        requests: Requests; each is encoded only when there is room for it.
        infer: The stub's method.
        in_flight: At least 1.
        deadline_s: Seconds for each request, from its sending.
        metadata: Function that returns the metadata of a request.
        where: Product and address, for messages.

    Raises:
        InvalidRequest, DeadlineExceeded, Unavailable: Raised when the failed request's
            turn comes; the later ones are cancelled.
    """
    calls = (
        Call(infer, request, deadline_s=deadline_s, metadata=metadata)
        for request in requests
    )
    waiting = deque(islice(calls, in_flight))
    try:
        while waiting:
            answer = waiting.popleft().answer(where=where)
            waiting.extend(islice(calls, 1))
            yield answer
    finally:
        for call in waiting:
            call.cancel()

"""Keep several requests on their way and hand out their answers in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from time import perf_counter

import grpc
from tritonclient.grpc import service_pb2

from clients.codec import decisions_of
from clients.decisions import Decisions, bad_rows
from clients.errors import client_error, row_errors
from clients.options import bearer
from tollgate.errors import InvalidRequest


class Call:
    """One request on its way."""

    def __init__(
        self,
        infer: grpc.UnaryUnaryMultiCallable,
        request: service_pb2.ModelInferRequest,
        *,
        deadline_s: float,
        token: str | Callable[[], str] | None,
    ) -> None:
        self._rows = int(request.inputs[0].shape[0])
        self._deadline_s = deadline_s
        self._answered: float | None = None
        self._sent = perf_counter()
        self._future = infer.future(request, timeout=deadline_s, metadata=bearer(token))
        self._future.add_done_callback(self._stamp)

    def _stamp(self, _: object) -> None:
        self._answered = perf_counter()

    def cancel(self) -> None:
        """Give up on the answer."""
        self._future.cancel()

    def answer(self, *, where: str) -> Decisions:
        """
        Wait for the answer; rows that were all refused become rows with errors.

        Raises:
            InvalidRequest, DeadlineExceeded, Unavailable: As `client_error`.
        """
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
        # The result can be there a moment before its callback ran.
        return (self._answered or perf_counter()) - self._sent


def answers(
    requests: Iterable[service_pb2.ModelInferRequest],
    *,
    infer: grpc.UnaryUnaryMultiCallable,
    in_flight: int,
    deadline_s: float,
    where: str,
    token: str | Callable[[], str] | None = None,
) -> Iterator[Decisions]:
    """
    Send requests, at most `in_flight` unanswered, and yield answers in order.

    Args:
        requests: Written one by one, when there is room.
        infer: The stub's method.
        in_flight: At least 1.
        deadline_s: For each request, from its sending.
        where: Product and address, for messages.
        token: Sent with each request.

    Raises:
        InvalidRequest, DeadlineExceeded, Unavailable: In the turn of the request
            that failed; the later ones are cancelled.
    """
    calls = (
        Call(infer, request, deadline_s=deadline_s, token=token) for request in requests
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

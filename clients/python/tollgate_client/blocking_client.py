"""Make the calls of a client for threads; every call returns an answer."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Generic, TypeVar

import grpc

from tollgate_client.addresses import Address, wait_connected
from tollgate_client.attempts import (
    Answer,
    ClientState,
    Given,
    RequestAttempts,
    Row,
    valid_rows,
)
from tollgate_client.errors import InvalidRequest
from tollgate_client.telemetry import Counters

_NOTHING = nullcontext()
_Client = TypeVar("_Client", bound="BlockingClient")  # type: ignore[type-arg]


class BlockingClient(Generic[Given, Row, Answer]):
    """
    Send rows to a product's servers, and answer those that no server answers.

    Args:
        state: What all calls of the client share.
    """

    def __init__(self, state: ClientState[Given, Row, Answer]) -> None:
        self._calls = state

    @property
    def counters(self) -> Counters:
        """Return the client's counters; `register` exports them."""
        return self._calls.counters

    @property
    def addresses(self) -> Sequence[Address]:
        """Return the addresses with the state of each one's circuit breaker."""
        return self._calls.ring.addresses

    def wait_ready(self, timeout_s: float) -> None:
        """
        Wait for connections, so that the first calls need not open them.

        Raises:
            Unavailable: An address has no connection in time. The client can answer
                nevertheless.
        """
        wait_connected(self.addresses, timeout_s)

    def _answer_rows(
        self,
        given: Sequence[Given],
        *,
        dry_run: bool,
        deadline_s: float | None,
        traceparent: str,
    ) -> list[Answer | InvalidRequest]:
        """Answer 1 to 32 rows in one request; an invalid one is an error value."""
        state = self._calls
        call = state.begin(deadline_s, dry_run=dry_run, traceparent=traceparent)
        with call.span or _NOTHING:
            checked = state.check_all(given)
            valid = valid_rows(checked)
            outcomes = (
                self._run(RequestAttempts(state, valid, call=call)) if valid else []
            )
            answered = state.in_order(checked, outcomes, call)
            state.report(given, answered, call)
            return answered

    def _run(
        self, attempts: RequestAttempts[Given, Row, Answer]
    ) -> list[Answer | InvalidRequest]:
        while attempt := attempts.next():
            try:
                response = attempt.call()
            except grpc.RpcError as error:
                attempts.failed(attempt, error)
            else:
                attempts.answered(attempt, response)
        return attempts.outcomes()

    def close(self) -> None:
        """Cancel the requests in flight and close the connections."""
        for address in self.addresses:
            address.channel.close()

    def __enter__(self: _Client) -> _Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

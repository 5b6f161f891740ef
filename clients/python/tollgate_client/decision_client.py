"""Request decisions; every call returns a decision."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext

import grpc

from tollgate_client.addresses import Address, opener, wait_connected
from tollgate_client.attempts import ClientState, RequestAttempts, valid_rows
from tollgate_client.decisions import Decision, Outcome
from tollgate_client.errors import InvalidRequest
from tollgate_client.fallback import Fallback
from tollgate_client.options import DEFAULTS, Options
from tollgate_client.telemetry import Counters

_NOTHING = nullcontext()


class DecisionClient:
    """
    Call the servers of one product; threads may share the client.

        rule = Fallback(bands=(Band(below=50, decision="approve"),), otherwise="review")
        with DecisionClient(["fraud-0:8001", "fraud-1:8001"], fallback=rule) as client:
            answer = client.decide(purchase)

    A server failure never raises an error: `decide` returns within its deadline, with
    the stored decision for the same purchase, or else by the rule. An invalid purchase
    always raises one. A process that forks creates its client after the fork.

    Args:
        addresses: host:port of each server, called in turn; or one name that resolves
            to many servers, such as dns:///fraud.payments.svc:8001.
        fallback: Rule that decides when no server responds.

    Raises:
        InputError: Addresses, rule or options do not fit together.
    """

    def __init__(
        self,
        addresses: str | Sequence[str],
        *,
        fallback: Fallback,
        options: Options = DEFAULTS,
    ) -> None:
        self._state = ClientState(
            addresses,
            opener(options, grpc),
            fallback=fallback,
            options=options,
            clock=time.monotonic,
        )

    @property
    def counters(self) -> Counters:
        """Return the client's counters; `register` exports them."""
        return self._state.counters

    @property
    def addresses(self) -> Sequence[Address]:
        """Return the addresses with the state of each one's circuit breaker."""
        return self._state.ring.addresses

    def wait_ready(self, timeout_s: float) -> None:
        """
        Wait for connections, so that the first decisions need not open them.

        Raises:
            Unavailable: An address has no connection in time. The client can decide
                nevertheless.
        """
        wait_connected(self.addresses, timeout_s)

    def decide(
        self,
        purchase: Mapping[str, object],
        *,
        dry_run: bool = False,
        deadline_s: float | None = None,
        traceparent: str = "",
    ) -> Decision:
        """
        Decide one purchase.

        Args:
            purchase: Input -> value; see `encode_purchase`.
            dry_run: Decide without writing anything.
            deadline_s: Seconds left for the decision; the client's own if None.
            traceparent: W3C trace context to pass on.

        Raises:
            InvalidRequest: The purchase is invalid, or another purchase has used its
                id.
        """
        (outcome,) = self.decide_rows(
            [purchase], dry_run=dry_run, deadline_s=deadline_s, traceparent=traceparent
        )
        if isinstance(outcome, InvalidRequest):
            raise outcome
        return outcome

    def decide_rows(
        self,
        purchases: Sequence[Mapping[str, object]],
        *,
        dry_run: bool = False,
        deadline_s: float | None = None,
        traceparent: str = "",
    ) -> list[Outcome]:
        """
        Decide 1 to 32 purchases in one request.

        Returns:
            A Decision for each purchase, in the order given; an InvalidRequest in the
            position of an invalid one.

        Raises:
            InvalidRequest: There are no purchases, or more than 32.
        """
        state = self._state
        call = state.begin(deadline_s, dry_run=dry_run, traceparent=traceparent)
        with call.span or _NOTHING:
            checked = state.check_all(purchases)
            valid = valid_rows(checked)
            outcomes = (
                self._run(RequestAttempts(state, valid, call=call)) if valid else []
            )
            answered = state.in_order(checked, outcomes, call)
            if call.span is not None:
                call.span.report(purchases, answered)
            return answered

    def _run(self, attempts: RequestAttempts) -> list[Outcome]:
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

    def __enter__(self) -> DecisionClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

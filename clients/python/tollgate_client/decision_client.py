"""Request decisions; every call returns a decision."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext

import grpc

from tollgate.errors import InvalidRequest
from tollgate_client.addresses import Address
from tollgate_client.asker import Asker, good_ones
from tollgate_client.asking import Ask
from tollgate_client.channel import opener, wait_connected
from tollgate_client.counters import Counters
from tollgate_client.decision import Decision, Outcome
from tollgate_client.fallback import Fallback
from tollgate_client.options import DEFAULTS, Options

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
        options: All other options.

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
        self._asker = Asker(
            addresses,
            opener(options, grpc),
            fallback=fallback,
            options=options,
            clock=time.monotonic,
        )

    @property
    def counters(self) -> Counters:
        """Return the client's counters; `register` exports them."""
        return self._asker.counters

    @property
    def addresses(self) -> Sequence[Address]:
        """Return the addresses with the state of each one's circuit breaker."""
        return self._asker.ring.addresses

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
            purchase: Input -> value; see `tollgate_client.purchase.encode`.
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
        asker = self._asker
        call = asker.begin(deadline_s, dry_run=dry_run, traceparent=traceparent)
        with call.span or _NOTHING:
            checked = asker.check_all(purchases)
            good = good_ones(checked)
            outcomes = self._ask(Ask(asker, good, call=call)) if good else []
            answered = asker.put_back(checked, outcomes, call)
            if call.span is not None:
                call.span.report(purchases, answered)
            return answered

    def _ask(self, ask: Ask) -> list[Outcome]:
        while attempt := ask.next():
            try:
                response = attempt.call()
            except grpc.RpcError as error:
                ask.failed(attempt, error)
            else:
                ask.answered(attempt, response)
        return ask.outcomes()

    def close(self) -> None:
        """Cancel the requests in flight and close the connections."""
        for address in self.addresses:
            address.channel.close()

    def __enter__(self) -> DecisionClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

"""Request decisions; every call returns a decision."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import grpc

from tollgate_client.addresses import opener
from tollgate_client.attempts import ClientState
from tollgate_client.blocking_client import BlockingClient
from tollgate_client.contract import AMOUNT, TRANSACTION_ID
from tollgate_client.decisions import Decision, Outcome, outcomes_of
from tollgate_client.errors import ClientError, InputError, InvalidRequest
from tollgate_client.fallback import DecisionCache, Fallback
from tollgate_client.inputs import Purchase, encode_purchase
from tollgate_client.options import DEFAULTS, Options
from tollgate_client.wire import Request, decisions_of, request_of


class DecisionState(ClientState[Mapping[str, object], Purchase, Decision]):
    """
    Hold a client's cache of decisions and its rule; threads may share it.

    Args:
        addresses, connect, options, clock: See `ClientState`.
        fallback: Rule that decides when no server responds.

    Raises:
        InputError: The arguments do not fit together.
    """

    def __init__(
        self,
        addresses: str | Sequence[str],
        connect: Callable[[str], tuple[Any, Any]],
        *,
        fallback: Fallback,
        options: Options,
        clock: Callable[[], float],
    ) -> None:
        if fallback.bands and options.inputs.get(AMOUNT) != "FP64":
            raise InputError("fallback", f"bands need an input {AMOUNT} of type FP64")
        super().__init__(
            addresses, connect, options=options, clock=clock, verb="decide"
        )
        self.cache = DecisionCache(
            options.remembered, age_s=options.remember_s, clock=clock
        )
        self.fallback = fallback

    def encode(self, given: Mapping[str, object]) -> Purchase:
        """Check a purchase and encode it; see `encode_purchase`."""
        return encode_purchase(
            given, inputs=self.options.inputs, fields=self.options.fields
        )

    def request(self, rows: Sequence[Purchase], *, dry_run: bool) -> Request:
        """Encode purchases as one request."""
        return request_of(
            rows, product=self.options.product, kinds=self.kinds, dry_run=dry_run
        )

    def answers(
        self, response: bytes, rows: Sequence[Purchase]
    ) -> list[Decision | ClientError]:
        """Decode a response; see `outcomes_of`."""
        answer = decisions_of(response, latency_s=0.0)
        return outcomes_of(answer, rows=len(rows), words=self.fallback.outcomes)

    def without_server(self, row: Purchase, *, why: str, dry_run: bool) -> Decision:
        """Decide a row that no server decided: from the cache, or by the rule."""
        known = None if dry_run else self.cache.recall(row)
        if known is not None:
            return replace(known, source="cached", why=why)
        decision = self.fallback.decide(row.amount)
        return Decision(decision=decision, source="fallback", why=why)

    def remember(self, row: Purchase, answer: Decision) -> None:
        """Store a server's decision for `cached`."""
        self.cache.remember(row, answer)

    def finish(self, answer: Decision, *, latency_s: float) -> Decision:
        """Count a decision, and copy it with its latency."""
        self.counters.add("decisions", answer.source)
        self.counters.add("outcomes", answer.decision)
        return answer.with_latency(latency_s)

    def describe(
        self, given: Mapping[str, object], outcome: Outcome
    ) -> dict[str, str | int]:
        """Describe a purchase's outcome: no score, customer or amount."""
        name = given.get(TRANSACTION_ID, "")
        text = name.decode(errors="replace") if isinstance(name, bytes) else str(name)
        found: dict[str, str | int] = {"tollgate.transaction_id": text}
        if isinstance(outcome, InvalidRequest):
            return found | {"tollgate.refused": True}
        return found | {
            "tollgate.decision": outcome.decision,
            "tollgate.source": outcome.source,
            "tollgate.degraded": outcome.degraded,
            "tollgate.release": outcome.release,
        }


class DecisionClient(BlockingClient[Mapping[str, object], Purchase, Decision]):
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
        state = DecisionState(
            addresses,
            opener(options, grpc),
            fallback=fallback,
            options=options,
            clock=time.monotonic,
        )
        super().__init__(state)

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
        return self._answer_rows(
            purchases, dry_run=dry_run, deadline_s=deadline_s, traceparent=traceparent
        )

"""
Plan the attempts of one request: which address, how long, and what its end means.

Shared by the blocking and the asyncio client; nothing in this module waits. A client
takes one attempt after another from an `Ask`, makes the call in its own way, and
reports to the `Ask` how the call ended. Finally the `Ask` gives an outcome for every
row, whatever happened.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import grpc
import msgspec
from tritonclient.grpc import service_pb2

from tollgate.errors import (
    ClientError,
    DeadlineExceeded,
    InvalidRequest,
    Overloaded,
)
from tollgate_client.addresses import Address
from tollgate_client.asker import Asker, Call
from tollgate_client.codec import decisions_of, request_of, set_deadline
from tollgate_client.decision import Decision, Outcome, outcomes_of, refusal
from tollgate_client.errors import client_error, row_errors
from tollgate_client.purchase import Purchase
from tollgate_client.retry import WORTH_IT, WORTH_IT_THERE

# gRPC reports a passed deadline 1 to 3 ms after it passed (grpcio 1.85).
_WAY_BACK_S = 0.002


class Attempt(msgspec.Struct, frozen=True, eq=False):
    """
    Describe one gRPC call to make.

    Attributes:
        address: Address to call.
        request: Request to send.
        timeout_s: Time that this attempt may take, seconds.
        metadata: Trace context and token.
        compression: Compression that gRPC applies; None for none.
    """

    address: Address
    request: service_pb2.ModelInferRequest
    timeout_s: float
    metadata: tuple[tuple[str, str], ...]
    compression: grpc.Compression | None

    def call(self) -> Any:
        """
        Make the call and return the response, or the awaitable for it with asyncio.
        """
        return self.address.infer(
            self.request,
            timeout=self.timeout_s,
            metadata=self.metadata,
            compression=self.compression,
        )


class Ask:
    """
    Plan the attempts of one request and collect its outcomes.

    Args:
        asker: State of the client.
        purchases: 1 to 32 purchases.
        call: Deadline, trace context and mode of the call.
    """

    def __init__(
        self, asker: Asker, purchases: Sequence[Purchase], *, call: Call
    ) -> None:
        self._asker = asker
        self._purchases = purchases
        self._dry_run = call.dry_run
        self._deadline_at_s = call.deadline_at_s
        self._metadata = asker.metadata(call.traceparent)
        self._request: service_pb2.ModelInferRequest | None = None
        self._tried: list[Address] = []
        self._code: grpc.StatusCode | None = None  # how the last attempt ended
        self._why, self._after = "", ""
        self._rows: list[Outcome | ClientError] = []
        asker.budget.earn()

    def next(self) -> Attempt | None:
        """Return the next attempt; None when there is nothing more to try."""
        asker = self._asker
        if self._rows or len(self._tried) >= asker.options.retry.attempts:
            return None
        left_s = self._deadline_at_s - asker.clock()
        if not left_s > 0:
            self._gave_up("no time left to ask", after="late")
            return None
        address = self._pick()
        if address is None:
            return None
        self._tried.append(address)
        # Leave time to call another server, in case this one does not respond.
        if len(self._tried) < asker.options.retry.attempts and asker.ring.others(
            self._tried
        ):
            left_s *= asker.options.retry.first_part
        left_s -= min(_WAY_BACK_S, left_s / 10)
        if self._request is None:
            self._request = request_of(
                self._purchases,
                product=asker.options.product,
                kinds=asker.kinds,
                dry_run=self._dry_run,
            )
        set_deadline(self._request, left_s=left_s)
        return Attempt(
            address=address,
            request=self._request,
            timeout_s=left_s,
            metadata=self._metadata,
            compression=self._compression(self._request),
        )

    def _pick(self) -> Address | None:
        asker = self._asker
        if not self._tried:
            address = asker.ring.pick(())
            if address is None:
                self._gave_up("no server is asked: none answered of late", after="open")
            return address
        if self._code not in WORTH_IT:
            return None
        address = asker.ring.pick(self._tried)
        if address is None and self._code in WORTH_IT_THERE:
            address = asker.ring.pick(())
        if address is None or not asker.budget.spend():
            return None
        asker.counters.add("retries", self._after)
        return address

    def answered(
        self, attempt: Attempt, response: service_pb2.ModelInferResponse
    ) -> None:
        """Process the response to an attempt."""
        try:
            answer = decisions_of(response, latency_s=0.0)
            self._rows = outcomes_of(answer, rows=len(self._purchases))
        except ClientError as error:
            self._code = grpc.StatusCode.UNKNOWN
            self._note_failure(attempt, str(error), after="failed")
            return
        attempt.address.breaker.succeeded()
        self._asker.counters.add("calls", "answered")

    def failed(self, attempt: Attempt, error: grpc.RpcError) -> None:
        """Process the failure of an attempt."""
        self._code = error.code()
        where = f"{self._asker.options.product} at {attempt.address.name}"
        mapped = client_error(
            error, where=where, deadline_s=round(attempt.timeout_s, 3)
        )
        if isinstance(mapped, InvalidRequest):
            attempt.address.breaker.succeeded()
            self._asker.counters.add("calls", "refused")
            rows = len(self._purchases)
            words = row_errors(str(mapped), rows=rows) or [str(mapped)] * rows
            self._rows = [refusal(one) for one in words]
            return
        if isinstance(mapped, Overloaded):
            # The server is alive. Another one may have capacity; this one has none a
            # moment later.
            self._code = grpc.StatusCode.RESOURCE_EXHAUSTED
            attempt.address.breaker.succeeded()
            self._asker.counters.add("calls", "overloaded")
            self._why, self._after = str(mapped), "overloaded"
            return
        late = isinstance(mapped, DeadlineExceeded)
        self._note_failure(attempt, str(mapped), after="late" if late else "failed")

    def outcomes(self) -> list[Outcome]:
        """Return an outcome for every row; call it when `next` returns None."""
        asker = self._asker
        if not self._rows:
            asker.counters.add("fallbacks", self._after)
        found: list[Outcome] = []
        for place, purchase in enumerate(self._purchases):
            row = self._rows[place] if self._rows else ClientError(self._why)
            if isinstance(row, Decision):
                if not self._dry_run:
                    asker.memory.remember(purchase, row)
            elif not isinstance(row, InvalidRequest):
                row = asker.without_server(
                    purchase, why=str(row), dry_run=self._dry_run
                )
            found.append(row)
        return found

    def _note_failure(self, attempt: Attempt, why: str, *, after: str) -> None:
        asker = self._asker
        fair = attempt.timeout_s >= asker.options.breaker.fair_s
        if fair or after != "late":
            attempt.address.breaker.failed()
        asker.counters.add("calls", after)
        self._why, self._after = why, after

    def _gave_up(self, why: str, *, after: str) -> None:
        # The error of an earlier attempt explains more than the lack of a later one.
        if not self._why:
            self._why, self._after = why, after

    def _compression(
        self, request: service_pb2.ModelInferRequest
    ) -> grpc.Compression | None:
        above = self._asker.options.compress_above_bytes
        if above is None or request.ByteSize() <= above:
            return None
        return grpc.Compression.Gzip

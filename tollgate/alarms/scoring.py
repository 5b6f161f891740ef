"""
Have readings decided by a server: requests of up to 32 rows, several in flight.

The readings of one machine are decided in their order: each lane has machines of its
own, and sends a request only when the one before it was answered.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import msgspec

from tollgate.alarms.readings import ReadingCodec, Readings
from tollgate.errors import DecisionError
from tollgate.request_size import request_rows
from tollgate.schema import DEADLINE_US, Degraded

if TYPE_CHECKING:
    from tollgate_client import Tls

IN_FLIGHT = 4
TIMEOUT_S = 2.0
STORE_DEADLINE_MS = 1_000  # a reading can wait where a payment cannot

_WITHOUT_STORE = Degraded.STORE_UNAVAILABLE | Degraded.LAST_KNOWN_VECTOR
_TIME_RAN_OUT = f"{DEADLINE_US}:"


class ReadingAnswer(msgspec.Struct, frozen=True):
    """The answer to one reading; with an `error`, the other values mean nothing."""

    decision: str
    score: float
    reason_codes: tuple[str, ...]
    degraded: int
    error: str
    release: str

    @property
    def lacks_store(self) -> bool:
        """Return whether the store did not respond in time for it."""
        return bool(self.degraded & _WITHOUT_STORE)

    @property
    def lacks_hysteresis(self) -> bool:
        """Return whether the decision is that of the reading alone."""
        return bool(self.degraded & Degraded.HYSTERESIS_UNREAD)


class ServerScorer:
    """
    Request decisions from one server, or from those behind a name.

    Args:
        url: host:port, or a name that gRPC resolves, such as dns:///decide:8001.
        in_flight: Requests in flight at most, at least 1.
        timeout_s: Deadline of a request.
        token: API key; never sent without TLS to another machine.
    """

    def __init__(
        self,
        url: str,
        *,
        product: str,
        codec: ReadingCodec,
        in_flight: int = IN_FLIGHT,
        timeout_s: float = TIMEOUT_S,
        tls: Tls | None = None,
        token: str | Callable[[], str] | None = None,
    ) -> None:
        from tollgate_client import Client

        self._client = Client(
            url,
            product=product,
            inputs=codec.inputs,
            fields=codec.fields,
            timeout_s=timeout_s,
            store_deadline_ms=STORE_DEADLINE_MS,
            tls=tls,
            token=token,
        )
        self._in_flight = in_flight
        self._lanes = ThreadPoolExecutor(in_flight, thread_name_prefix="readings")

    def decide(
        self, readings: Readings, answers: MutableMapping[int, ReadingAnswer]
    ) -> None:
        """
        Decide the readings that have no answer yet; repeat it after an error.

        Args:
            answers: Gets the answer to each reading, by its row.

        Raises:
            DecisionError: Some readings have no answer; those that have one are in
                `answers`.
        """
        rows = [row for row in range(len(readings)) if row not in answers]
        calls: list[Future[None]] = [
            self._lanes.submit(self._decide_lane, readings, lane, answers)
            for lane in lanes_of(readings.machines, rows, lanes=self._in_flight)
        ]
        failures = [failure for one in calls if (failure := one.exception())]
        for failure in failures:
            raise failure

    def close(self) -> None:
        """Close the connection."""
        self._lanes.shutdown()
        self._client.close()

    def _decide_lane(
        self,
        readings: Readings,
        rows: Sequence[int],
        answers: MutableMapping[int, ReadingAnswer],
    ) -> None:
        from tollgate_client import ClientError

        columns: dict[str, Any] = {
            name: [column[row] for row in rows]
            for name, column in readings.columns.items()
        }
        done = 0
        try:
            size = request_rows([readings.machines[row] for row in rows])
            for part in self._client.decide_many(columns, batch_rows=size, in_flight=1):
                for place in range(len(part)):
                    error = str(part.error[place])
                    if error.startswith(_TIME_RAN_OUT):
                        raise DecisionError("the server had no time for a reading")
                    answers[rows[done]] = ReadingAnswer(
                        decision=str(part.decision[place]),
                        score=float(part.score[place]),
                        reason_codes=part.reason_codes[place],
                        degraded=int(part.degraded[place]),
                        error=error,
                        release=str(part.release[place]),
                    )
                    done += 1
        except ClientError as exc:
            # The message may name a reading's value.
            raise DecisionError(
                f"the server does not decide: {type(exc).__name__}"
            ) from exc


def lanes_of(
    machines: Sequence[str], rows: Sequence[int], *, lanes: int
) -> list[list[int]]:
    """
    Divide rows among lanes of about the same length, each machine's into one.

    Args:
        machines: Machine of each row.
        rows: Rows to divide, in their order.
        lanes: Lanes at most; those without a row are left out.
    """
    by_machine: dict[str, list[int]] = {}
    for row in rows:
        by_machine.setdefault(machines[row], []).append(row)
    found: list[list[int]] = [[] for _ in range(lanes)]
    # The machines with most rows first: the last ones even the lanes out.
    for own in sorted(by_machine.values(), key=len, reverse=True):
        min(found, key=len).extend(own)
    return [sorted(lane) for lane in found if lane]

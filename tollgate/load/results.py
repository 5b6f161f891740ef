"""Record the result of each request, for every kind of sender."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum

import grpc
import msgspec
import numpy as np
import numpy.typing as npt
from tritonclient.grpc import service_pb2
from tritonclient.utils import deserialize_bytes_tensor

from tollgate.errors import InputError
from tollgate.load.arrivals import F64
from tollgate.schema import DEFAULT_OUTCOMES, Degraded

METHOD = "/inference.GRPCInferenceService/ModelInfer"
ANSWERED = "answered"
NO_ANSWER = "no answer in time"
_STATUS = {code.value[0]: code.name for code in grpc.StatusCode}
_FAULTS = ~int(Degraded.COLD_START)  # a first purchase is no fault

# One row for each request, in the order in which they were due.
CALL = np.dtype(
    [
        ("due_us", "<i8"),  # from the beginning of the run
        ("late_us", "<i4"),  # delay until its last byte was sent; -1: it was not sent
        ("took_us", "<i4"),  # from when it was due to its answer, or until given up
        ("kind", "u1"),  # index in Results.kinds
        ("rows", "u1"),
        ("decided", "u1"),  # rows with a decision
        ("refused", "u1"),  # rows with an error instead
        ("degraded", "u1"),  # rows with a degraded bit other than COLD_START
        ("reviewed", "u1"),  # of products with the default words; else 0
        ("declined", "u1"),
        ("poisoned", "u1"),  # rows that break a rule of the contract
        ("attempts", "u1"),  # number of times that it was sent
        ("bits", "<u2"),  # degraded bits of all its rows
    ]
)


class How(IntEnum):
    """The way a call ended; `enum how` of paced.c."""

    ENDED = 0
    TIMED_OUT = 1
    CONNECTION_LOST = 2
    NO_CONNECTION = 3


# Elements of a BYTES tensor: each has its length in front.
_NO_WORD = bytes(4)
_WORDS_SENT = tuple(
    len(word).to_bytes(4, "little") + word.encode() for word in DEFAULT_OUTCOMES.words
)
_WORDS = {
    How.TIMED_OUT: NO_ANSWER,
    How.CONNECTION_LOST: "connection lost",
    How.NO_CONNECTION: "no connection",
}


class Ended(msgspec.Struct, frozen=True):
    """
    Result of one call.

    Attributes:
        number: Index in the order in which calls were due.
        sent_ns: Time at which its last byte was sent, from the beginning; -1: never.
        how: The way it ended.
        status: gRPC status; -1: none came.
        words: Message of the status.
        answer: The response message; empty unless the status is 0.
        attempts: Number of times that it was sent.
    """

    number: int
    sent_ns: int
    ended_ns: int
    how: int
    status: int
    words: str
    answer: bytes
    attempts: int = 1


class Results(msgspec.Struct, frozen=True, eq=False):
    """
    Results of N requests, in the order in which they were due.

    Attributes:
        calls: CALL [N].
        kinds: Names of the ways in which calls ended: ANSWERED first.
        examples: Kind -> message of the first call of that kind.
        begin_s: Beginning of the run, on time.perf_counter.
        sender_cpu_s: Processor time of the sender; 0 where it was not measured.
    """

    calls: npt.NDArray[np.void]
    kinds: tuple[str, ...]
    examples: dict[str, str]
    begin_s: float = 0.0
    sender_cpu_s: float = 0.0

    @property
    def at_s(self) -> F64:
        """Return when each was due, s from the beginning; float64 [N]."""
        return np.asarray(self.calls["due_us"] / 1e6)

    @property
    def due_s(self) -> F64:
        """Return when each was due, on time.perf_counter; float64 [N]."""
        return self.begin_s + self.at_s

    @property
    def sent_s(self) -> F64:
        """Return when each was sent, on time.perf_counter; float64 [N]."""
        return self.due_s + np.maximum(self.calls["late_us"], 0) / 1e6

    @property
    def latency_s(self) -> F64:
        """
        Return the time from when each was due to its end, so that a late sender hides
        no latency; float64 [N].
        """
        return np.asarray(self.calls["took_us"] / 1e6)

    @property
    def degraded(self) -> npt.NDArray[np.uint32]:
        """Return the degraded bits of its rows, COLD_START left out; uint32 [N]."""
        return self.calls["bits"].astype(np.uint32)

    @property
    def responded(self) -> npt.NDArray[np.bool_]:
        """Return whether each has a response, with whatever rows; bool [N]."""
        return np.asarray(self.calls["kind"] == 0)

    @property
    def answered(self) -> npt.NDArray[np.bool_]:
        """Return whether each has a decision for each of its rows; bool [N]."""
        whole = self.calls["decided"] == self.calls["rows"]
        return np.asarray(self.responded & whole)

    def later(self, first: int) -> Results:
        """Return the results without the first requests."""
        return msgspec.structs.replace(self, calls=self.calls[first:])


def collect_results(
    ended: Iterable[Ended],
    *,
    at_s: F64,
    rows: int,
    poisoned: npt.NDArray[np.uint8] | None = None,
    begin_s: float = 0.0,
    sender_cpu_s: float = 0.0,
) -> Results:
    """
    Collect the results of N requests.

    Args:
        ended: Result of each, in any order.
        at_s: Time at which each was due, s from the beginning; float64 [N].
        poisoned: Rows of each that break a rule; uint8 [N]; None for none.
        begin_s: Beginning of the run, on time.perf_counter.
        sender_cpu_s: Processor time of the sender, s.

    Raises:
        InputError: An answer is not a response of a product.
    """
    calls = np.zeros(len(at_s), CALL)
    due_us = np.rint(at_s * 1e6).astype(np.int64)
    calls["due_us"] = due_us
    calls["rows"] = rows
    bad = np.zeros(len(at_s), np.uint8) if poisoned is None else poisoned
    calls["poisoned"] = bad
    kinds, examples = {ANSWERED: 0}, {}
    for one in ended:
        kind = _kind(one)
        if kind not in kinds:
            kinds[kind] = len(kinds)
            examples[kind] = one.words
        due = int(due_us[one.number])
        late_us = -1 if one.sent_ns < 0 else max(0, one.sent_ns // 1000 - due)
        took_us = max(0, one.ended_ns // 1000 - due)
        counts = count_rows(one.answer) if kind == ANSWERED else (0, 0, 0, 0, 0, 0)
        decided, refused, degraded, reviewed, declined, bits = counts
        calls[one.number] = (
            *(due, late_us, took_us, kinds[kind], rows, decided, refused),
            *(degraded, reviewed, declined, bad[one.number]),
            *(one.attempts, bits),
        )
    return Results(
        calls,
        kinds=tuple(kinds),
        examples=examples,
        begin_s=begin_s,
        sender_cpu_s=sender_cpu_s,
    )


def _kind(one: Ended) -> str:
    if one.how != How.ENDED:
        return _WORDS[How(one.how)]
    if one.status < 0:
        return "closed without a status"
    return _STATUS.get(one.status, f"status {one.status}") if one.status else ANSWERED


def fault_bits(bits: int) -> int:
    """Drop the degraded bits that are no fault."""
    return int(bits) & _FAULTS


def count_rows(answer: bytes) -> tuple[int, int, int, int, int, int]:
    """Count the rows of an answer; CALL names the columns."""
    response = service_pb2.ModelInferResponse.FromString(answer)
    names = [output.name for output in response.outputs]
    raw = dict(zip(names, response.raw_output_contents, strict=True))
    try:
        bits = [fault_bits(word) for word in np.frombuffer(raw["degraded"], "<u4")]
        if "items" in raw:  # of a product that ranks
            errors = deserialize_bytes_tensor(raw["error"])
            words, refused = b"", sum(1 for text in errors if text)
        else:
            # Each word follows its length in four bytes. A row with an error has no
            # word, and only then are four bytes in a row zero: a word has 1 to 32
            # bytes, none of them 0.
            words = raw["decision"]
            refused = words.count(_NO_WORD)
    except KeyError as error:
        raise InputError("answer", f"lacks {error}; it has {', '.join(names)}") from (
            error
        )
    _, reviewed, declined = map(words.count, _WORDS_SENT)
    union = 0
    for one in bits:
        union |= one
    degraded = sum(1 for one in bits if one)
    return len(bits) - refused, refused, degraded, reviewed, declined, union

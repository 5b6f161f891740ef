"""Read the answers that vary.c recorded, and count their decisions and errors."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
from tritonclient.grpc import service_pb2

from tollgate.errors import InputError
from tollgate.load.bodies import unframe
from tollgate.schema import Degraded
from tollgate_client.wire import texts_of

_RECORD = struct.Struct("<QQiIII")  # struct record of vary.c
_COUNTS = struct.Struct("<QQ")
_DATA, _CLOSE, _STATUS, _MESSAGE, _SENT = range(5)


class Answer(msgspec.Struct, frozen=True):
    """
    Result of one request.

    Attributes:
        ended_us: Time at which its stream was closed; microseconds since 1970.
        body: The gRPC body; empty when it failed.
        failure: Reason of the failure; empty without one.
    """

    ended_us: int
    body: bytes
    failure: str


class RecordedAnswers(msgspec.Struct, frozen=True):
    """
    Records of vary.c.

    Attributes:
        answers: Requests in the order of their end.
        offered: Number of bodies sent, including unanswered ones.
        continued: Number of times flow control cut a body, so that its rest may have
            come from another one.
    """

    answers: list[Answer]
    offered: int
    continued: int


class Tally(msgspec.Struct, frozen=True):
    """
    Counts of the answers of one run.

    Attributes:
        requests: Answered requests.
        rows: Rows decided in these.
        refused_rows: Rows answered with an error instead of a decision.
        degraded_rows: Rows with any degraded bit.
        degraded: Degraded rows by bit.
        failures: Requests without an answer, by reason.
    """

    requests: int
    rows: int
    refused_rows: int
    degraded_rows: int
    degraded: dict[str, int]
    failures: dict[str, int]


def read_answers(path: Path) -> RecordedAnswers:
    """
    Read the file that vary.c wrote.

    Raises:
        InputError: The file is truncated: h2load was killed.
    """
    content = path.read_bytes()
    bodies: dict[tuple[int, int], bytearray] = {}
    words: dict[tuple[int, int], dict[int, bytes]] = {}
    answers: list[Answer] = []
    at = 0
    while at + _RECORD.size <= len(content):
        time_us, session, stream, kind, length, code = _RECORD.unpack_from(content, at)
        at += _RECORD.size
        value = content[at : at + length]
        at += length
        key = (session, stream)
        if kind == _DATA:
            bodies.setdefault(key, bytearray()).extend(value)
        elif kind in (_STATUS, _MESSAGE):
            words.setdefault(key, {})[kind] = value
        elif kind == _CLOSE:
            body = bytes(bodies.pop(key, b""))
            failure = _failure(words.pop(key, {}), code=code)
            answers.append(Answer(ended_us=time_us, body=body, failure=failure))
        elif kind == _SENT:
            offered, continued = _COUNTS.unpack(value)
            return RecordedAnswers(
                answers=answers, offered=offered, continued=continued
            )
    raise InputError(path, "is cut: h2load did not end by itself")


def _failure(words: dict[int, bytes], *, code: int) -> str:
    """Return the reason of a failed request; empty without a failure."""
    status = words.get(_STATUS, b"").decode(errors="replace")
    if code == 0 and status == "0":
        return ""
    if not status:
        return f"closed without a gRPC status, HTTP/2 error {code}"
    text = words.get(_MESSAGE, b"").decode(errors="replace")
    return f"gRPC status {status}: {text}"


def tally(answers: Iterable[Answer]) -> Tally:
    """
    Count decisions, errors and degraded bits of answers.

    Raises:
        InputError: An answer is not a response of a product.
    """
    failures: Counter[str] = Counter()
    degraded: Counter[str] = Counter()
    requests = rows = refused_rows = degraded_rows = 0
    for answer in answers:
        if answer.failure:
            failures[answer.failure] += 1
            continue
        bits, errors = _read(answer.body)
        requests += 1
        refused_rows += errors
        rows += len(bits) - errors
        degraded_rows += int((bits != 0).sum())
        if bits.any():
            for bit in Degraded:
                degraded[str(bit.name)] += int(((bits & bit) != 0).sum())
    return Tally(
        requests=requests,
        rows=rows,
        refused_rows=refused_rows,
        degraded_rows=degraded_rows,
        degraded=dict(+degraded),
        failures=dict(failures),
    )


def _read(body: bytes) -> tuple[npt.NDArray[np.uint32], int]:
    """Return the degraded bits of an answer's rows, and how many have an error."""
    response = service_pb2.ModelInferResponse.FromString(unframe(body))
    names = [output.name for output in response.outputs]
    raw = dict(zip(names, response.raw_output_contents, strict=True))
    for name in ("degraded", "error"):
        if name not in raw:
            raise InputError("answer", f"lacks {name}; it has {', '.join(names)}")
    bits = np.frombuffer(raw["degraded"], "<u4")
    # Each text has a length of four bytes: a tensor of empty texts has only these.
    if len(raw["error"]) == 4 * len(bits):
        return bits, 0
    return bits, sum(1 for text in texts_of(raw["error"]) if text)

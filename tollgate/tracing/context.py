"""
Decide which requests are traced, and derive the ids of their spans.

Two steps of one request never exchange trace state: each derives the same numbers from
data that it has anyway. Source: https://www.w3.org/TR/trace-context/#traceparent-header
"""

from __future__ import annotations

import re
from hashlib import blake2b

import msgspec

TRACEPARENT = "traceparent"  # the header, and the request parameter that it becomes

_HEADER = re.compile(r"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
_SAMPLED = 1
_NO_TRACE, _NO_SPAN = "0" * 32, "0" * 16


class TraceContext(msgspec.Struct, frozen=True):
    """
    The trace that the spans of a request belong to.

    Attributes:
        trace_id: 32 hexadecimal digits.
        parent_id: The caller's span, 16 digits; empty if there is none.
    """

    trace_id: str
    parent_id: str = ""


def read_traceparent(header: str) -> tuple[TraceContext, bool] | None:
    """
    Parse a caller's header.

    Returns:
        The caller's trace, and whether the caller records it; None if the header is not
        valid.
    """
    found = _HEADER.fullmatch(header)
    if found is None or found[1] == _NO_TRACE or found[2] == _NO_SPAN:
        return None
    return TraceContext(found[1], found[2]), bool(int(found[3], 16) & _SAMPLED)


def sample(transaction_id: bytes, *, rate: int) -> TraceContext | None:
    """
    Decide whether to trace a request without trace context, by its first id.

    Args:
        transaction_id: Transaction id of its first row.
        rate: One in so many requests is traced; 0 traces none.

    Returns:
        The new trace, always the same for one id; None if the request is not traced.
    """
    if not rate:
        return None
    digest = blake2b(transaction_id, digest_size=16, person=b"tollgate trace")
    if int.from_bytes(digest.digest()[:8], "big") % rate:
        return None
    return TraceContext(digest.hexdigest())


def span_id(context: TraceContext, *names: object) -> str:
    """Compute the id of a span: 16 digits, the same for the same names."""
    text = "/".join([context.trace_id, context.parent_id, *map(str, names)])
    return blake2b(text.encode(), digest_size=8).hexdigest()

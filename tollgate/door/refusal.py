"""Refuse a request over HTTP: its status, and the reason in words."""

from __future__ import annotations

import http
from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from tollgate.errors import TollgateError

JSON, PROBLEM_JSON = "application/json", "application/problem+json"
NO_HEADERS: Mapping[str, str] = MappingProxyType({})


class RowError(msgspec.Struct, frozen=True):
    """
    Describe what is wrong with one row.

    Attributes:
        row: Index of the row in the request, from 0.
        field: Field that is wrong; empty when it is the row as a whole.
        message: `field: value: rule`, as in docs/contract.md.
    """

    row: int
    field: str
    message: str


class Refusal(TollgateError):
    """
    A request is refused; no row of it was decided.

    Args:
        status: HTTP status, 400 or above.
        problem: What is wrong, with the value, and what is allowed.
        rows: Rows that are wrong, if the request has rows.
        headers: More headers of the response, such as Retry-After.
    """

    def __init__(
        self,
        status: int,
        problem: str,
        *,
        rows: tuple[RowError, ...] = (),
        headers: Mapping[str, str] = NO_HEADERS,
    ) -> None:
        self.status = status
        self.problem = problem
        self.rows = rows
        self.headers = headers
        super().__init__(problem)


class _Problem(msgspec.Struct, frozen=True, omit_defaults=True):
    """Problem details, https://www.rfc-editor.org/rfc/rfc9457."""

    status: int
    title: str
    detail: str
    errors: tuple[RowError, ...] = ()


_encode = msgspec.json.Encoder().encode


def problem_body(refusal: Refusal) -> bytes:
    """Write a refusal as problem details, the form of all routes but /v2."""
    title = http.HTTPStatus(refusal.status).phrase
    return _encode(_Problem(refusal.status, title, refusal.problem, refusal.rows))


def inference_error_body(refusal: Refusal) -> bytes:
    """Write a refusal as KServe's inference protocol wants it: `{"error": text}`."""
    return _encode({"error": refusal.problem})

"""Represent one decision and its source: model, cache or fallback rule."""

from __future__ import annotations

import math
from typing import Literal

import msgspec

from tollgate.errors import ClientError, InvalidRequest
from tollgate.schema import DEADLINE_US
from tollgate.schema import Decision as Level
from tollgate_client.decisions import Decisions

Source = Literal["model", "cached", "fallback"]

WORDS = tuple(level.name.lower() for level in Level)  # approve, review, decline
_KNOWN = frozenset(WORDS)
# The only row error that is not the caller's fault: time ran out on the way.
_TIME_RAN_OUT = f"{DEADLINE_US}:"


class Decision(msgspec.Struct, frozen=True):
    """
    The decision for one purchase.

    Attributes:
        decision: `approve`, `review` or `decline`; always one of these.
        source: `model`: a server decided just now. `cached`: no server decided in time,
            and this is a server's stored decision for the same purchase. `fallback`:
            neither; the declared rule decided.
        score: P(fraud), 0 to 1; NaN for a fallback, or when the model returned none.
        reason_codes: Reason codes of the policy; none for a fallback.
        degraded: Bits of `tollgate.schema.Degraded`; 0 for a fallback.
        release: Release that decided; empty for a fallback.
        latency_s: Seconds from the call to the decision.
        why: Reason why no model decided just now; empty when one did.
    """

    decision: str
    source: Source
    score: float = math.nan
    reason_codes: tuple[str, ...] = ()
    degraded: int = 0
    release: str = ""
    latency_s: float = 0.0
    why: str = ""


# Outcome of a row: a decision, or the reason why the row can have none.
Outcome = Decision | InvalidRequest


def outcomes_of(answer: Decisions, *, rows: int) -> list[Outcome | ClientError]:
    """
    Split a response into the outcomes of its rows.

    Args:
        answer: Response as the codec decoded it.
        rows: Number of rows in the request.

    Returns:
        For each row a decision; an InvalidRequest when the row itself is invalid;
        another ClientError when the server had no time for it.

    Raises:
        ClientError: The number of rows differs, or a value is not a decision.
    """
    if len(answer) != rows:
        raise ClientError(f"{rows} rows were asked and {len(answer)} are answered")
    return [
        _outcome(*row)
        for row in zip(
            answer.decision.tolist(),
            answer.score.tolist(),
            answer.reason_codes,
            answer.degraded.tolist(),
            answer.error.tolist(),
            answer.release.tolist(),
            strict=True,
        )
    ]


def refusal(error: str) -> ClientError:
    """
    Map a row's error: InvalidRequest for an invalid row, ClientError if time ran out.
    """
    if error.startswith(_TIME_RAN_OUT):
        return ClientError(error)
    return InvalidRequest(error)


def _outcome(
    decision: str,
    score: float,
    reason_codes: tuple[str, ...],
    degraded: int,
    error: str,
    release: str,
) -> Outcome | ClientError:
    if error:
        return refusal(error)
    if decision not in _KNOWN:
        raise ClientError(f"{decision!r} is none of {', '.join(WORDS)}")
    return Decision(
        decision=decision,
        source="model",
        score=score,
        reason_codes=reason_codes,
        degraded=degraded,
        release=release,
    )

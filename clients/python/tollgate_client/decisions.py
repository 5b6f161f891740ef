"""Represent decisions: of many rows as columns, or of one purchase with its source."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Literal

import numpy as np
import numpy.typing as npt

from tollgate_client.contract import OUTCOMES
from tollgate_client.errors import ClientError, InvalidRequest, refusal

Source = Literal["model", "cached", "fallback"]


# Many rows.


@dataclass(frozen=True, slots=True, eq=False)
class Decisions:
    """
    Decisions for N rows, in the order in which the rows were sent.

    Attributes:
        decision: The server's word, such as `approve`, `review` or `decline`; empty for
            a bad row; str [N].
        score: P(fraud), 0 to 1; NaN for a bad row, when the model gave nothing usable,
            and when a rule decided before the model; float32 [N].
        reason_codes: Reason codes of the policy for each row; may be empty.
        degraded: Bits of `Degraded`, 0 is full quality; uint32 [N].
        error: `field: value: rule`; empty for a valid row; str [N].
        release: Release that decided; str [N].
        latency_s: Seconds from sending the row's request to its response; float64 [N].
    """

    decision: npt.NDArray[np.str_]
    score: npt.NDArray[np.float32]
    reason_codes: list[tuple[str, ...]]
    degraded: npt.NDArray[np.uint32]
    error: npt.NDArray[np.str_]
    release: npt.NDArray[np.str_]
    latency_s: npt.NDArray[np.float64]

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.reason_codes)


def join(parts: Sequence[Decisions]) -> Decisions:
    """Concatenate the decisions of several requests; at least one part."""
    return Decisions(
        decision=np.concatenate([part.decision for part in parts]),
        score=np.concatenate([part.score for part in parts]),
        reason_codes=list(chain.from_iterable(part.reason_codes for part in parts)),
        degraded=np.concatenate([part.degraded for part in parts]),
        error=np.concatenate([part.error for part in parts]),
        release=np.concatenate([part.release for part in parts]),
        latency_s=np.concatenate([part.latency_s for part in parts]),
    )


def bad_rows(errors: Sequence[str], *, latency_s: float) -> Decisions:
    """Build the decisions of rows that were all refused, each with its error text."""
    rows = len(errors)
    return Decisions(
        decision=np.full(rows, "", dtype=np.str_),
        score=np.full(rows, np.nan, dtype=np.float32),
        reason_codes=[()] * rows,
        degraded=np.zeros(rows, dtype=np.uint32),
        error=np.asarray(errors, dtype=np.str_),
        release=np.full(rows, "", dtype=np.str_),
        latency_s=np.full(rows, latency_s),
    )


# One purchase.


@dataclass(frozen=True, slots=True)
class Decision:
    """
    The decision for one purchase.

    Attributes:
        decision: One of the product's words: `approve`, `review` or `decline`, unless
            the fallback rule names others; never empty.
        source: `model`: a server decided just now. `cached`: no server decided in time,
            and this is a server's stored decision for the same purchase. `fallback`:
            neither; the declared rule decided.
        score: P(fraud), 0 to 1; NaN for a fallback, when the model returned none, or
            when a rule decided before it.
        reason_codes: Reason codes of the policy; none for a fallback.
        degraded: Bits of `Degraded`; 0 for a fallback.
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

    def with_latency(self, latency_s: float) -> Decision:
        """Copy it with another latency; each row of a request needs its own."""
        return Decision(
            self.decision,
            self.source,
            self.score,
            self.reason_codes,
            self.degraded,
            self.release,
            latency_s,
            self.why,
        )


# Outcome of a row: a decision, or the reason why the row can have none.
Outcome = Decision | InvalidRequest


def outcomes_of(
    answer: Decisions, *, rows: int, words: Sequence[str] = OUTCOMES
) -> list[Outcome | ClientError]:
    """
    Split a response into the outcomes of its rows.

    Args:
        answer: Response as the codec decoded it.
        rows: Number of rows that were sent.
        words: Words that a decision may have.

    Returns:
        For each row a decision; an InvalidRequest when the row itself is invalid;
        another ClientError when the server had no time for it.

    Raises:
        ClientError: The number of rows differs, or a value is not a decision.
    """
    if len(answer) != rows:
        raise ClientError(f"{rows} rows were asked and {len(answer)} are answered")
    return [
        _outcome(*row, words=words)
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


def _outcome(
    decision: str,
    score: float,
    reason_codes: tuple[str, ...],
    degraded: int,
    error: str,
    release: str,
    *,
    words: Sequence[str],
) -> Outcome | ClientError:
    if error:
        return refusal(error)
    if decision not in words:
        raise ClientError(f"{decision!r} is none of {', '.join(words)}")
    return Decision(
        decision=decision,
        source="model",
        score=score,
        reason_codes=reason_codes,
        degraded=degraded,
        release=release,
    )

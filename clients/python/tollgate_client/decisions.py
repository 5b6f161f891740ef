"""Hold the responses to many rows as columns."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import msgspec
import numpy as np
import numpy.typing as npt


class Decisions(msgspec.Struct, frozen=True, eq=False):
    """
    Decisions for N rows, in the order in which the rows were sent.

    Attributes:
        decision: `approve`, `review` or `decline`; empty for a bad row; str [N].
        score: P(fraud), 0 to 1; NaN for a bad row; float32 [N].
        reason_codes: Reason codes of the policy for each row; may be empty.
        degraded: Bits of `tollgate.schema.Degraded`, 0 is full quality; uint32 [N].
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

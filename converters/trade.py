"""Compare a smaller model with the original, and check that the loss is allowed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy.typing as npt

from converters.model import F32
from tollgate.errors import TradeError
from tollgate.repository.trade import (
    ALLOWED_AP_LOSS,
    ALLOWED_AUC_LOSS,
    ALLOWED_FLIPS,
    Figures,
    Gate,
    Trade,
)

__all__ = [
    "ALLOWED_AP_LOSS",
    "ALLOWED_AUC_LOSS",
    "ALLOWED_FLIPS",
    "Figures",
    "Gate",
    "Judge",
    "Trade",
    "require",
]


class Judge(msgspec.Struct, frozen=True, eq=False):
    """
    Rows for comparing two models; both predict all of them.

    Attributes:
        rows: float32 [N, F], at least one.
        label: 1 for fraud, 0 otherwise; [N]; None if labels are unknown.
        thresholds: Scores at which a decision changes, `score >= threshold`.
    """

    rows: F32
    label: npt.NDArray[Any] | None
    thresholds: Sequence[float]


def require(trade: Trade, gate: Gate) -> None:
    """Raise TradeError with the figures unless a trade loses no more than allowed."""
    problems = gate.problems(trade)
    if problems:
        raise TradeError(
            f"{trade.kind} ({trade.detail}) costs too much: {'; '.join(problems)}"
        )

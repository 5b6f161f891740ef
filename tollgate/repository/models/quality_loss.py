"""Record the quality that a model lost when it was made smaller, and the limits."""

from __future__ import annotations

import math

import msgspec

ALLOWED_FLIPS = 0.001  # share of the rows
ALLOWED_AUC_LOSS = 0.001
ALLOWED_AP_LOSS = 0.005  # the rarer frauds are, the more this says than the AUC


class Figures(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """
    The measured figures of one model.

    Attributes:
        auc: Area under the ROC curve; None without labels or with more classes than 2.
        average_precision: Average precision; None in the same cases as `auc`.
        us_per_row: Rows of a batch -> fastest time per row, µs, on one thread.
        size_bytes: Size of the graph.
    """

    auc: float | None
    average_precision: float | None
    us_per_row: dict[int, float]
    size_bytes: int


class Trade(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """
    One model before and after it was made smaller.

    Attributes:
        kind: `prune`, `quantize` or `distill`.
        detail: Description of the change.
        rows: Number of rows on which both were judged.
        flips: Number of rows with another decision, sent alone or in batches of 32.
        max_delta: Largest |Δp| of a row in batches of 32; not finite if one of the two
            answers no probability, which no gate lets pass.
        before: Figures of the first.
        after: Figures of the second.
        flagged: Number of rows at or above the lowest threshold by the first model:
            most rows that can flip are among them, however many rows there are.
        batch_delta: Largest |Δp| of a row of the second alone and in a batch; if it is
            not 0, a score depends on the other rows and cannot be replayed alone.
    """

    kind: str
    detail: str
    rows: int
    flips: int
    max_delta: float
    before: Figures
    after: Figures
    flagged: int = 0
    batch_delta: float = 0.0


class Gate(msgspec.Struct, frozen=True):
    """
    Limits of the quality that a smaller model may lose.

    Attributes:
        flips: Share of the rows that may get another decision.
        auc_loss: Maximum decrease of the AUC.
        ap_loss: Maximum decrease of the average precision.
    """

    flips: float = ALLOWED_FLIPS
    auc_loss: float = ALLOWED_AUC_LOSS
    ap_loss: float = ALLOWED_AP_LOSS

    def problems(self, trade: Trade) -> list[str]:
        """List the figures of a trade that exceed a limit; empty if there are none."""
        found = []
        if not (math.isfinite(trade.max_delta) and math.isfinite(trade.batch_delta)):
            found.append("some answers are no probabilities: NaN, or not within 0 to 1")
        if trade.flips > self.flips * trade.rows:
            found.append(
                f"{trade.flips:,} of {trade.rows:,} decisions change, "
                f"{trade.flips / trade.rows:.2%} where {self.flips:.2%} may"
            )
        before, after = trade.before, trade.after
        for name, first, second, allowed in (
            ("AUC", before.auc, after.auc, self.auc_loss),
            (
                "average precision",
                before.average_precision,
                after.average_precision,
                self.ap_loss,
            ),
        ):
            if first is None or second is None or first - second <= allowed:
                continue
            found.append(
                f"the {name} falls from {first:.4f} to {second:.4f}, by "
                f"{first - second:.4f} where {allowed:g} may be lost"
            )
        return found

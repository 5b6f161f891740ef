"""Compare a smaller model with the original, and check that the loss is allowed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import numpy.typing as npt

from converters.model import F32, F64
from converters.parity.runner import onnx_runner
from tollgate.errors import ArgumentError, TradeError
from tollgate.evaluation import average_precision, roc_auc
from tollgate.repository.models.artifact_file import Figures, Gate, Trade
from tollgate.repository.models.speed import us_per_row
from tollgate.schema import MAX_BATCH_ROWS

if TYPE_CHECKING:
    from rich.table import Table


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


# Measure a model before and after it was made smaller, on the same rows.
#
# Both models are timed alternately within one run, so that other load on the machine
# affects both. Read the times as ratios.

ALONE_ROWS = 2048  # rows predicted one by one too, evenly spaced
TURNS = 3
TURN_S = 0.15


def weigh(
    before: bytes, after: bytes, *, kind: str, detail: str, judge: Judge
) -> Trade:
    """
    Measure a model before and after it was made smaller.

    Args:
        kind: `prune`, `quantize` or `distill`.

    Raises:
        InputError: There are no rows, or the labels have only one class.
        ConversionError: onnxruntime cannot load one of them.
        TradeError: The original model returns NaN for a row.
    """
    first, second = answers(before, judge), answers(after, judge)
    times = timed([before, after])
    return compared(
        (first, figures(before, first, us=times[0], judge=judge)),
        (second, figures(after, second, us=times[1], judge=judge)),
        kind=kind,
        detail=detail,
        judge=judge,
    )


class Answers(msgspec.Struct, frozen=True, eq=False):
    """
    A model's predictions for the rows; float64 [N, K] each.

    Attributes:
        batched: Predictions in batches of 32 rows.
        alone: Predictions row by row, for ALONE_ROWS of them.
    """

    batched: F64
    alone: F64


def answers(model: bytes, judge: Judge) -> Answers:
    """Predict the rows with a model, alone and in batches."""
    if not len(judge.rows):
        raise ArgumentError("sample", "holds no rows to judge a smaller model on")
    runner = onnx_runner(model)
    return Answers(
        batched=runner.batched(judge.rows, size=MAX_BATCH_ROWS).astype(np.float64),
        alone=runner.batched(judge.rows[_alone(judge)], size=1).astype(np.float64),
    )


def figures(
    model: bytes, found: Answers, *, us: dict[int, float], judge: Judge
) -> Figures:
    """Compute the figures of one model."""
    auc = precision = None
    if judge.label is not None and found.batched.shape[1] == 2:
        score = found.batched[:, 1]
        if not np.isfinite(score).all():
            raise TradeError(f"{(~np.isfinite(score)).sum()} rows get no probability")
        auc = roc_auc(judge.label, score)
        precision = average_precision(judge.label, score)
    return Figures(
        auc=auc, average_precision=precision, us_per_row=us, size_bytes=len(model)
    )


def compared(
    before: tuple[Answers, Figures],
    after: tuple[Answers, Figures],
    *,
    kind: str,
    detail: str,
    judge: Judge,
) -> Trade:
    """Compare two models' predictions and figures."""
    first, second = before[0].batched, after[0].batched
    alone, at = after[0].alone, _alone(judge)
    wanted = _decided(first, judge)
    flipped = (wanted != _decided(second, judge)).any(axis=(0, 2))
    flipped[at] |= (wanted[:, at] != _decided(alone, judge)).any(axis=(0, 2))
    return Trade(
        kind=kind,
        detail=detail,
        rows=len(judge.rows),
        flips=int(flipped.sum()),
        max_delta=_farthest(second, first),
        before=before[1],
        after=after[1],
        flagged=int(wanted.any(axis=(0, 2)).sum()),
        batch_delta=_farthest(second[at], alone),
    )


def timed(models: Sequence[bytes], *, turn_s: float = TURN_S) -> list[dict[int, float]]:
    """
    Time models alternately.

    Args:
        turn_s: Seconds per model in each of three rounds.

    Returns:
        For each model, rows of a batch -> the fastest µs per row.
    """
    fastest: list[dict[int, float]] = [{} for _ in models]
    for _ in range(TURNS):
        for found, model in zip(fastest, models, strict=True):
            for rows, us in us_per_row(model, measure_s=turn_s).items():
                found[rows] = min(us, found.get(rows, us))
    return fastest


def _decided(probabilities: F64, judge: Judge) -> npt.NDArray[np.bool_]:
    """Return on which side of each threshold scores are; bool [T, N, 1 or K]."""
    cut = np.asarray(judge.thresholds, dtype=np.float64)[:, None, None]
    first = 1 if probabilities.shape[1] == 2 else 0
    found: npt.NDArray[np.bool_] = probabilities[None, :, first:] >= cut
    return found


def _alone(judge: Judge) -> npt.NDArray[np.int64]:
    count = min(len(judge.rows), ALONE_ROWS)
    return np.linspace(0, len(judge.rows) - 1, count).astype(np.int64)


def _farthest(found: F64, other: F64) -> float:
    delta = np.abs(found - other)
    delta[~((found >= 0) & (found <= 1))] = np.inf
    return float(delta.max())


_NOT_ZERO = 1e-6  # float32 sums in other batches differ by less


def trade_table(trade: Trade) -> Table:
    """Build a table of one trade, with before and after in columns."""
    from rich.table import Table

    table = Table(title=f"{trade.kind}: {trade.detail}, judged on {trade.rows:,} rows")
    table.add_column("measure")
    for name in ("before", "after", "change"):
        table.add_column(name, justify="right")
    before, after = trade.before, trade.after
    for name, first, second in (
        ("AUC ROC", before.auc, after.auc),
        ("average precision", before.average_precision, after.average_precision),
    ):
        if first is None or second is None:
            table.add_row(name, "", "", "not stated: no labels of two classes")
            continue
        table.add_row(name, f"{first:.4f}", f"{second:.4f}", f"{second - first:+.4f}")
    for rows, us in before.us_per_row.items():
        now = after.us_per_row[rows]
        name = f"µs per row, batch {rows}"
        table.add_row(name, f"{us:.2f}", f"{now:.2f}", times(us, now))
    table.add_row(
        "bytes",
        f"{before.size_bytes:,}",
        f"{after.size_bytes:,}",
        times(before.size_bytes, after.size_bytes),
    )
    share = trade.flips / trade.rows
    table.add_row("rows at or above a threshold", f"{trade.flagged:,}", "", "")
    table.add_row("decisions that change", "", f"{trade.flips:,}", f"{share:.2%}")
    table.add_row("|Δp| max", "", f"{trade.max_delta:.3g}", "")
    if trade.batch_delta > _NOT_ZERO:
        table.add_row(
            "|Δp| alone and batched",
            "",
            f"{trade.batch_delta:.3g}",
            "a score depends on its batch",
        )
    return table


def times(before: float, after: float) -> str:
    """Format how many times smaller, or larger, something became."""
    if after <= before:
        return f"{before / after:.2f} times less"
    return f"{after / before:.2f} times more"

"""Print a trade on the terminal: before, after, and the ratio of both."""

from __future__ import annotations

from rich.table import Table

from converters.compression.compression_cost import Trade

_NOT_ZERO = 1e-6  # float32 sums in other batches differ by less


def trade_table(trade: Trade) -> Table:
    """Build a table of one trade, with before and after in columns."""
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

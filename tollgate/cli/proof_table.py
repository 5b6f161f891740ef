"""Format the parity proof of a converted model as a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.table import Table

if TYPE_CHECKING:
    from tollgate.repository.parity import ParityReport


def proof_table(reports: Sequence[ParityReport], *, title: str) -> Table:
    """Show the figures of every runtime side by side, and the rows that differ most."""
    verdict = "agrees" if all(one.passed for one in reports) else "DOES NOT AGREE"
    table = Table(title=f"{title}: {verdict} with its source")
    table.add_column("measure")
    for report in reports:
        table.add_column(report.runtime, justify="right")
    columns = [_figures(one) for one in reports]
    for name in columns[0]:
        table.add_row(name, *(column[name] for column in columns))
    for place in range(max(len(one.worst) for one in reports)):
        table.add_row(f"worst {place + 1}", *(_worst(one, place) for one in reports))
    return table


def _figures(report: ParityReport) -> dict[str, str]:
    """List every figure of one runtime."""
    alone = report.rows if report.alone is None else report.alone
    cuts = ", ".join(f"{one:g}" for one in report.thresholds)
    deltas = {
        "|Δp| max": report.max_delta,
        "|Δp| mean": report.mean_delta or 0.0,
        **{f"|Δp| at {level}": value for level, value in report.quantiles.items()},
        "alone, batched, shuffled": report.batch_delta,
        "tolerance allowed": report.tolerance,
        "tolerance that would pass": report.would_pass,
    }
    return {
        "rows": f"{report.rows:,}",
        **{f"  {kind}": f"{count:,}" for kind, count in report.kinds.items()},
        "of these asked alone too": f"{alone:,}",
        "rows the source refuses": f"{report.unanswered:,}",
        f"flips at {cuts}": f"{report.flips:,}",
        **{name: f"{value:.3g}" for name, value in deltas.items()},
    }


def _worst(report: ParityReport, place: int) -> str:
    """Format one of the rows that differ most."""
    if place >= len(report.worst):
        return ""
    one = report.worst[place]
    return (
        f"{one.kind} row {one.row}, class {one.label}\n"
        f"{one.source:.9g} → {one.converted:.9g}"
    )

"""
Join the rows of all pages into one table of metrics, the source of docs/metrics.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec

from tollgate.observability.row import MetricRow
from tollgate.observability.rows_autoscaler import AUTOSCALER
from tollgate.observability.rows_gateway import GATEWAY
from tollgate.observability.rows_monitor import MONITOR
from tollgate.observability.rows_others import CHALLENGER, JOURNAL, STREAM, SUPERVISOR
from tollgate.observability.rows_steps import STEPS, TRITON

Page = Literal[
    "triton", "supervisor", "journal", "stream", "challenger", "monitor", "gateway"
]

# Page -> the process that serves it, where, and the metrics on it.
PAGES: dict[Page, tuple[str, tuple[MetricRow, ...]]] = {
    "triton": ("Triton's metrics page (port 8002)", (*TRITON, *STEPS)),
    "supervisor": ("`/metrics` on the admin port (8003)", SUPERVISOR),
    "journal": ("The metrics port of `tollgate journal run`", JOURNAL),
    "stream": ("The metrics port of `tollgate stream`", STREAM),
    "challenger": ("The metrics port of `tollgate challenger run`", CHALLENGER),
    "monitor": ("The metrics port of `tollgate monitor`", MONITOR),
    "gateway": (
        "The metrics port of `tollgate gateway run` and `tollgate gateway metrics`",
        GATEWAY,
    ),
}
# No page has these, so Prometheus does not either: queries cannot use them.
CUSTOM = (
    "The custom metrics API: by prometheus-adapter, with the rules in "
    "[the chart's page](../helm/README.md#scaling), for its autoscaler",
    AUTOSCALER,
)


class Metric(msgspec.Struct, frozen=True):
    """
    One metric with its page.

    Attributes:
        page: Page that it is on.
        row: Its row of the table.
    """

    page: Page
    row: MetricRow


def metrics() -> Iterator[Metric]:
    """Yield every metric of every page."""
    for page, (_, rows) in PAGES.items():
        for row in rows:
            yield Metric(page, row)


def series_names() -> set[str]:
    """List the names of every series that a query can use."""
    return {name for one in metrics() for name in one.row.series}


def tables_text() -> str:
    """Write the tables of docs/metrics.md: one per page, and one of derived metrics."""
    every = (*PAGES.values(), CUSTOM)
    return "\n".join(_section(where, rows) for where, rows in every)


def _section(where: str, rows: Sequence[MetricRow]) -> str:
    lines = [
        f"## {where}",
        "",
        "| metric | kind | unit | labels | since | |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        labels = ", ".join(f"`{one}`" for one in row.labels)
        lines.append(
            f"| `{row.name}` | {row.kind} | {row.unit} | {labels} | {row.since} | "
            f"{row.text} |"
        )
    return "\n".join(lines) + "\n"

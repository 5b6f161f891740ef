"""Export metrics by the table in metrics.yaml, the source of docs/metrics.md."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    Family = CounterMetricFamily | GaugeMetricFamily

Kind = Literal["counter", "gauge", "histogram"]
Page = Literal[
    "triton",
    "ranking",
    "supervisor",
    "journal",
    "stream",
    "alarms",
    "webhook",
    "challenger",
    "monitor",
    "gateway",
    "door",
]


class MetricRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """
    One metric.

    Attributes:
        name: Name in queries; a histogram without _bucket, _sum and _count.
        kind: Prometheus type: counter, gauge, histogram.
        text: Its meaning.
        labels: Names of its labels, without `le`.
        since: First version of Tollgate that has it.
    """

    name: str
    kind: Kind
    text: str
    unit: str = ""
    labels: tuple[str, ...] = ()
    since: str = "0.1.0"

    @property
    def series(self) -> tuple[str, ...]:
        """Return the names of its series."""
        if self.kind == "histogram":
            return tuple(f"{self.name}_{part}" for part in ("bucket", "sum", "count"))
        return (self.name,)


class _PageMetrics(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    where: str
    metrics: tuple[MetricRow, ...]
    every_process: bool = False


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pages: dict[Page, _PageMetrics]
    every_process: tuple[MetricRow, ...]
    custom: _PageMetrics


_TABLE = msgspec.yaml.decode(
    (Path(__file__).parent / "metrics.yaml").read_bytes(), type=_Table
)

# Page -> the process that serves it, where, and the metrics on it.
PAGES: dict[Page, tuple[str, tuple[MetricRow, ...]]] = {
    page: (one.where, one.metrics + (_TABLE.every_process if one.every_process else ()))
    for page, one in _TABLE.pages.items()
}
# No page has these, so Prometheus does not either: queries cannot use them.
CUSTOM = (_TABLE.custom.where, _TABLE.custom.metrics)


class Metric(msgspec.Struct, frozen=True):
    """One metric with its page."""

    page: Page
    row: MetricRow


def metrics() -> Iterator[Metric]:
    """Yield every metric of every page."""
    for page, (_, rows) in PAGES.items():
        for row in rows:
            yield Metric(page, row)


ROWS = {one.row.name: one.row for one in metrics()}


def counter(name: str, registry: CollectorRegistry) -> Counter:
    """Make a counter of the table that a registry exports."""
    from prometheus_client import Counter

    row = ROWS[name]
    return Counter(name, row.text, row.labels, registry=registry)


def gauge(name: str, registry: CollectorRegistry) -> Gauge:
    """Make a gauge of the table that a registry exports."""
    from prometheus_client import Gauge

    row = ROWS[name]
    return Gauge(name, row.text, row.labels, registry=registry)


def histogram(
    name: str, registry: CollectorRegistry, *, buckets: Sequence[float]
) -> Histogram:
    """Make a histogram of the table that a registry exports."""
    from prometheus_client import Histogram

    row = ROWS[name]
    return Histogram(name, row.text, row.labels, registry=registry, buckets=buckets)


def family(name: str) -> Family:
    """Make a metric of the table without values, for a collector to fill."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    row = ROWS[name]
    kind = CounterMetricFamily if row.kind == "counter" else GaugeMetricFamily
    return kind(name, row.text, labels=row.labels)


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

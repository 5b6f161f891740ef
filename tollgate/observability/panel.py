"""Describe dashboards, rows, panels and queries, with the fields that we use."""

from __future__ import annotations

from typing import Literal

import msgspec

Kind = Literal["lines", "stack", "number", "heat"]


class Query(msgspec.Struct, frozen=True):
    """
    A query, and the legend of its lines.

    Attributes:
        expr: PromQL; Grafana fills in `$product` and `$__rate_interval`.
        legend: Name of a line, with labels as {{label}}.
        empty: Why a healthy server has no result for it; empty when it has one.
    """

    expr: str
    legend: str = ""
    empty: str = ""


class Panel(msgspec.Struct, frozen=True):
    """
    One panel.

    Attributes:
        title: Title of the panel.
        unit: Grafana's name of the unit.
        queries: Its queries.
        kind: Grafana's type of visualisation.
        text: Explanation for the reader.
    """

    title: str
    unit: str
    queries: tuple[Query, ...]
    kind: Kind = "lines"
    text: str = ""


class PanelRow(msgspec.Struct, frozen=True):
    """Panels under one heading."""

    title: str
    panels: tuple[Panel, ...]


class Board(msgspec.Struct, frozen=True):
    """
    A dashboard.

    Attributes:
        uid: Its id in links and file names.
        title: Its title.
        rows: Its rows of panels.
    """

    uid: str
    title: str
    rows: tuple[PanelRow, ...]

    @property
    def panels(self) -> tuple[Panel, ...]:
        """Return all panels, row after row."""
        return tuple(panel for row in self.rows for panel in row.panels)


def quantile(share: float, family: str, of: str, *, by: str = "") -> str:
    """
    Write a query for a quantile of a histogram.

    Args:
        share: 0 to 1.
        family: Name of the histogram, without _bucket.
        of: Matchers.
        by: Labels to group by, joined by commas.
    """
    labels = f"le, {by}" if by else "le"
    rate = f"rate({family}_bucket{{{of}}}[$__rate_interval])"
    return f"histogram_quantile({share:g}, sum by ({labels}) ({rate}))"


def rate(series: str, *, by: str = "") -> str:
    """Write a query for the sum of rates, by labels."""
    labels = f" by ({by})" if by else ""
    return f"sum{labels} (rate({series}[$__rate_interval]))"

"""A panel of a dashboard, as far as we use them."""

from __future__ import annotations

from typing import Literal

import msgspec

Kind = Literal["lines", "stack", "number", "heat"]


class Query(msgspec.Struct, frozen=True):
    """
    A query, and what its lines are called.

    Attributes:
        expr: PromQL; `$product` and `$__rate_interval` are Grafana's to fill.
        legend: Name of a line, with labels as {{label}}.
        empty: Why a server in good order has no answer to it; empty when it has one.
    """

    expr: str
    legend: str = ""
    empty: str = ""


class Panel(msgspec.Struct, frozen=True):
    """
    One panel.

    Attributes:
        title: What it shows.
        unit: Grafana's name of the unit.
        queries: What it asks.
        kind: How it is drawn.
        text: What a person should know who looks at it.
    """

    title: str
    unit: str
    queries: tuple[Query, ...]
    kind: Kind = "lines"
    text: str = ""


class Row(msgspec.Struct, frozen=True):
    """Panels under one heading."""

    title: str
    panels: tuple[Panel, ...]


class Board(msgspec.Struct, frozen=True):
    """
    A dashboard.

    Attributes:
        uid: How links and files name it.
        title: What it is called.
        rows: What is on it.
    """

    uid: str
    title: str
    rows: tuple[Row, ...]

    @property
    def panels(self) -> tuple[Panel, ...]:
        """All panels, row after row."""
        return tuple(panel for row in self.rows for panel in row.panels)


def quantile(share: float, family: str, of: str, *, by: str = "") -> str:
    """
    Ask for a quantile of a histogram.

    Args:
        share: 0 to 1.
        family: Its name, without _bucket.
        of: Matchers.
        by: Labels to tell apart, joined by commas.
    """
    labels = f"le, {by}" if by else "le"
    rate = f"rate({family}_bucket{{{of}}}[$__rate_interval])"
    return f"histogram_quantile({share:g}, sum by ({labels}) ({rate}))"


def rate(series: str, *, by: str = "") -> str:
    """Ask for the sum of rates, by labels."""
    labels = f" by ({by})" if by else ""
    return f"sum{labels} (rate({series}[$__rate_interval]))"

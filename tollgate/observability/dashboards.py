"""
Write Grafana dashboards as JSON from the panels in boards.yaml, with Grafana's SDK.
"""

from __future__ import annotations

import itertools
import string
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from tollgate.errors import SetupError, install_remedy
from tollgate.observability.metric_selection import restrict

if TYPE_CHECKING:
    from collections.abc import Callable

Kind = Literal["lines", "stack", "number", "heat"]


class Query(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
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


class Panel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """
    One panel.

    Attributes:
        unit: Grafana's name of the unit.
        kind: Grafana's type of visualisation.
    """

    title: str
    unit: str
    queries: tuple[Query, ...]
    kind: Kind = "lines"
    text: str = ""


class PanelRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Panels under one heading."""

    title: str
    panels: tuple[Panel, ...]


class Board(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A dashboard; `uid` is its id in links and file names."""

    uid: str
    title: str
    rows: tuple[PanelRow, ...]

    @property
    def panels(self) -> tuple[Panel, ...]:
        """Return all panels, row after row."""
        return tuple(panel for row in self.rows for panel in row.panels)


BOARDS = msgspec.yaml.decode(
    (Path(__file__).parent / "boards.yaml").read_bytes(), type=tuple[Board, ...]
)
FOLDER = Path(__file__).parent / "boards"  # written by tools/chart_files.py

_HEIGHT, _WIDTH, _NUMBER_WIDTH = 8, 8, 4  # of the 24 columns
_SOURCE = "${datasource}"
# Series that a dashboard shows. For a label that no series has, Grafana passes an empty
# value, which PromQL matches with series without the label.
HERE = 'namespace="$namespace",job=~"$job"'
_VARIABLES = (
    ("namespace", "Namespace", "tollgate_ready"),
    ("job", "Job", 'tollgate_ready{namespace="$namespace"}'),
    ("product", "Product", f"tollgate_ready{{{HERE}}}"),
)


def packaged_dashboards() -> dict[str, str]:
    """Read the dashboards in the package; they need no SDK."""
    return {one.name: one.read_text() for one in sorted(FOLDER.glob("*.json"))}


def dashboard_files() -> dict[str, str]:
    """
    Build the dashboards from the panels: text by name of the file.

    Raises:
        SetupError: Grafana's SDK is not installed.
    """
    try:
        from grafana_foundation_sdk.cog.encoder import JSONEncoder
    except ImportError as error:
        raise SetupError(
            "grafana-foundation-sdk is not installed",
            remedy=f"on Python 3.11 or newer, {install_remedy('dev')}",
        ) from error
    return {
        f"{board.uid}.json": JSONEncoder(sort_keys=True, indent=2).encode(_build(board))
        + "\n"
        for board in BOARDS
    }


def expr_of(query: Query) -> str:
    """Return the query for Grafana, restricted to the restrict installation."""
    return restrict(query.expr, HERE)


def _build(board: Board) -> Any:
    from grafana_foundation_sdk.builders import dashboard
    from grafana_foundation_sdk.models.dashboard import VariableRefresh

    made = (
        dashboard.Dashboard(board.title)
        .uid(board.uid)
        .tags(["tollgate"])
        .refresh("30s")
        .time("now-1h", "now")
        .timezone("browser")
        .with_variable(
            dashboard.DatasourceVariable("datasource")
            .label("Prometheus")
            .type("prometheus")
        )
    )
    for name, label, series in _VARIABLES:
        asked = (
            dashboard.QueryVariable(name)
            .label(label)
            .query(f"label_values({series}, {name})")
            .datasource(_source())
            .refresh(VariableRefresh.ON_DASHBOARD_LOAD)
        )
        if name == "job":
            asked = asked.include_all(True).all_value(".*")
        made = made.with_variable(asked)
    number = itertools.count(1)
    for row in board.rows:
        made = made.with_row(dashboard.Row(row.title).id(next(number)))
        for panel in row.panels:
            made = made.with_panel(_panel(panel).id(next(number)))
    return made.build()


def _panel(panel: Panel) -> Any:
    from grafana_foundation_sdk.builders import heatmap, prometheus, stat, timeseries

    makers: dict[str, Callable[[], Any]] = {
        "lines": timeseries.Panel,
        "stack": timeseries.Panel,
        "number": stat.Panel,
        "heat": heatmap.Panel,
    }
    made = (
        makers[panel.kind]()
        .title(panel.title)
        .unit(panel.unit)
        .datasource(_source())
        .height(_HEIGHT)
        .span(_NUMBER_WIDTH if panel.kind == "number" else _WIDTH)
    )
    if panel.text:
        made = made.description(panel.text)
    if panel.kind in ("lines", "stack"):
        made = _format_lines(made, stacked=panel.kind == "stack")
    for letter, query in zip(string.ascii_uppercase, panel.queries, strict=False):
        asked = prometheus.Dataquery().expr(expr_of(query)).legend_format(query.legend)
        asked = asked.ref_id(letter)
        if panel.kind == "number":
            asked = asked.instant()
        if panel.kind == "heat":
            asked = asked.format("heatmap")
        made = made.with_target(asked)
    return made


def _format_lines(made: Any, *, stacked: bool) -> Any:
    """Draw lines; stack those that add up to a whole."""
    from grafana_foundation_sdk.builders import common
    from grafana_foundation_sdk.models.common import StackingMode

    made = made.line_width(1).fill_opacity(30 if stacked else 5)
    made = made.axis_soft_min(0)
    if stacked:
        made = made.stacking(common.StackingConfig().mode(StackingMode.NORMAL))
    return made


def _source() -> Any:
    from grafana_foundation_sdk.models.dashboard import DataSourceRef

    return DataSourceRef(type_val="prometheus", uid=_SOURCE)

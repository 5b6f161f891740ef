"""Dashboards ask for what exists, and the committed files are what is written."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tollgate.cli.app import app
from tollgate.gateway.template import TEMPLATE
from tollgate.metrics import metrics
from tollgate.observability.dashboards import (
    BOARDS,
    FOLDER,
    HERE,
    Board,
    dashboard_files,
    expr_of,
)

COMMITTED = FOLDER
CHART_FILES = Path(__file__).parents[3] / "helm" / "tollgate" / "files"
boards = pytest.mark.parametrize("board", BOARDS, ids=lambda board: str(board.uid))


@boards
def test_queries_ask_for_series_that_exist(board: Board) -> None:
    """Each name stands in the table of metrics."""
    exported = {name for one in metrics() for name in one.row.series}
    for panel in board.panels:
        for query in panel.queries:
            asked = re.findall(r"\b(?:tollgate|nv)_\w+", query.expr)
            assert asked, panel.title
            assert set(asked) <= exported, panel.title


@boards
def test_the_committed_file_holds_every_panel(board: Board) -> None:
    """With all of its queries, in order, each with a letter of its own."""
    committed = json.loads((COMMITTED / f"{board.uid}.json").read_text())
    found = {
        panel["title"]: panel for panel in committed["panels"] if panel["type"] != "row"
    }
    assert list(found) == [panel.title for panel in board.panels]
    for panel in board.panels:
        targets = found[panel.title]["targets"]
        asked = [expr_of(one) for one in panel.queries]
        assert [one["expr"] for one in targets] == asked
        assert len({one["refId"] for one in targets}) == len(targets)


@boards
def test_no_panel_mixes_installations(board: Board) -> None:
    """Every series of every query is of one namespace and one job."""
    committed = json.loads((COMMITTED / f"{board.uid}.json").read_text())
    exprs = [
        one["expr"] for panel in committed["panels"] for one in panel.get("targets", ())
    ]
    assert exprs
    for expr in exprs:
        series = re.findall(r"\b(?:tollgate|nv)_\w+", expr)
        assert len(series) == expr.count(HERE), expr
        assert all(f"{name}{{{HERE}" in expr for name in series), expr
    names = [one["name"] for one in committed["templating"]["list"]]
    assert names == ["datasource", "namespace", "job", "product"]


@boards
def test_panels_do_not_lie_on_each_other(board: Board) -> None:
    """Within 24 columns, no two in one place, no two with one number."""
    panels = json.loads((COMMITTED / f"{board.uid}.json").read_text())["panels"]
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place: dict[str, Any] = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {
            (place["x"] + across, place["y"] + down)
            for across in range(place["w"])
            for down in range(place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells
    assert len({panel["id"] for panel in panels}) == len(panels)


@pytest.mark.skipif(
    sys.version_info < (3, 11), reason="grafana-foundation-sdk needs Python 3.11"
)
def test_the_committed_files_are_made_of_the_panels() -> None:
    """Byte for byte, and no other file lies there; `make dashboards` renews them."""
    assert dashboard_files() == {one.name: one.read_text() for one in FOLDER.iterdir()}


def test_the_chart_has_the_files_of_the_package() -> None:
    """Dashboards and the gateway's two files; `make dashboards` copies them."""
    for folder in (FOLDER, TEMPLATE.parent):
        there = CHART_FILES / {"boards": "dashboards", "files": "gateway"}[folder.name]
        for one in folder.iterdir():
            assert (there / one.name).read_bytes() == one.read_bytes(), one.name


def test_the_command_writes_the_packages_files(tmp_path: Path) -> None:
    """Byte for byte, without Grafana's SDK."""
    done = CliRunner().invoke(app, ["dashboards", "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    written = {one.name: one.read_text() for one in tmp_path.iterdir()}
    assert written == {one.name: one.read_text() for one in COMMITTED.iterdir()}

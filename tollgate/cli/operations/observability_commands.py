"""List metrics, write alerts and dashboards: `tollgate metrics|alerts|dashboards`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tollgate.cli import console
from tollgate.cli.options import Json, Repository
from tollgate.errors import InputError

BEGIN, END = "<!-- tables: tollgate metrics --into -->\n", "<!-- end of tables -->"


def metrics(
    into: Annotated[
        Path | None,
        typer.Option(
            help="Markdown page to write the tables into, between its two markers."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """List all metrics by page: name, kind, unit, labels, meaning."""
    from tollgate.metrics import metrics as every
    from tollgate.metrics import tables_text

    if as_json:
        console.print_json([{"page": one.page, "metric": one.row} for one in every()])
        return
    text = tables_text()
    if into is None:
        console.result(text)
        return
    try:
        page = into.read_text()
    except OSError as exc:
        raise InputError(into, f"cannot be read: {exc.strerror}") from exc
    head, begin, rest = page.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise InputError(into, f"has no {BEGIN.strip()} … {END}")
    into.write_text(f"{head}{begin}\n{text}\n{end}{tail}")
    console.say(f"written: {into}")


def alerts(
    out: Annotated[
        Path, typer.Option(help="Folder to write the rule files into.")
    ] = Path("alerts"),
    runbooks: Annotated[
        str, typer.Option(help="Prefix of runbook links, before /NAME.md.")
    ] = "docs/runbooks",
    select: Annotated[
        list[str] | None,
        typer.Option(
            help="Label that only series of this installation have; may be "
            "repeated; '' for none.",
            metavar="LABEL=VALUE",
            show_default="job=tollgate",
        ),
    ] = None,
    repository: Repository = None,
    product: Annotated[
        list[str] | None,
        typer.Option(
            "--product",
            help="Ensemble to write alerts for; may be repeated.",
            metavar="NAME",
            show_default="every product there is",
        ),
    ] = None,
) -> None:
    """Write Prometheus alerts of products, from the objectives in their slo.yaml."""
    from tollgate.observability.alerts import rule_files
    from tollgate.observability.metric_selection import DEFAULT, read_select

    chosen = console.settings(repository=repository)
    console.require_products(chosen, product or ())
    folder = chosen.repository_path
    files = rule_files(
        folder,
        products=_products(folder, product),
        runbooks=runbooks,
        select=read_select([one for one in select if one]) if select else DEFAULT,
    )
    _write(out, files)


def _products(folder: Path, named: list[str] | None) -> list[str]:
    """List the products of a repository, by their release files."""
    from tollgate.repository.releases.release_file import RELEASE_FILE

    found = sorted(one.parent.name for one in folder.glob(f"*/{RELEASE_FILE}"))
    if not named and not found:
        raise InputError(folder, f"holds no product: there is no */{RELEASE_FILE}")
    return named or found


def _write(out: Path, files: dict[str, str]) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (out / name).write_text(text)
    except OSError as exc:
        raise InputError(out, f"cannot be written: {exc.strerror}") from exc
    for name in files:
        console.say(f"written: {out / name}")


def dashboards(
    out: Annotated[Path, typer.Option(help="Folder to write the JSON files into.")] = (
        Path("dashboards")
    ),
) -> None:
    """Write Grafana dashboards: service, features, model."""
    from tollgate.observability.dashboards import packaged_dashboards

    _write(out, packaged_dashboards())

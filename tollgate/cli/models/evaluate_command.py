"""
Train, publish and serve a model, then judge the served scores: `tollgate evaluate`.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from tollgate.cli import console
from tollgate.cli.options import Json, Repository
from tollgate.cli.repositories import require_entities, require_repository
from tollgate.errors import InputError

_MEASURES = ("roc_auc", "average_precision", "card_precision")


def evaluate(
    history: Annotated[
        Path, typer.Argument(help="Purchases with labels: Parquet, CSV or JSON lines.")
    ],
    train_from: Annotated[
        datetime, typer.Option(formats=["%Y-%m-%d"], help="First training day.")
    ] = datetime(2018, 7, 25),
    train_days: int = 7,
    delay_days: Annotated[
        int,
        typer.Option(help="Days until labels are known, between training and test."),
    ] = 7,
    test_days: int = 7,
    expect: Annotated[
        str | None,
        typer.Option(
            help="AUC, average precision and card precision@100 to reach, as "
            "a,b,c; exit status 1 if one is missed."
        ),
    ] = None,
    tolerance: Annotated[
        float, typer.Option(help="Largest accepted shortfall from --expect.")
    ] = 0.002,
    repository: Repository = None,
    as_json: Json = False,
) -> None:
    """Train on some weeks of a history, serve the model, and judge its decisions."""
    from tollgate.history import read_history
    from tollgate.pipeline import evaluate_history
    from tollgate.repository.releases.served_versions import served_spec

    wanted = _expected(expect)
    chosen = console.settings(repository=repository)
    require_repository(chosen.repository_path)
    console.require_products(chosen, chosen.products)
    spec = served_spec(chosen.repository_path, product=chosen.product)
    require_entities(spec)
    found = evaluate_history(
        read_history(history, spec=spec),
        spec=spec,
        repository=chosen.repository_path,
        train_from=train_from.date(),
        train_days=train_days,
        delay_days=delay_days,
        test_days=test_days,
        store_server=chosen.store_server,
        report=console.say,
        progress_bar=console.progress,
    )
    result, degraded = found.measures, found.degraded
    measured = [float(getattr(result, name)) for name in _MEASURES]
    if degraded:
        console.say(
            f"{degraded:,} answers were degraded: not the model alone is judged"
        )
    missed = [
        name
        for name, value, goal in zip(_MEASURES, measured, wanted, strict=True)
        if goal is not None and value < goal - tolerance
    ]
    if as_json:
        report = {
            "release": found.release.name,
            "rows": result.rows,
            "frauds": result.frauds,
            "served": dict(zip(_MEASURES, measured, strict=True)),
            "expected": dict(zip(_MEASURES, wanted, strict=True)),
            "degraded": degraded,
            "missed": missed,
        }
        console.print_json(report)
    else:
        table = _table(measured, wanted, rows=result.rows, frauds=result.frauds)
        console.out.print(table)
    if missed:
        console.say(f"missed: {', '.join(missed)}")
        raise typer.Exit(1)


def _expected(text: str | None) -> list[float | None]:
    if text is None:
        return [None] * len(_MEASURES)
    try:
        values: list[float | None] = [float(part) for part in text.split(",")]
    except ValueError:
        values = []
    if len(values) != len(_MEASURES):
        raise InputError(
            "--expect", f"{text!r} is not three numbers like 0.86,0.64,0.27"
        )
    return values


def _table(
    measured: list[float], wanted: list[float | None], *, rows: int, frauds: int
) -> Table:
    table = Table(title=f"served scores, {rows:,} purchases, {frauds:,} frauds")
    table.add_column("measure")
    table.add_column("served", justify="right")
    table.add_column("expected", justify="right")
    names = ("AUC ROC", "average precision", "card precision@100")
    for name, value, goal in zip(names, measured, wanted, strict=True):
        table.add_row(name, f"{value:.4f}", "" if goal is None else f"{goal:.3f}")
    return table

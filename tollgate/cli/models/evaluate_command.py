"""
Train, publish and serve a model, then judge the served scores: `tollgate evaluate`.
"""

from __future__ import annotations

import shutil
import tempfile
from datetime import date, datetime
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.table import Table

from tollgate.cli import console
from tollgate.cli.options import Json, Repository
from tollgate.errors import InputError
from tollgate.schema import Degraded

_DEADLINE_MS = 2_000
# Bits of rows whose score was not computed from the intended features.
_WORTH_LESS = ~Degraded.COLD_START & 0xFFFFFFFF
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
    from tollgate.cli import pipeline
    from tollgate.cli.replaying import purchases_in_reach
    from tollgate.evaluation import day_of, split
    from tollgate.evaluation import evaluate as judge
    from tollgate.history import read_history
    from tollgate.server.serving.embedded import serve

    wanted = _expected(expect)
    chosen = console.settings(repository=repository)
    pipeline.require_repository(chosen.repository_path)
    console.require_products(chosen, chosen.products)
    spec = pipeline.served_spec(chosen.repository_path, product=chosen.product)
    pipeline.require_entities(spec)
    first = train_from.date()
    test_us = _us(first, days=train_days + delay_days)
    purchases = purchases_in_reach(
        read_history(history, spec=spec),
        spec=spec,
        from_us=_us(first),
        until_us=test_us + test_days * 86_400_000_000,
    )
    day = day_of(purchases.event_time_us)
    customer = np.array(purchases.entity_id["customer_id"])
    parts = split(
        day,
        customer,
        label=purchases.label == 1,
        train_start=first,
        train_days=train_days,
        delay_days=delay_days,
        test_days=test_days,
    )
    with tempfile.TemporaryDirectory(prefix="tollgate-") as folder:
        copy = Path(folder) / "model_repository"
        shutil.copytree(chosen.repository_path, copy)
        with console.progress("training") as advance:
            release = pipeline.train_and_release(
                purchases,
                spec=spec,
                train=parts.train,
                judged=parts.test,
                source=f"purchases of {history.name} (no cards known as defrauded)",
                repository=copy,
                reason=f"evaluation on {history.name}",
                progress=advance,
            )
        console.say(
            f"trained on {int(parts.train.sum()):,} rows, serves {release.name}"
        )
        pipeline.wait_for_store(copy, product=chosen.product, deadline_ms=_DEADLINE_MS)
        score = np.full(len(purchases), np.nan)
        degraded = 0
        with (
            serve(
                copy,
                products=(chosen.product,),
                state=Path(folder) / "state",
                store_server=chosen.store_server,
            ) as server,
            console.progress("deciding") as advance,
        ):
            for rows, answer in pipeline.decide_history(
                purchases,
                spec=spec,
                grpc_url=server.grpc_url,
                store_url=server.store_url,
                decide_from_us=test_us,
                batch_rows=32,
                in_flight=1,
                progress=advance,
            ):
                score[rows] = answer.score
                degraded += int((answer.degraded & _WORTH_LESS != 0).sum())
    test = parts.test
    result = judge(
        purchases.label[test] == 1, score[test], customer=customer[test], day=day[test]
    )
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
            "release": release.name,
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


def _us(day: date, *, days: int = 0) -> int:
    moment = np.datetime64(day, "us") + np.timedelta64(days, "D")
    return int(moment.astype(np.int64))

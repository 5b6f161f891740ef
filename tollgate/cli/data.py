"""Commands for data: `simulate`, `features build`, `features replay`."""

from __future__ import annotations

from datetime import date, datetime
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import typer

from tollgate.cli import console

Spec = Annotated[
    Path,
    typer.Option(help="The features.yaml to follow."),
]
SPEC = Path("model_repository/fraud_features/1/features.yaml")


def simulate(
    out: Annotated[Path, typer.Argument(help="Parquet file to write.")] = Path(
        ".tollgate/history.parquet"
    ),
    customers: int = 5_000,
    terminals: int = 10_000,
    days: int = 183,
    start: Annotated[datetime, typer.Option(formats=["%Y-%m-%d"])] = datetime(
        2018, 4, 1
    ),
    seed: int = 0,
    radius: Annotated[
        float, typer.Option(help="How far a customer goes to buy; the map is 100 wide.")
    ] = 5.0,
) -> None:
    """Simulate purchases of customers at terminals, with three kinds of fraud."""
    from tollgate.simulate import simulate as run
    from tollgate.simulate import write

    with console.progress("simulating") as advance:
        frame = run(
            customers=customers,
            terminals=terminals,
            days=days,
            start=start.date(),
            seed=seed,
            radius=radius,
            progress=advance,
        )
    out.parent.mkdir(parents=True, exist_ok=True)
    write(frame, out)
    frauds = int(frame["label"].sum())
    console.say(
        f"{len(frame):,} purchases, {frauds:,} frauds "
        f"({frauds / len(frame):.2%}) → {out}"
    )


def build(
    history: Annotated[Path, typer.Argument(help="Parquet, CSV or JSON lines.")],
    out: Annotated[Path, typer.Argument(help="Parquet file to write.")],
    spec: Spec = SPEC,
    dtype: Annotated[
        Literal["float64", "float32"],
        typer.Option(help="float32 writes the vector as it is served."),
    ] = "float64",
) -> None:
    """Compute the features of a whole history: what training sees."""
    import polars as pl

    from tollgate.features.offline import build as compute
    from tollgate.features.offline import feature_columns
    from tollgate.features.spec import load_spec
    from tollgate.history import read_history
    from tollgate.simulate import write

    loaded = load_spec(spec)
    purchases = read_history(history, spec=loaded)
    with console.progress("computing features") as advance:
        features = compute(loaded, purchases, progress=advance)
    columns: dict[str, object] = {
        "transaction_id": [one.decode() for one in purchases.transaction_id],
        **{
            key: [one.decode() for one in ids]
            for key, ids in purchases.entity_id.items()
        },
        "event_time": purchases.event_time_us.view("datetime64[us]"),
        "label": purchases.label,
    }
    columns |= feature_columns(loaded.feature_names, features.astype(dtype))
    write(pl.DataFrame(columns), out)
    console.say(f"{len(purchases):,} rows of {features.shape[1]} features → {out}")


def replay(
    history: Annotated[Path, typer.Argument(help="Parquet, CSV or JSON lines.")],
    since: Annotated[
        datetime,
        typer.Option("--from", formats=["%Y-%m-%d"], help="First day to read."),
    ],
    until: Annotated[
        datetime, typer.Option(formats=["%Y-%m-%d"], help="Day after the last.")
    ],
    spec: Spec = SPEC,
    store_url: Annotated[
        str | None, typer.Option(help="Feed this Redis, not one thrown away.")
    ] = None,
    batch_rows: Annotated[int, typer.Option(help="Purchases per store call.")] = 1_000,
) -> None:
    """Drive a history through the online path; compare its bits with offline."""
    from tollgate.cli.replaying import compare_with_offline, cut
    from tollgate.features.spec import load_spec
    from tollgate.history import read_history

    loaded = load_spec(spec)
    purchases = cut(
        read_history(history, spec=loaded),
        spec=loaded,
        from_us=_us(since.date()),
        until_us=_us(until.date()),
    )
    rows, differing = compare_with_offline(
        loaded,
        purchases,
        read_from_us=_us(since.date()),
        store_url=store_url,
        batch_rows=batch_rows,
    )
    console.out.print(
        f"{rows:,} vectors read online, {differing:,} differ from offline",
        highlight=False,
    )
    if differing or not rows:
        raise typer.Exit(1)


def _us(day: date) -> int:
    return int(np.datetime64(day, "us").astype(np.int64))

"""The command for data: `simulate`."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from tollgate.cli import console


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

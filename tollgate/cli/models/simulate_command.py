"""Generate synthetic data: `tollgate simulate`."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from tollgate.cli import console
from tollgate.cli.options import Product
from tollgate.errors import InputError
from tollgate.suggestions import suggest

FRAUD, CREDIT = "fraud", "credit"


def simulate(
    out: Annotated[
        Path, typer.Argument(help="Path of the Parquet file to write.")
    ] = Path(".tollgate/history.parquet"),
    customers: int = 5_000,
    terminals: int = 10_000,
    days: int = 183,
    start: Annotated[datetime, typer.Option(formats=["%Y-%m-%d"])] = datetime(
        2018, 4, 1
    ),
    seed: int = 0,
    radius: Annotated[
        float,
        typer.Option(
            help="Maximum distance from a customer to a terminal; the map is 100 wide."
        ),
    ] = 5.0,
    rows: Annotated[
        int,
        typer.Option(help="Number of loan applications; only for --product credit."),
    ] = 20_000,
    product: Product = None,
) -> None:
    """
    Simulate purchases of customers at terminals, with three kinds of fraud.

    `--product credit`: applications for a loan, with those that were not repaid.
    """
    if simulated_product(product) == CREDIT:
        _simulate_credit(out, rows=rows, seed=seed)
        return
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


def simulated_product(product: str | None) -> str:
    """
    Choose the product to simulate data for.

    Raises:
        InputError: There is no simulation of the product.
    """
    chosen = console.settings(product=product, product_is_known=False).product
    if chosen not in (FRAUD, CREDIT):
        problem = (
            f"nothing simulates {chosen!r:.80}; {suggest(chosen, (FRAUD, CREDIT))}"
        )
        raise InputError("--product", problem)
    return chosen


def _simulate_credit(out: Path, *, rows: int, seed: int) -> None:
    from tollgate.simulate import write
    from tollgate.simulate.credit import simulate_credit

    frame = simulate_credit(rows=rows, seed=seed)
    out.parent.mkdir(parents=True, exist_ok=True)
    write(frame, out)
    unpaid = int(frame["label"].sum())
    share = unpaid / len(frame)
    console.say(
        f"{len(frame):,} applications, {unpaid:,} not repaid ({share:.2%}) → {out}"
    )

"""
Make the product `sensors` of model_repository from simulated readings.

    python tools/sensors_product.py

Twelve machines without faults report every five minutes for four weeks; the product is
the one that `tollgate product new --no-label` creates of these readings. Simulation
and training are seeded: the files differ from those of an earlier run only in the time
and the speed of the conversion, in the card that reports them, and in their hashes. If
nothing else differs, the repository stays as it is.

A change of slo.yaml also changes the alerts of the chart:

    tollgate alerts --out helm/tollgate/files/alerts
"""

from __future__ import annotations

from pathlib import Path

import polars as pl
from committed_product import finish_committed, replace_committed

from tollgate.product.reading_table import ReadingChoices
from tollgate.product.readings import create_readings
from tollgate.simulate import write
from tollgate.simulate.plant import simulate_plant

PRODUCT = "sensors"
TABLE = "readings.parquet"
ORIGIN = "First written by tools/sensors_product.py, from simulated readings"
REASON = "first release: trained on simulated readings"


def main() -> None:
    """Create the product, and replace that of the repository if it differs."""
    replace_committed(PRODUCT, create)


def simulated_readings() -> pl.DataFrame:
    """Simulate the readings that the product is made from."""
    return simulate_plant(
        machines=12, days=28, interval_s=300, faults=0, seed=7
    ).readings


def create(repository: Path, folder: Path) -> None:
    """
    Create the product in an empty repository, as it is committed.

    Args:
        repository: An empty folder.
        folder: Where to write the readings that it is made from.
    """
    table = folder / TABLE
    write(simulated_readings(), table)
    choices = ReadingChoices(
        product=PRODUCT,
        table=table,
        machine="machine",
        time="event_time",
        id="reading_id",
    )
    create_readings(
        choices,
        repository=repository,
        report=lambda step, result: print(f"{step}: {result}"),
    )
    finish_committed(repository, PRODUCT, table=TABLE, origin=ORIGIN, reason=REASON)


if __name__ == "__main__":
    main()

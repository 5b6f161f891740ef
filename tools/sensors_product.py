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

import tempfile
from pathlib import Path
from typing import Any

import msgspec
import polars as pl

from tollgate.product.creation import check_staged
from tollgate.product.files import ASK_FILE, SCRIPT_FILE
from tollgate.product.placement import displace, folders_of, place
from tollgate.product.reading_table import ReadingChoices
from tollgate.product.readings import create_readings
from tollgate.repository.releases.release_file import read_release, write_release
from tollgate.repository.releases.release_history import history_path
from tollgate.repository.snapshot import RepositorySnapshot
from tollgate.simulate import write
from tollgate.simulate.plant import simulate_plant

HOUSE = Path(__file__).resolve().parent.parent
REPOSITORY = HOUSE / "model_repository"
PRODUCT = "sensors"
TABLE = "readings.parquet"
ORIGIN = "# First written by tools/sensors_product.py, from simulated readings."
REASON = "first release: trained on simulated readings"
_MEASURED = ("created", "us_per_row")  # keys of artifact.json that each run changes
_DERIVED = {"card.html", "card.md", "release.json"}


def main() -> None:
    """Create the product, and replace that of the repository if it differs."""
    with tempfile.TemporaryDirectory(prefix="tollgate-") as name:
        new = Path(name) / "new"
        new.mkdir()
        create(new, table=Path(name) / TABLE)
        there = (REPOSITORY / PRODUCT).is_dir()
        if there and contents(new) == contents(REPOSITORY):
            print(f"{PRODUCT}: unchanged")
            return
        if there:
            old = Path(name) / "old"
            old.mkdir()
            displace(REPOSITORY, folders_of(REPOSITORY, PRODUCT), into=old)
        place(new, repository=REPOSITORY, product=PRODUCT)
        print(f"{PRODUCT}: written to {REPOSITORY}")


def simulated_readings() -> pl.DataFrame:
    """Simulate the readings that the product is made from."""
    return simulate_plant(
        machines=12, days=28, interval_s=300, faults=0, seed=7
    ).readings


def create(repository: Path, *, table: Path) -> None:
    """
    Create the product in an empty repository, as it is committed.

    Args:
        repository: An empty folder.
        table: Where to write the readings that it is made from.
    """
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
    for name in (ASK_FILE, SCRIPT_FILE):
        (repository / PRODUCT / name).unlink(missing_ok=True)
    spec = next(repository.glob(f"{PRODUCT}_features/*/features.yaml"))
    first, _, rest = spec.read_text().partition("\n")
    comment = first.replace(f"# First written from {TABLE}.", ORIGIN)
    spec.write_text(f"{comment}\n{rest}")
    release = read_release(repository, product=PRODUCT)
    snapshot = RepositorySnapshot(repository)
    hashes: dict[str, str] = {}
    for step, version in release.versions.items():
        hashes |= snapshot.hashes(step, version=version)
    committed = msgspec.structs.replace(
        release, hashes=dict(sorted(hashes.items())), reason=REASON
    )
    write_release(repository, committed)
    history_path(repository, PRODUCT).unlink()
    check_staged(repository, PRODUCT)


def contents(repository: Path) -> dict[str, Any]:
    """Read the product's files by name, without what each run measures."""
    found: dict[str, Any] = {}
    for folder in folders_of(repository, PRODUCT):
        for path in (repository / folder).rglob("*"):
            if not path.is_file() or path.name in _DERIVED:
                continue
            content: Any = path.read_bytes()
            if path.name == "artifact.json":
                artifact = msgspec.json.decode(content)
                content = {
                    key: value
                    for key, value in artifact.items()
                    if key not in (*_MEASURED, "files")
                }
            found[str(path.relative_to(repository))] = content
    return found


if __name__ == "__main__":
    main()

"""Read histories named on the command line: purchases, or readings of machines."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tollgate.cli import console

if TYPE_CHECKING:
    from tollgate.features.spec.feature_spec import FeatureSpec
    from tollgate.history import History


def read_history_file(
    path: Path, *, spec: FeatureSpec, arrival: str | None = None
) -> History:
    """
    Read a history; of readings, print which rows and cells do not count.

    Args:
        path: Parquet, CSV or JSON lines.
        spec: Features of its product.
        arrival: Column with the time at which each row arrived.

    Raises:
        InputError: A column is missing, or a value is invalid.
    """
    from tollgate.history import read_history
    from tollgate.product.reading_rows import read_spec_readings

    if spec.rows_noun != "readings" or arrival is not None:
        return read_history(path, spec=spec, arrival=arrival)
    read = read_spec_readings(path, spec=spec)
    for note in read.notes:
        console.say(note)
    return read.history

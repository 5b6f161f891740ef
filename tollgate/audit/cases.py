"""Convert sealed records into the row facts that a policy decides on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import polars as pl

from tollgate.audit.rows import EVENT, FEATURE, FIELD, PROBABILITY
from tollgate.features.definition import FeatureSpec
from tollgate.features.entries import MISSING
from tollgate.policy import RowFacts
from tollgate.schema import Degraded

# The decision step sets this bit itself, from the probabilities.
_MADE_LATER = np.uint32(0xFFFFFFFF & ~int(Degraded.MODEL_OUTPUT))


def facts_of(table: pl.DataFrame, spec: FeatureSpec) -> RowFacts:
    """
    Return the facts of rows that were known when they were decided.

    Args:
        table: Rows of a segment that have consent.
        spec: Feature spec of these rows.

    Raises:
        KeyError: A feature has no column; holds its name.
    """
    names = [name for name in table.columns if name.startswith(PROBABILITY)]
    return RowFacts(
        probabilities=_floats(table, names),
        features=_floats(table, feature_columns(table, spec.feature_names)),
        cents=table["amount_cents"].to_numpy(),
        degraded=table["degraded"].to_numpy() & _MADE_LATER,
        event_time_us=table[EVENT].to_physical().to_numpy(),
        list_hits=table["list_hits"].to_numpy(),
        fields={one.name: _field(table, one.name) for one in spec.fields},
    )


def feature_columns(table: pl.DataFrame, names: Sequence[str]) -> list[str]:
    """
    Return the column names of features; some segments number them instead.

    Raises:
        KeyError: A feature has no column; holds its name.
    """
    found = []
    for at, name in enumerate(names):
        known = [
            FEATURE + one for one in (name, str(at)) if FEATURE + one in table.columns
        ]
        if not known:
            raise KeyError(name)
        found.append(known[0])
    return found


def _floats(table: pl.DataFrame, names: Sequence[str]) -> npt.NDArray[np.float32]:
    columns = [table[name].to_numpy() for name in names]
    stacked: npt.NDArray[np.float32] = np.stack(columns, axis=1).astype(np.float32)
    return stacked


def _field(table: pl.DataFrame, name: str) -> npt.NDArray[np.int64]:
    if FIELD + name not in table.columns:
        return np.full(len(table), MISSING, np.int64)
    values: npt.NDArray[np.int64] = table[FIELD + name].to_numpy()
    return values

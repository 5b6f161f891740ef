"""Convert rows of a table or of a history to the columns of a request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tollgate.features.spec.feature_spec import FIELD_KINDS, FeatureSpec
from tollgate.history import History
from tollgate.schema import AMOUNT, EVENT_TIME, TRANSACTION_ID

if TYPE_CHECKING:
    import polars as pl


def request_columns(
    history: History, rows: npt.NDArray[np.int64], *, spec: FeatureSpec
) -> dict[str, Any]:
    """Convert purchases of a history to the columns of a request."""
    return {
        TRANSACTION_ID: [history.transaction_id[row] for row in rows],
        **{
            entity.key: [history.entity_id[entity.key][row] for row in rows]
            for entity in spec.entities
        },
        **({AMOUNT: history.cents[rows] / 100.0} if spec.amount else {}),
        EVENT_TIME: history.event_time_us[rows],
    }


def wire_fields(spec: FeatureSpec, frame: pl.DataFrame) -> dict[str, str]:
    """List the declared fields that a table has, with their types."""
    return {
        field.name: FIELD_KINDS[field.type]
        for field in spec.fields
        if field.name in frame.columns
    }


def field_columns(
    frame: pl.DataFrame, fields: dict[str, str], *, errors: list[str]
) -> dict[str, list[Any]]:
    """
    Convert declared fields of a table to columns of a request.

    Args:
        frame: N rows.
        fields: Name -> type on the wire.
        errors: Errors of each row; a cell that is no number adds one.

    Returns:
        N values each; None where a row has none.
    """
    import polars as pl

    columns = {}
    for name, kind in fields.items():
        column = frame[name]
        typed = column.cast(pl.String if kind == "BYTES" else pl.Float64, strict=False)
        lost = typed.is_null() & column.is_not_null()
        for row in np.flatnonzero(lost.to_numpy()).tolist():
            problem = f"{name}: {column[row]!r:.60}: is not a number"
            errors[row] = errors[row] or problem
        columns[name] = typed.to_list()
    return columns

"""Tables of three purchases, the histories they are, and how they are refused."""

from __future__ import annotations

import datetime
from typing import Any

import numpy as np
import polars as pl
import pytest

from tollgate.errors import InputError
from tollgate.features.spec.feature_spec import FeatureSpec
from tollgate.history import History, history_of

UTC_US = 1_522_540_800_000_000  # 2018-04-01T00:00:00Z


def table(**changes: list[Any]) -> pl.DataFrame:
    """Three sound purchases, with columns changed or added."""
    columns: dict[str, list[Any]] = {
        "transaction_id": ["1", "2", "007"],
        "customer_id": ["c", "c", "é"],
        "terminal_id": ["t", "u", "t"],
        "amount": [12.34, 0.0, 10_000_000.0],
        "event_time": [
            datetime.datetime(2018, 4, 1),
            datetime.datetime(2018, 4, 1, 0, 0, 0, 1),
            datetime.datetime(2018, 4, 2),
        ],
    }
    return pl.DataFrame(columns | changes)


def same(one: History, other: History) -> bool:
    """Tell whether two histories hold the same purchases and labels."""
    return (
        one.transaction_id == other.transaction_id
        and one.entity_id == other.entity_id
        and all(
            np.array_equal(getattr(one, name), getattr(other, name))
            for name in ("event_time_us", "cents", "label", "label_time_us")
        )
    )


def refusal(spec: FeatureSpec, **changes: list[Any]) -> InputError:
    """The error that a table with changes raises."""
    with pytest.raises(InputError) as caught:
        history_of(table(**changes), spec=spec, source="file.csv")
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("file.csv: ")
    return caught.value

"""Both hand-written feature codes make the features of the spec."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import polars as pl
import pytest

from loadtests.baseline.naive.features import features_of as with_pandas
from loadtests.baseline.naive.features import history as frame_of
from loadtests.baseline.phase1.history import (
    ENTRY,
    FEATURES,
    KEPT_CUSTOMER_US,
    KEPT_TERMINAL_US,
    entry_of,
)
from loadtests.baseline.phase1.history import features_of as with_numpy
from tollgate.features.offline import build
from tollgate.features.spec.feature_spec import FeatureSpec
from tollgate.history import History, history_of

_SAMPLE = 60


@pytest.fixture(scope="module")
def known(simulated: pl.DataFrame, spec: FeatureSpec) -> History:
    """A history whose labels are known at once."""
    columns = [one for one in simulated.columns if one != "label_time"]
    return history_of(simulated.select(columns), spec=spec, source="a test")


def retained(known: History, row: int, key: str, retention_us: int) -> list[int]:
    """List an entity's purchases up to one of them, as a store keeps them."""
    ids, times = known.entity_id[key], known.event_time_us
    end_us = int(times[row])
    return [
        at
        for at in range(row + 1)
        if ids[at] == ids[row] and end_us - retention_us < times[at] <= end_us
    ]


def test_windows_by_hand_are_those_of_the_spec(
    known: History, spec: FeatureSpec
) -> None:
    """On purchases throughout a history, to the bits that pandas' floats allow."""
    matrix = build(spec, known)
    for row in np.linspace(len(known) // 2, len(known) - 1, _SAMPLE).astype(int):
        time_us, cents = int(known.event_time_us[row]), int(known.cents[row])
        rows = {
            "customer": retained(known, row, "customer_id", KEPT_CUSTOMER_US),
            "terminal": retained(known, row, "terminal_id", KEPT_TERMINAL_US),
        }
        by_numpy = with_numpy(
            cents,
            time_us=time_us,
            **{name: packed(known, found) for name, found in rows.items()},
        )
        by_pandas = with_pandas(
            cents / 100,
            time=pd.Timestamp(time_us, unit="us"),
            **{name: frame_of(texts(known, found)) for name, found in rows.items()},
        )
        assert list(by_pandas) == list(FEATURES)
        np.testing.assert_allclose(by_numpy, matrix[row], rtol=1e-12)
        np.testing.assert_allclose(
            [float(one) for one in by_pandas.values()], matrix[row], rtol=1e-12
        )


def packed(known: History, rows: list[int]) -> list[bytes]:
    """Write purchases as the second version keeps them."""
    entries = np.zeros(len(rows), ENTRY)
    for place, row in enumerate(rows):
        raw = entry_of(
            known.transaction_id[row].decode(),
            time_us=int(known.event_time_us[row]),
            cents=int(known.cents[row]),
        )
        entries[place] = np.frombuffer(raw, ENTRY)[0]
        entries[place]["fraud"] = known.label[row] == 1
    return [one.tobytes() for one in entries]


def texts(known: History, rows: list[int]) -> list[bytes]:
    """Write purchases as the first version keeps them."""
    return [
        json.dumps(
            {
                "time": int(known.event_time_us[row]),
                "amount": int(known.cents[row]) / 100,
                "fraud": int(known.label[row] == 1),
            }
        ).encode()
        for row in rows
    ]

"""Both hand-written feature codes make the features of the spec."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest

from loadtests.baseline.naive.features import features_of as with_pandas
from loadtests.baseline.naive.features import history as frame_of
from loadtests.baseline.standalone.history import (
    ENTRY,
    FEATURES,
    KEPT_CUSTOMER_US,
    KEPT_TERMINAL_US,
    entry_of,
)
from loadtests.baseline.standalone.history import features_of as with_numpy
from loadtests.baseline.trees import write_xgboost
from tollgate.features.offline import build
from tollgate.features.spec.feature_spec import FeatureSpec
from tollgate.history import History, history_of

CHECKOUT = Path(__file__).resolve().parents[3]
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
    """On purchases throughout a history; the model's float32 has 1.2e-7."""
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


def test_the_services_of_their_own_import_nothing_of_ours(tmp_path: Path) -> None:
    """No module of Tollgate, directly or through another."""
    version = CHECKOUT / "model_repository/fraud_model/1"
    write_xgboost(version, tmp_path / "model.json")
    code = (
        "import sys, os, loadtests.baseline.standalone.app\n"
        "os.environ['BASELINE_MODEL'] = sys.argv[1]\n"
        "import loadtests.baseline.naive.app\n"
        "assert 'loadtests.baseline.gatherer' in sys.modules\n"
        "names = {name.partition('.')[0] for name in sys.modules}\n"
        "assert not names & {'tollgate', 'converters', 'tollgate_client'}\n"
    )
    environment = os.environ | {
        "BASELINE_STORE": "redis://127.0.0.1:1",
        "BASELINE_FOLDER": str(tmp_path),
        "BASELINE_MODEL": str(version / "model.onnx"),
    }
    subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "model.json")],
        env=environment,
        cwd=CHECKOUT,
        check=True,
    )


def packed(known: History, rows: list[int]) -> bytes:
    """Write purchases as the service of one week keeps them."""
    entries = np.zeros(len(rows), ENTRY)
    for place, row in enumerate(rows):
        raw = entry_of(
            known.transaction_id[row].decode(),
            time_us=int(known.event_time_us[row]),
            cents=int(known.cents[row]),
        )
        entries[place] = np.frombuffer(raw, ENTRY)[0]
        entries[place]["fraud"] = known.label[row] == 1
    return entries.tobytes()


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

"""Tests of bringing a product up, on a small product of our own."""

from __future__ import annotations

import logging
from collections.abc import Callable

import numpy as np
import pytest

from tollgate import schema
from tollgate.errors import ServerError
from tollgate.server.serving.loading import probe_whole
from tollgate.server.triton import control
from tollgate.server.triton.launcher import TritonServer
from tollgate.server.triton.probe import probe_columns

ConfigJson = Callable[[str], str]


def test_probes_fill_every_required_input() -> None:
    """Ids are told apart, the time is now, optional inputs are left out."""
    config = {
        "input": [
            {"name": "transaction_id", "data_type": "TYPE_STRING", "dims": ["1"]},
            {"name": "amount", "data_type": "TYPE_FP64", "dims": ["1"]},
            {"name": "event_time", "data_type": "TYPE_INT64", "dims": ["1"]},
            {
                "name": "channel",
                "data_type": "TYPE_STRING",
                "dims": ["1"],
                "optional": True,
            },
        ]
    }
    columns = probe_columns(config, count=3, now_us=1_700_000_000_000_000)
    assert set(columns) == {"transaction_id", "amount", "event_time"}
    assert all(values.shape == (3, 1) for values in columns.values())
    ids = columns["transaction_id"][:, 0]
    assert len(set(ids)) == 3
    assert all(0 < len(value) <= schema.MAX_ID_BYTES for value in ids)
    np.testing.assert_array_equal(columns["amount"], 10.0)
    np.testing.assert_array_equal(columns["event_time"], 1_700_000_000_000_000)


@pytest.mark.slow
def test_a_product_is_ready_when_it_answers(
    server: TritonServer, config_json: ConfigJson, caplog: pytest.LogCaptureFixture
) -> None:
    """The release is what the answers say; bits other than a cold start are told."""
    control.load_model(server, "toy", config=config_json("toy"))
    with caplog.at_level(logging.INFO):
        release = probe_whole(server, "toy")
    assert release == "toy-7"
    assert "toy is ready but degraded: STORE_UNAVAILABLE\n" in caplog.text


@pytest.mark.slow
def test_a_product_that_answers_badly_is_not_ready(
    server: TritonServer, config_json: ConfigJson
) -> None:
    """A row with an error stops it, with the row and its words."""
    control.load_model(server, "faulty", config=config_json("faulty"))
    with pytest.raises(
        ServerError, match="probe of 8 rows, row 1: amount: -1: negative"
    ):
        probe_whole(server, "faulty")

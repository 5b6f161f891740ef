"""The load test of readings: its traffic, and the tables of its counts."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from pathlib import Path

import polars as pl
import pytest

from loadtests.readings import (
    Outcome,
    Traffic,
    main,
    simulated_history,
    to_markdown,
)
from tollgate.alarms.readings import ReadingCodec
from tollgate.errors import StoreError
from tollgate.features.spec.feature_spec import FeatureSpec, load_spec

PLANT = """
version: 1
product: sensors
amount: false
lateness: 2h
entities:
  machine: {key: machine, hop: 15m}
fields:
  - {name: temperature, type: number, decimals: 1, range: [-1000, 1000]}
  - {name: pressure, type: number, decimals: 2, range: [-100, 100]}
  - {name: vibration, type: number, decimals: 2, range: [-100, 100]}
features:
  - {name: hot, entity: machine, aggregate: mean, window: 1d, of: temperature}
  - {name: pressure_mean, entity: machine, aggregate: mean, window: 1d, of: pressure}
  - {name: vibration_mean, entity: machine, aggregate: mean, window: 1d, of: vibration}
"""


class FailingFeed:
    """A feed that refuses each call once."""

    def __init__(self) -> None:
        self.events: list[bytes] = []
        self._failed = False

    def send(self, keys: Sequence[bytes], events: Sequence[bytes]) -> None:
        """Refuse, or take events."""
        self._failed = not self._failed
        if self._failed:
            raise StoreError("away")
        assert len(keys) == len(events)
        self.events += events

    def close(self) -> None:
        """Do nothing."""


def test_traffic_is_readings_of_the_product_of_which_some_raise_alarms(
    spec: FeatureSpec,
) -> None:
    """Each is published once it is acknowledged; every 50th has a large amount."""
    traffic = Traffic(spec, rate=1_000, seconds=0.2, alarms=True)
    feed = FailingFeed()
    traffic.publish(feed, threading.Event())
    readings = ReadingCodec(spec).decode(feed.events)
    assert readings.unreadable == {}
    assert len(readings) == len(traffic.acknowledged) == len(traffic.due_s) == 200
    large = {
        json.loads(one)["transaction_id"]
        for one in feed.events
        if json.loads(one)["amount"] >= 1_000
    }
    assert large == set(traffic.raising)
    assert len(large) == 4


def test_a_plant_continues_its_history_and_each_machine_fails_once(
    tmp_path: Path,
) -> None:
    """Readings are like the newest of their machine; then a sensor has no value."""
    path = tmp_path / "features.yaml"
    path.write_text(PLANT)
    spec = load_spec(path)
    traffic = Traffic(spec, rate=1_000, seconds=0.4, alarms=True, machines=20)
    feed = FailingFeed()
    traffic.publish(feed, threading.Event())
    readings = ReadingCodec(spec).decode(feed.events)
    assert readings.unreadable == {}
    assert set(traffic.raising.values()) == set(readings.machines)
    assert len(traffic.raising) == 20
    history = simulated_history(machines=20, days=1.0)
    for machine in set(readings.machines):
        own = [row for row in range(400) if readings.machines[row] == machine]
        values = [readings.columns["temperature"][row] for row in own]
        missing = [row for row, one in zip(own, values, strict=True) if one is None]
        assert 1 <= len(missing) <= 3
        assert readings.columns["transaction_id"][missing[0]] in traffic.raising
        known = history.filter(pl.col("machine") == machine)["temperature"][-8:]
        assert {one for one in values if one is not None} <= set(known)


@pytest.mark.slow
def test_readings_become_alarms_of_a_served_product(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """`tollgate up`, `tollgate alarms run` and a Redis: no reading is lost."""
    words = ["--broker=redis", "--rate=200", "--seconds=2", "--no-kills"]
    assert main(words) == 0
    shown = capsys.readouterr().out
    # 3 s of warm-up and 2 s, of which every 50th reading raises an alarm.
    assert "| Redis Streams | 200 | 1,000 | 8 |" in shown


def test_the_tables_have_percentiles_of_raw_samples_and_losses() -> None:
    """A quiet run has latencies, one with kills has counts."""
    quiet = Outcome("mqtt", 0, 200, 100, 1, 4, 1, 0, 0, [*range(1_000, 101_000, 1_000)])
    killed = Outcome("redis", 4, 300, 310, 0, 6, 0, 10, 0, [])
    text = to_markdown([quiet, killed], rate=100.0)
    row = "MQTT (mosquitto) | 100 | 200 | 100 | 50.0 | 90.0 | 99.0 | 100.0 | 100.0 | 1"
    assert f"| {row} |" in text
    assert "| Redis Streams | 4 | 300 | 0 | 6 | 0 | 10 | 0 |" in text

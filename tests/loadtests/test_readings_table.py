"""The load test of readings: its traffic, and the tables of its counts."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence

import pytest

from loadtests.readings import Outcome, Traffic, main, to_markdown
from tollgate.alarms.readings import ReadingCodec
from tollgate.errors import StoreError
from tollgate.features.spec.feature_spec import FeatureSpec


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
    assert large == traffic.raising
    assert len(large) == 4


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

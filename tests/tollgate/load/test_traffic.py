"""Tests of the purchases that follow a history."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from tollgate.features.spec.feature_spec import FeatureSpec
from tollgate.history import History, history_of
from tollgate.load.traffic import ID_DIGITS, Traffic, fixed_width, traffic_of

DAY_US = 86_400_000_000
DAYS = 60


@pytest.fixture(scope="module")
def history(simulated: pl.DataFrame, spec: FeatureSpec) -> History:
    """The small simulated history."""
    return history_of(simulated, spec=spec, source="simulated")


@pytest.fixture(scope="module")
def traffic(history: History) -> Traffic:
    """The traffic that continues the history."""
    return traffic_of(history, days=DAYS)


def test_traffic_begins_after_the_history_and_goes_on_in_order(
    history: History, traffic: Traffic
) -> None:
    """Times never go back, also where the history begins again."""
    count = 2 * len(history) + 5
    columns = traffic.columns(0, count)
    times = columns["event_time"]
    assert times[0] > history.event_time_us[-1]
    assert (np.diff(times) >= 0).all()
    assert times[len(history)] - times[0] == DAYS * DAY_US


def test_traffic_repeats_the_history_under_new_ids(
    history: History, traffic: Traffic
) -> None:
    """Customers, terminals and amounts are the history's; each id comes once."""
    size = len(history)
    columns = traffic.columns(size, size)
    assert columns["customer_id"].tolist() == history.entity_id["customer_id"]
    assert columns["terminal_id"].tolist() == history.entity_id["terminal_id"]
    np.testing.assert_array_equal(np.rint(columns["amount"] * 100), history.cents)
    ids = columns["transaction_id"].tolist()
    assert len(set(ids)) == size
    assert not set(ids) & set(history.transaction_id)


def test_traffic_can_be_cut_anywhere(traffic: Traffic) -> None:
    """Two parts are the whole."""
    whole = traffic.columns(100, 50)
    parts = [traffic.columns(100, 20), traffic.columns(120, 30)]
    for name, column in whole.items():
        joined = np.concatenate([part[name] for part in parts])
        np.testing.assert_array_equal(column, joined)


def test_numbers_have_leading_zeros() -> None:
    """Python's own formatting says the same."""
    numbers = np.array([0, 7, 10, 12_345, 10**ID_DIGITS - 1])
    expected = [f"{number:0{ID_DIGITS}d}".encode() for number in numbers]
    assert fixed_width(numbers, digits=ID_DIGITS).tolist() == expected

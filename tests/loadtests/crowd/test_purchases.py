"""Purchases of users are new, and as the scenario has them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from loadtests.crowd.crowd import Purchases
from loadtests.paced.scenario import Phase, Scenario, Shift
from tollgate.features.spec.feature_spec import FeatureSpec
from tollgate_client.contract import FRAUD_INPUTS
from tollgate_client.inputs import check_columns

STEADY = Scenario(phases=(Phase(seconds=60, rate=1),))


def taken(purchases: Purchases, rows: int, *, at_s: float = 0.0) -> list[float]:
    """Take rows one by one; their amounts."""
    amounts = []
    for _ in range(rows):
        columns, _ = purchases.take(1, at_s=at_s)
        amounts += columns["amount"].tolist()
    return amounts


def test_no_purchase_comes_twice(spec: FeatureSpec) -> None:
    """For every size of requests; clients take them unchanged."""
    purchases = Purchases(spec, STEADY, seed=1)
    ids: list[str] = []
    for rows in [1, 32, 7] * 60:
        columns, poisoned = purchases.take(rows, at_s=0.0)
        assert check_columns(columns, inputs=FRAUD_INPUTS).count == rows
        assert poisoned == 0
        ids += columns["transaction_id"].tolist()
    assert len(set(ids)) == len(ids) == 2400
    other, _ = Purchases(spec, STEADY, seed=2).take(32, at_s=0.0)
    assert not set(other["transaction_id"].tolist()) & set(ids)


def test_the_poisoned_are_counted(spec: FeatureSpec) -> None:
    """Amounts below 0 or none, times before the year 2000: each such row is counted."""
    mixed = Scenario(phases=STEADY.phases, poison=0.3)
    purchases = Purchases(spec, mixed, seed=3)
    counted = 0
    for _ in range(100):
        columns, poisoned = purchases.take(8, at_s=0.0)
        amount, time_us = columns["amount"], columns["event_time"]
        bad = np.isnan(amount) | (amount < 0) | (time_us == 0)
        assert bad.sum() == poisoned
        counted += poisoned
    assert counted / 800 == pytest.approx(0.3, abs=0.07)


def test_later_purchases_are_others(spec: FeatureSpec) -> None:
    """After the moment of a shift, amounts are so many times what they were."""
    shift = Shift(at_s=30, amount_times=8)
    shifted = Scenario(phases=STEADY.phases, shift=shift)
    before, after = (
        taken(Purchases(spec, shifted, seed=4), 2000, at_s=at_s) for at_s in (29, 31)
    )
    assert all(map(math.isfinite, after))
    assert np.median(after) / np.median(before) == pytest.approx(8)

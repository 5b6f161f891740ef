"""The vector put together: calendar, aggregates, defaults, against Python itself."""

from __future__ import annotations

import datetime
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from tollgate.features.assemble import assemble
from tollgate.features.spec.feature_spec import FeatureSpec, load_spec
from tollgate.features.windows.window_values import Sums

AGGREGATES = """\
version: 1
product: fraud
entities: {card: {key: card_id}}
features:
  - {name: n, entity: card, aggregate: count, window: 1d, default: 3}
  - {name: total, entity: card, aggregate: sum, window: 1d, default: 2.5}
  - {name: mean, entity: card, aggregate: mean, window: 1d}
  - {name: frauds, entity: card, aggregate: flagged, window: 1d}
  - {name: share, entity: card, aggregate: share, window: 1d}
"""


@pytest.fixture
def aggregates(tmp_path: Path) -> FeatureSpec:
    """A spec with each aggregate once."""
    path = tmp_path / "features.yaml"
    path.write_text(AGGREGATES)
    return load_spec(path)


def test_calendar_is_pythons(spec: FeatureSpec) -> None:
    """Weekend is Saturday and Sunday, night is hours 0 to 6, UTC, before 1970 too."""
    utc, hour = datetime.timezone.utc, datetime.timedelta(hours=1)
    edge = datetime.timedelta(microseconds=1)
    starts = [
        datetime.datetime(*day, tzinfo=utc) for day in ((1969, 12, 29), (2024, 2, 26))
    ]
    moments = [
        start + n * hour + shift
        for start in starts
        for n in range(8 * 24)
        for shift in (-edge, datetime.timedelta(0), edge)
    ]
    epoch = datetime.datetime(1970, 1, 1, tzinfo=utc)
    time_us = np.array([(one - epoch) // edge for one in moments])
    vector = assemble(spec, sums=(), cents=np.zeros_like(time_us), time_us=time_us)
    assert vector[:, 1].tolist() == [float(one.weekday() >= 5) for one in moments]
    assert vector[:, 2].tolist() == [float(one.hour <= 6) for one in moments]


def test_money_is_divided_once(spec: FeatureSpec, aggregates: FeatureSpec) -> None:
    """An amount, a sum and a mean are the doubles nearest to the exact fraction."""
    source = np.random.default_rng(0)
    cents = source.integers(0, 10**9, 2_000)
    count = source.integers(1, 1_000, 2_000)
    total = cents * count + source.integers(0, 100, 2_000)
    vector = assemble(
        aggregates, cents=cents, time_us=cents, sums=[sums(count, total, count // 7)]
    )
    for row, (n, part) in enumerate(zip(count.tolist(), total.tolist(), strict=True)):
        assert vector[row].tolist() == [
            n,
            float(Fraction(part, 100)),
            float(Fraction(part, 100 * n)),
            n // 7,
            float(Fraction(n // 7, n)),
        ]
    amount = assemble(spec, sums=(), cents=cents, time_us=cents)[:, 0]
    assert amount.tolist() == [float(Fraction(one, 100)) for one in cents.tolist()]


def test_empty_window_has_zero_mean_and_share(aggregates: FeatureSpec) -> None:
    """Nothing divided by nothing is 0, as the handbook has it, and warns of nothing."""
    none = np.zeros(2, np.int64)
    vector = assemble(
        aggregates, cents=none, time_us=none, sums=[sums(none, none, none)]
    )
    assert vector.tolist() == [[0.0] * 5] * 2


def test_defaults_keep_features_of_the_request(spec: FeatureSpec) -> None:
    """Amount and calendar stay; the rest is what features.yaml declares."""
    saturday_night_us = 1_600_488_000_000_000 + 1  # 2020-09-19T04:00:00Z
    vector = assemble(
        spec, sums=(), cents=np.array([1999]), time_us=np.array([saturday_night_us])
    )
    assert vector.tolist() == [[19.99, 1, 1, 1, 50, 14, 50, 60, 50, 1, 0, 7, 0, 29, 0]]


def sums(count: np.ndarray, cents: np.ndarray, fraud: np.ndarray) -> Sums:
    """Sums of one window."""
    return Sums(
        count=count[:, None], cents=cents[:, None], fraud=fraud[:, None], upto=count
    )

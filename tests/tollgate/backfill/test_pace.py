"""Pauses: by a rate, or while the product serves."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from tollgate.backfill.pace import Pace, open_pace
from tollgate.features.spec.feature_spec import FeatureSpec
from tollgate.store.lookups import PURCHASES, feed_key, pack_watermark
from tollgate.store.redis.redis_store import RedisStore


class Clock:
    """A clock that advances only when code waits."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.waited: list[float] = []

    def __call__(self) -> float:
        """Return the time."""
        return self.now_s

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self.waited.append(seconds)
        self.now_s += seconds

    def call(self, pace: Pace, taken_s: float, events: int = 64) -> None:
        """Make a call with a given duration."""
        begun_s = pace.begin()
        self.now_s += taken_s
        pace.end(begun_s, events)


def test_rate_is_independent_of_call_durations() -> None:
    """64 events at 6,400 a second take 10 ms, including the call itself."""
    clock = Clock()
    pace = Pace(6_400, watermark=lambda: None, clock=clock, sleep=clock.wait)
    for taken_s in (0.0, 0.004, 0.03):
        clock.call(pace, taken_s)
    assert clock.waited == pytest.approx([0.01, 0.006, 0.0])


def test_without_a_limit_there_is_no_pause() -> None:
    """0 uses all that Redis can do, and does not read the watermark."""
    clock = Clock()
    pace = Pace(0, watermark=lambda: 1 / 0, clock=clock, sleep=clock.wait)
    clock.call(pace, 5.0)
    assert clock.waited == []


def test_pauses_follow_the_calls_while_the_product_serves() -> None:
    """Twice a call's time and 10 ms at most; none once the watermark stands still."""
    clock = Clock()
    moving = itertools.count()
    still = [False]
    pace = Pace(
        None,
        watermark=lambda: "still" if still[0] else next(moving),
        clock=clock,
        sleep=clock.wait,
    )
    clock.call(pace, 0.001)
    clock.call(pace, 2.5)  # time for a look: it has moved
    assert clock.waited == pytest.approx([0.002, 0.01])
    still[0] = True
    clock.call(pace, 2.5)  # it has moved since, too
    clock.call(pace, 2.5)  # and not since
    clock.call(pace, 0.001)
    assert len(clock.waited) == 3
    still[0] = False
    clock.call(pace, 2.5)
    assert len(clock.waited) == 4


def test_pace_reads_the_products_watermark(
    spec: FeatureSpec, store_url: str, open_store: Callable[..., RedisStore]
) -> None:
    """The feature step and a stream write it; it differs from the loaded keys."""
    store = open_store(store_url)
    pace = open_pace(spec, store, None)
    key = feed_key(spec.product, PURCHASES)
    pace._look_s = 0.0
    pace.end(pace.begin(), 64)
    assert not pace._serving
    value = pack_watermark(5, now_us=7)
    store.flush([], extra_commands=[(b"SET", key, value)])
    pace._look_s = 0.0
    pace.end(pace.begin(), 64)
    assert pace._serving

"""The cache of last known values: what stays, what goes, and when."""

from __future__ import annotations

import numpy as np
import pytest

from tollgate.store.fallback.last_known import LastKnown


class Clock:
    """A clock that moves on command."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    """The clock of the cache."""
    return Clock()


def test_values_are_found_with_their_age(clock: Clock) -> None:
    """The very object that was put, its age in µs; empty bytes for another key."""
    cache = LastKnown(10_000, 60.0, clock=clock)
    value = b"x" * 80
    cache.put([b"a"], [value])
    clock.now_s = 2.5
    found = cache.find([b"b", b"a"])
    assert found.values[0] == b""
    assert found.values[1] is value
    assert found.known.tolist() == [False, True]
    assert found.age_us.tolist() == [0, 2_500_000]


def test_what_was_not_seen_for_longest_leaves_first(clock: Clock) -> None:
    """Room for three: the fourth drives out the one that was put longest ago."""
    cache = LastKnown(3 * 1_300, 60.0, clock=clock)
    for name in (b"a", b"b", b"c"):
        cache.put([name], [name * 1_000])
    cache.put([b"a"], [b"A" * 1_000])
    cache.put([b"d"], [b"d" * 1_000])
    assert cache.find([b"a", b"b", b"c", b"d"]).known.tolist() == [
        True,
        False,
        True,
        True,
    ]
    assert cache.bytes_held <= 3 * 1_300


def test_it_never_holds_more_than_its_bytes(clock: Clock) -> None:
    """Random puts, amendments and look-ups: the sum is right, and bounded."""
    generator = np.random.default_rng(7)
    cache = LastKnown(20_000, 5.0, clock=clock)
    for _ in range(2_000):
        clock.now_s += 0.01
        keys = [b"%d" % one for one in set(generator.integers(0, 60, 4).tolist())]
        values = [bytes(int(size)) for size in generator.integers(0, 3_000, len(keys))]
        (cache.put, cache.amend)[int(generator.integers(2))](keys, values)
        cache.find([b"%d" % generator.integers(60)])
        assert cache.bytes_held <= 20_000
    size = sum(
        len(key) + len(value) + 250 for key, (value, _) in cache._entries.items()
    )
    assert cache.bytes_held == size


def test_a_value_goes_at_its_age_limit(clock: Clock) -> None:
    """Nothing is used past the limit, everything up to four fifths of it."""
    cache = LastKnown(10**6, 100.0, clock=clock)
    keys = [b"key-%d" % one for one in range(500)]
    cache.put(keys, [b"v"] * len(keys))
    clock.now_s = 80.0
    assert cache.find(keys).known.all()
    clock.now_s = 90.0
    half = cache.find(keys).known.sum()
    clock.now_s = 100.1
    assert not cache.find(keys).known.any()
    assert 200 < half < 300  # they go one by one, not all at once
    assert len(cache) == 0
    assert cache.bytes_held == 0


def test_an_amendment_keeps_the_age(clock: Clock) -> None:
    """What this process added does not make the store's answer younger."""
    cache = LastKnown(10_000, 60.0, clock=clock)
    cache.put([b"a"], [b"old"])
    clock.now_s = 30.0
    cache.amend([b"a", b"never seen"], [b"newer", b"x"])
    found = cache.find([b"a", b"never seen"])
    assert found.values == [b"newer", b""]
    assert found.age_us[0] == 30_000_000

"""Window sums over hand-made entries."""

from __future__ import annotations

import numpy as np
import pytest

from tollgate.features.windows.entity_entries import Entries
from tollgate.features.windows.window_values import Rows, window_sums

WINDOWS_US = (10, 30)


def entries(*segments: list[tuple[int, int]], **columns: list[int]) -> Entries:
    """Entities with events (time, id number); more columns as named, else as below."""
    flat = [event for segment in segments for event in segment]
    count = len(flat)
    purchase = np.array(columns.get("purchase", [1] * count), np.bool_)
    fraud = np.array(columns.get("fraud", [0] * count), np.bool_) & purchase
    label_time_us = np.array(columns.get("label_time_us", [0] * count), np.int64)
    return Entries(
        starts=np.cumsum([0, *map(len, segments)]),
        time_us=np.array([time for time, _ in flat], np.int64),
        order=np.array([number for _, number in flat], np.int64),
        purchase=purchase,
        cents=np.array(columns.get("cents", [100] * count), np.int64) * purchase,
        fraud_at=np.flatnonzero(fraud),
        fraud_known_us=label_time_us[fraud],
    )


def rows(*reads: tuple[int, int, int], delay_us: int | list[int] = 0) -> Rows:
    """Rows to read at: (entity, time, id number); one delay, or one per entity."""
    entity, time, number = np.array(reads, np.int64).reshape(-1, 3).T
    delays = np.atleast_1d(delay_us)[entity if np.ndim(delay_us) else slice(1)]
    return Rows(
        entity=entity,
        time_us=time,
        order=number,
        delay_us=delays,
        windows_us=np.array(WINDOWS_US)[:, None].repeat(len(delays), axis=1),
    )


def test_window_is_open_before_and_closed_at_its_own_id() -> None:
    """t - w is out; at t itself ids up to the row's own count, later ones do not."""
    card = entries([(90, 1), (91, 1), (100, 1), (100, 2), (100, 3), (101, 1)])
    sums = window_sums(card, rows((0, 100, 2), (0, 100, 3), (0, 100, 9)))
    assert sums.count[:, 0].tolist() == [3, 4, 4]
    assert sums.count[:, 1].tolist() == [4, 5, 5]
    assert sums.cents[:, 0].tolist() == [300, 400, 400]
    assert sums.upto.tolist() == [4, 5, 5]


def test_delayed_window_ends_delay_before_the_row() -> None:
    """(t - delay - w, t - delay]: its end is closed for every id."""
    events = entries([(83, 1), (84, 9), (93, 1), (93, 9), (94, 1), (100, 1)])
    sums = window_sums(events, rows((0, 100, 1), delay_us=7))
    assert sums.count.tolist() == [[3, 4]]
    assert sums.upto.tolist() == [6]


def test_fraud_counts_once_its_label_is_known() -> None:
    """Known at t counts at t; of three frauds, those known later are left out."""
    events = entries(
        [(90, 1), (91, 1), (92, 1), (93, 1)],
        fraud=[1, 1, 1, 0],
        label_time_us=[90, 100, 101, 0],
    )
    reads = rows((0, 99, 1), (0, 100, 1), (0, 101, 1), delay_us=7)
    sums = window_sums(events, reads)
    assert sums.fraud[:, 0].tolist() == [1, 2, 3]
    assert sums.count[:, 0].tolist() == [3, 4, 4]


def test_waiting_label_is_no_purchase() -> None:
    """A label whose purchase has not come counts neither as one nor as a fraud."""
    events = entries([(95, 1), (96, 1)], purchase=[1, 0], fraud=[0, 1])
    sums = window_sums(events, rows((0, 100, 1)))
    assert (sums.count.tolist(), sums.fraud.tolist()) == ([[1, 1]], [[0, 0]])
    assert (sums.cents.tolist(), sums.upto.tolist()) == ([[100, 100]], [1])


def test_entities_do_not_mix() -> None:
    """Each row reads its own entity, an empty one too, in any order of rows."""
    events = entries([(99, 1)], [], [(50, 1), (98, 1), (99, 2)])
    reads = rows((2, 100, 1), (1, 100, 1), (0, 100, 1), (2, 98, 0))
    sums = window_sums(events, reads)
    assert sums.count.tolist() == [[2, 2], [0, 0], [1, 1], [0, 0]]
    assert sums.upto.tolist() == [3, 0, 1, 1]


def test_nothing_to_read_is_no_error() -> None:
    """No rows, no entries, or neither: sums of the right shape."""
    assert window_sums(entries([]), rows()).count.shape == (0, 2)
    assert window_sums(entries([(1, 1)]), rows()).count.shape == (0, 2)
    sums = window_sums(entries([]), rows((0, 5, 1)))
    assert sums.count.tolist() == [[0, 0]]


def test_label_can_be_unknown_for_longer_than_a_window() -> None:
    """A fraud leaves the windows before, or stays in them until, it is known."""
    events = entries([(80, 1)], [(80, 1)], fraud=[1, 1], label_time_us=[10**18, 95])
    times = [80, 89, 90, 94, 95, 109, 110]
    reads = rows(*[(entity, time, 1) for entity in (1, 0) for time in times])
    sums = window_sums(events, reads)
    assert sums.fraud[:7, 0].tolist() == [0] * 7
    assert sums.fraud[:7, 1].tolist() == [0, 0, 0, 0, 1, 1, 0]
    assert not sums.fraud[7:].any()
    assert sums.count[7:].tolist() == sums.count[:7].tolist()


def test_too_wide_a_span_is_refused() -> None:
    """Entities times microseconds must fit into 63 bits; else no wrong number."""
    events = entries([(-(2**61), 1)], [(2**61, 1)])
    with pytest.raises(OverflowError, match="too many entities"):
        window_sums(events, rows((0, 5, 1)))


@pytest.mark.parametrize("moments", [3, 60])
@pytest.mark.parametrize("delays_us", [(0,), (9,), (0, 9)])
def test_random_entries_equal_a_loop(moments: int, delays_us: tuple[int, ...]) -> None:
    """Few or many ties, one delay or one per entity: as compared one by one."""
    source = np.random.default_rng(7)
    for _ in range(20):
        segments = [
            sorted(set(zip(*source.integers(0, (moments, 60), (n, 2)).T, strict=True)))
            for n in source.integers(0, 40, 4)
        ]
        count = sum(map(len, segments))
        events = entries(
            *segments,
            cents=source.integers(0, 999, count).tolist(),
            purchase=(source.random(count) < 0.9).tolist(),
            fraud=(source.random(count) < 0.4).tolist(),
            label_time_us=source.integers(0, moments + 30, count).tolist(),
        )
        reads = rows(
            *source.integers(0, (4, moments + 10, 60), (25, 3)).tolist(),
            delay_us=source.choice(delays_us, 4).tolist(),
        )
        sums = window_sums(events, reads)
        for n in range(25):
            got = [sums.count[n], sums.cents[n], sums.fraud[n], sums.upto[n]]
            assert [one.tolist() for one in got] == by_loop(events, reads, n)


def by_loop(events: Entries, reads: Rows, n: int) -> list[list[int] | int]:
    """Sum row `n`'s windows from their definition."""
    at, own = int(reads.time_us[n]), int(reads.order[n])
    delay = int(reads.delay_us[n])
    end = at - delay
    count, cents, fraud = ([0, 0] for _ in range(3))
    known_us = dict(
        zip(events.fraud_at.tolist(), events.fraud_known_us.tolist(), strict=True)
    )
    upto = 0
    for e in range(*events.starts[reads.entity[n] : reads.entity[n] + 2]):
        time = int(events.time_us[e])
        later_id = time == at and events.order[e] > own
        upto += bool(events.purchase[e] and time <= at and not later_id)
        for window, width in enumerate(WINDOWS_US):
            inside = end - width < time <= end and not (delay == 0 and later_id)
            if events.purchase[e] and inside:
                count[window] += 1
                cents[window] += int(events.cents[e])
                fraud[window] += int(e in known_us and known_us[e] <= at)
    return [count, cents, fraud, upto]

"""Window sums over hand-made entries, and the refusal of damaged values."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from tollgate.features.spec import Entity
from tollgate.features.windows import (
    ENTRY,
    HEADER,
    Entries,
    Rows,
    expand,
    unpack_values,
    window_sums,
)

CARD = Entity(
    name="card",
    key="card_id",
    delay_us=0,
    windows_us=(10, 30),
    horizon_us=40,
    cap=1024,
)


def entries(*segments: list[tuple[int, int]], **columns: list[int]) -> Entries:
    """Entities with events (time, id number); more columns as named, else as below."""
    flat = [event for segment in segments for event in segment]
    count = len(flat)
    return Entries(
        starts=np.cumsum([0, *map(len, segments)]),
        time_us=np.array([time for time, _ in flat], np.int64),
        order_hi=np.array([number for _, number in flat], np.uint64),
        order_lo=np.zeros(count, np.uint64),
        id_hash=np.zeros(count, np.uint64),
        cents=np.array(columns.get("cents", [100] * count), np.int64),
        purchase=np.array(columns.get("purchase", [1] * count), np.bool_),
        fraud=np.array(columns.get("fraud", [0] * count), np.bool_),
        label_time_us=np.array(columns.get("label_time_us", [0] * count), np.int64),
    )


def rows(*reads: tuple[int, int, int]) -> Rows:
    """Moments to read at: (entity, time, id number)."""
    entity, time, number = np.array(reads, np.int64).reshape(-1, 3).T
    return Rows(
        entity=entity,
        time_us=time,
        order_hi=number.astype(np.uint64),
        order_lo=np.zeros(len(reads), np.uint64),
        id_hash=np.zeros(len(reads), np.uint64),
    )


def test_window_is_open_before_and_closed_at_its_own_id() -> None:
    """t - w is out; at t itself ids up to the row's own count, later ones do not."""
    card = entries([(90, 1), (91, 1), (100, 1), (100, 2), (100, 3), (101, 1)])
    sums = window_sums(card, rows((0, 100, 2), (0, 100, 3), (0, 100, 9)), entity=CARD)
    assert sums.count[:, 0].tolist() == [3, 4, 4]
    assert sums.count[:, 1].tolist() == [4, 5, 5]
    assert sums.cents[:, 0].tolist() == [300, 400, 400]
    assert sums.upto.tolist() == [4, 5, 5]


def test_delayed_window_ends_delay_before_the_row() -> None:
    """(t - delay - w, t - delay]: its end is closed for every id."""
    shop = msgspec.structs.replace(CARD, delay_us=7)
    events = entries([(83, 1), (84, 9), (93, 1), (93, 9), (94, 1), (100, 1)])
    sums = window_sums(events, rows((0, 100, 1)), entity=shop)
    assert sums.count.tolist() == [[3, 4]]
    assert sums.upto.tolist() == [6]


def test_fraud_counts_once_its_label_is_known() -> None:
    """Known at t counts at t; of three frauds, those known later are left out."""
    shop = msgspec.structs.replace(CARD, delay_us=7)
    events = entries(
        [(90, 1), (91, 1), (92, 1), (93, 1)],
        fraud=[1, 1, 1, 0],
        label_time_us=[90, 100, 101, 0],
    )
    reads = rows((0, 99, 1), (0, 100, 1), (0, 101, 1))
    sums = window_sums(events, reads, entity=shop)
    assert sums.fraud[:, 0].tolist() == [1, 2, 3]
    assert sums.count[:, 0].tolist() == [3, 4, 4]


def test_waiting_label_is_no_purchase() -> None:
    """A label whose purchase has not come counts neither as one nor as a fraud."""
    events = entries([(95, 1), (96, 1)], purchase=[1, 0], fraud=[0, 1])
    sums = window_sums(events, rows((0, 100, 1)), entity=CARD)
    assert (sums.count.tolist(), sums.fraud.tolist()) == ([[1, 1]], [[0, 0]])
    assert (sums.cents.tolist(), sums.upto.tolist()) == ([[100, 100]], [1])


def test_entities_do_not_mix() -> None:
    """Each row reads its own entity, an empty one too, in any order of rows."""
    events = entries([(99, 1)], [], [(50, 1), (98, 1), (99, 2)])
    reads = rows((2, 100, 1), (1, 100, 1), (0, 100, 1), (2, 98, 0))
    sums = window_sums(events, reads, entity=CARD)
    assert sums.count.tolist() == [[2, 2], [0, 0], [1, 1], [0, 0]]
    assert sums.upto.tolist() == [3, 0, 1, 1]


def test_nothing_to_read_is_no_error() -> None:
    """No rows, no entries, or neither: sums of the right shape."""
    assert window_sums(entries([]), rows(), entity=CARD).count.shape == (0, 2)
    assert window_sums(entries([(1, 1)]), rows(), entity=CARD).count.shape == (0, 2)
    sums = window_sums(entries([]), rows((0, 5, 1)), entity=CARD)
    assert sums.count.tolist() == [[0, 0]]


def test_random_entries_equal_a_loop() -> None:
    """Vectorised sums equal a comparison of every row with every entry."""
    source = np.random.default_rng(7)
    for _ in range(60):
        delay = int(source.integers(0, 2) * source.integers(0, 15))
        entity = msgspec.structs.replace(CARD, delay_us=delay)
        segments = [
            sorted({tuple(pair) for pair in source.integers(0, 60, (n, 2)).tolist()})
            for n in source.integers(0, 40, 4)
        ]
        count = sum(map(len, segments))
        events = entries(
            *segments,
            cents=source.integers(0, 999, count).tolist(),
            purchase=(source.random(count) < 0.9).tolist(),
            fraud=(source.random(count) < 0.4).tolist(),
            label_time_us=source.integers(0, 90, count).tolist(),
        )
        reads = rows(*source.integers(0, (4, 70, 60), (25, 3)).tolist())
        sums = window_sums(events, reads, entity=entity)
        for n in range(25):
            wanted = by_loop(events, reads, n, entity=entity)
            got = [sums.count[n], sums.cents[n], sums.fraud[n]]
            assert [one.tolist() for one in got] == wanted


def by_loop(events: Entries, reads: Rows, n: int, *, entity: Entity) -> list[list[int]]:
    """Sum row `n`'s windows from their definition."""
    at, own = int(reads.time_us[n]), int(reads.order_hi[n])
    end = at - entity.delay_us
    count, cents, fraud = ([0, 0] for _ in range(3))
    for e in range(*events.starts[reads.entity[n] : reads.entity[n] + 2]):
        time = int(events.time_us[e])
        late_id = entity.delay_us == 0 and time == at and events.order_hi[e] > own
        for window, width in enumerate(entity.windows_us):
            if events.purchase[e] and end - width < time <= end and not late_id:
                count[window] += 1
                cents[window] += int(events.cents[e])
                fraud[window] += int(events.fraud[e] and events.label_time_us[e] <= at)
    return [count, cents, fraud]


def packed(*times: int) -> bytes:
    """Pack a sound value of purchases at some times; its sum by plain Python."""
    body = np.zeros(len(times), ENTRY)
    body["time_us"], body["flags"], body["cents"] = times, 1, 7
    header = np.zeros(1, HEADER)
    header["version"], header["entry_bytes"] = 1, ENTRY.itemsize
    header["count"], header["watermark_us"] = len(times), max(times, default=0)
    rest = header.tobytes() + body.tobytes()
    words = (rest[at : at + 4] for at in range(0, len(rest), 4))
    total = sum(int.from_bytes(word, "little") for word in words)
    header["checksum"] = total % 2**32
    return header.tobytes() + body.tobytes()


def test_layout_is_32_and_48_bytes() -> None:
    """Lua counts in these sizes."""
    assert (HEADER.itemsize, ENTRY.itemsize) == (32, 48)


def test_values_unpack_side_by_side() -> None:
    """Two values and an entity never seen keep their entries apart."""
    values = unpack_values([packed(5, 6), b"", packed(7)])
    assert values.entries.starts.tolist() == [0, 2, 2, 3]
    assert values.entries.time_us.tolist() == [5, 6, 7]
    assert values.watermark_us.tolist() == [6, 0, 7]
    assert values.corrupt.tolist() == [False] * 3


@pytest.mark.parametrize("at", range(32 + 48))
def test_any_flipped_byte_marks_its_value_and_no_other(at: int) -> None:
    """Header, checksum and entries: one changed byte is damage, and left out."""
    damaged = bytearray(packed(5))
    damaged[at] ^= 1 << at % 8
    values = unpack_values([packed(1), bytes(damaged), b"", packed(2, 3)])
    assert values.corrupt.tolist() == [False, True, False, False]
    assert values.entries.starts.tolist() == [0, 1, 1, 1, 3]
    assert values.entries.time_us.tolist() == [1, 2, 3]


@pytest.mark.parametrize("length", [1, 12, 31, 33, 32 + 47, 32 + 49])
def test_value_of_a_wrong_length_is_damaged(length: int) -> None:
    """Cut short or grown: damaged, whatever its header says."""
    value = (packed(5) + bytes(9))[:length]
    assert unpack_values([value]).corrupt.tolist() == [True]


def test_expand_lists_every_position() -> None:
    """Ranges become pairs, empty ranges nothing."""
    owner, position = expand(
        np.array([4, 5, 6]), np.array([0, 3, 7]), np.array([2, 3, 9])
    )
    assert owner.tolist() == [4, 4, 6, 6]
    assert position.tolist() == [0, 1, 7, 8]

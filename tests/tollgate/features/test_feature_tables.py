"""Rows of tables: what is packed comes back, and what holds is the newest by then."""

from __future__ import annotations

import numpy as np
import pytest

from tollgate.features.feature_tables import (
    SLOTS,
    Slots,
    TableRows,
    join,
    pack_slots,
    unpack_slots,
)
from tollgate.features.spec.spec_definition import Table

DAY_US = 86_400_000_000


def table(max_age_us: int = 0, layout: int = 7) -> Table:
    """A table of two columns."""
    return Table(
        name="nightly",
        entity=0,
        columns=("limit", "risk"),
        max_age_us=max_age_us,
        refresh_us=0,
        layout=layout,
    )


def rows_of(*rows: tuple[bytes, int, float]) -> TableRows:
    """Rows of id, day and number; the other column is its negative."""
    numbers = np.array([[-number, number] for _, _, number in rows]).reshape(-1, 2)
    return TableRows(
        source="a test",
        ids=[one for one, _, _ in rows],
        valid_us=np.array([day * DAY_US for _, day, _ in rows], np.int64),
        values=numbers,
    )


def slots_of(rows: TableRows) -> tuple[list[bytes], Slots]:
    """Lay rows out by id."""
    ids = sorted(set(rows.ids))
    code = np.array([ids.index(one) for one in rows.ids], np.int64)
    made = Slots.empty(len(ids), rows.values.shape[1])
    return ids, made.joined(code, valid_us=rows.valid_us, values=rows.values)


def newest(rows: TableRows, one: bytes, time_us: int, max_age_us: int) -> list[float]:
    """Look at every row, one after the other."""
    best, best_us = [np.nan, np.nan], -1
    for own, valid_us, values in zip(
        rows.ids, rows.valid_us.tolist(), rows.values.tolist(), strict=True
    ):
        if own == one and best_us < valid_us <= time_us:
            best, best_us = values, valid_us
    old = max_age_us and time_us - best_us > max_age_us
    return [np.nan, np.nan] if old else best


@pytest.mark.parametrize("max_age_us", [0, 2 * DAY_US])
@pytest.mark.parametrize("seed", range(5))
def test_offline_and_packed_take_the_newest_row_by_then(
    seed: int, max_age_us: int
) -> None:
    """Both against a loop over all rows, at the very moments and next to them."""
    draw = np.random.default_rng(seed)
    pairs = {
        (b"c%d" % draw.integers(9), int(draw.integers(1, 40))) for _ in range(SLOTS * 5)
    }
    few: dict[bytes, int] = {}
    for one, _ in pairs:
        few[one] = few.get(one, 0) + 1
    chosen = [pair for pair in sorted(pairs) if few[pair[0]] <= SLOTS]
    rows = rows_of(*((one, day, float(draw.random())) for one, day in chosen))
    asked = [b"c%d" % draw.integers(12) for _ in range(300)]
    time_us = draw.integers(1, 45, 300) * DAY_US + draw.integers(-1, 2, 300)
    kind = table(max_age_us)
    expected = [
        newest(rows, one, at_us, max_age_us)
        for one, at_us in zip(asked, time_us.tolist(), strict=True)
    ]
    np.testing.assert_array_equal(join(kind, rows, asked, time_us), expected)
    ids, slots = slots_of(rows)
    read = unpack_slots(kind, [*pack_slots(kind, slots), b""])
    code = np.array([ids.index(one) if one in ids else len(ids) for one in asked])
    np.testing.assert_array_equal(read.as_of(kind, code, time_us), expected)
    assert not read.corrupt.any()


def test_a_row_of_a_moment_that_is_there_takes_its_place_and_the_newest_stay() -> None:
    """Six days of one id, one of them twice: four days are stored, the later number."""
    old = rows_of(*((b"a", day, float(day)) for day in range(1, 6)))
    new = rows_of((b"a", 4, 40.0), (b"a", 6, 6.0))
    (_, first), (_, second) = slots_of(old), slots_of(new)
    joined = first.with_slots(second)
    assert (joined.valid_us[0] // DAY_US).tolist() == [3, 4, 5, 6]
    assert joined.values[0, :, 1].tolist() == [3.0, 40.0, 5.0, 6.0]


def test_damaged_and_foreign_values_hold_nothing() -> None:
    """Every byte of a value is under its checksum; another layout is not read."""
    kind = table()
    _, slots = slots_of(rows_of((b"a", 1, 0.25)))
    (value,) = pack_slots(kind, slots)
    broken = [
        value[:at] + bytes([value[at] ^ 1 << at % 8]) + value[at + 1 :]
        for at in range(len(value))
    ]
    foreign = [value[:-1], value + b"\0", b"?", b"0.5"]
    (other,) = pack_slots(table(layout=8), slots)
    read = unpack_slots(kind, [value, *broken, *foreign, other, b""])
    assert read.corrupt.tolist() == [False] + [True] * (len(value) + 5) + [False]
    late_us = np.full(len(read.corrupt), 9 * DAY_US)
    taken = read.as_of(kind, np.arange(len(read.corrupt)), late_us)
    assert taken[0].tolist() == [-0.25, 0.25]
    assert np.isnan(taken[1:]).all()


def test_no_rows_hold_nothing() -> None:
    """An empty table is a table."""
    assert np.isnan(join(table(), rows_of(), [b"a"], np.array([DAY_US]))).all()

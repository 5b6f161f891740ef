"""Bad rows and cells of readings are left out, counted and named; the others go on."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from tollgate.errors import ArgumentError, InputError
from tollgate.product.reading_rows import (
    ONLY_MACHINE,
    ReadingColumns,
    ReadingRows,
    far_times,
    training_rows,
    usable_rows,
)
from tollgate.product.reading_table import ReadingChoices, read_readings
from tollgate.product.sensors import choose_sensors
from tollgate.product.table_reading import read_table

MINUTE_US = 60_000_000
START_US = 1_700_000_000_000_000
# Of 200 readings of one machine, each and the next.
PAIRS = np.arange(199), np.arange(1, 200)


def readings(count: int = 200, **columns: object) -> pl.DataFrame:
    """Return readings of machine a, one each minute."""
    times = [datetime(2024, 1, 1) + timedelta(minutes=at) for at in range(count)]
    values = np.random.default_rng(0).normal(10, 1, count).round(2)
    given = {"t": times, "m": ["a"] * count, "v": values, **columns}
    return pl.DataFrame(given)


def test_times_far_from_all_others_are_wrong_clocks() -> None:
    """Of 1,000 minutes, one in 1970 and three in 2099; two days' pause is no error."""
    times = START_US + np.arange(1_000) * MINUTE_US
    assert not far_times(times).any()
    paused = times.copy()
    paused[500:] += 2 * 1_440 * MINUTE_US
    assert not far_times(paused).any()
    times[17] = 0
    times[[3, 600, 999]] = 4_070_908_800_000_000
    assert np.flatnonzero(far_times(times)).tolist() == [3, 17, 600, 999]
    times[::10] = 0  # a tenth is no exception
    assert not far_times(times)[::10].any()


def test_a_wrong_clock_is_named_and_left_out() -> None:
    """Row numbers begin at 1, as in the messages of other tables."""
    table = readings()
    times = table["t"].scatter([4, 9], [datetime(1970, 1, 1), datetime(2099, 1, 1)])
    found = usable_rows(table.with_columns(t=times), ReadingColumns("t", "m"))
    assert sorted(set(range(200)) - set(found.rows.tolist())) == [4, 9]
    assert "1 of 200 rows have no time between 2000 and 2200" in found.notes[0]
    assert "1970-01-01 00:00:00 in row 5" in found.notes[0]
    assert "row 10 of a at 2099-01-01T00:00:00" in found.notes[1]


def test_many_wrong_clocks_are_refused() -> None:
    """A quarter of the readings, of one machine, begins again in 2001."""
    table = readings(400, m=["a", "b", "c", "d"] * 100)
    reset = pl.when(pl.col("m") == "b").then(pl.col("t").dt.offset_by("-23y"))
    wrong = table.with_columns(t=reset.otherwise(pl.col("t")))
    with pytest.raises(ArgumentError, match=r"'t': 100 of 400 readings, such as of b"):
        usable_rows(wrong, ReadingColumns("t", "m"))
    texts = table["t"].dt.strftime("%Y-%m-%d %H:%M:%S")
    texts = texts.scatter(list(range(0, 200, 2)), "soon")
    with pytest.raises(ArgumentError, match="100 of 400 rows have no time"):
        usable_rows(table.with_columns(t=texts), ReadingColumns("t", "m"))


def test_repeated_rows_count_once() -> None:
    """Ids come from machine and time; another value at the same time has a number."""
    table = readings(30)
    other = table[5:6].with_columns(v=pl.lit(99.0))
    found = usable_rows(pl.concat([table, table[:2], other]), ReadingColumns("t", "m"))
    assert found.rows.tolist() == [*range(30), 32]
    at_us = int(table["t"].cast(pl.Int64)[5])
    assert found.ids[5] == f"a@{at_us}"
    assert found.ids[30] == f"a@{at_us}#2"
    assert "2 rows repeat an earlier row, such as row 31" in found.notes[0]
    assert "such as row 33: they count as further readings" in found.notes[1]


def test_a_reading_recorded_twice_has_its_first_row() -> None:
    """By its id; a column in which most ids come again holds no ids."""
    table = readings(40, id=[f"r{at}" for at in range(40)])
    twice = pl.concat([table, table[3:4].with_columns(v=pl.lit(0.0))])
    found = usable_rows(twice, ReadingColumns("t", "m", "id"))
    assert found.rows.tolist() == list(range(40))
    assert "row 41, 'r3': left out" in found.notes[0]
    with pytest.raises(ArgumentError, match="'m' has the same id in two rows"):
        usable_rows(table, ReadingColumns("t", "m", "m"))


def test_a_table_without_machines_is_of_one() -> None:
    """Unless readings at the same times show that there are several."""
    found = usable_rows(readings().drop("m"), ReadingColumns("t"))
    assert set(found.machines) == {ONLY_MACHINE}
    both = pl.concat([readings().drop("m")] * 2)
    with pytest.raises(ArgumentError, match="so they are of several machines"):
        usable_rows(both, ReadingColumns("t"))


def test_a_column_of_machines_is_not_overlooked(tmp_path: Path) -> None:
    """Machines that report in turn have different times, but their names show them."""
    path = tmp_path / "two.parquet"
    readings(m=["a", "b"] * 100).write_parquet(path)
    choices = ReadingChoices(product="two", table=path, machine=None, time="t")
    with pytest.raises(ArgumentError, match="m may have the ids of machines"):
        read_readings(choices)


def test_the_first_70_percent_are_trained_on() -> None:
    """Of the readings, whatever pause is between them; a time is on one side."""
    times = np.concatenate([np.arange(50), 10_000 + np.arange(50)])
    assert np.flatnonzero(training_rows(times)).tolist() == list(range(70))
    assert training_rows(np.repeat(np.arange(10), 10)).sum() == 70


def test_bad_cells_of_a_sensor_are_missing_and_named() -> None:
    """A text and infinity; a column that is mostly text is no sensor."""
    texts = readings()["v"].cast(pl.String).scatter([3, 8], ["ERR", "-inf"])
    mostly = texts.clone().scatter(list(range(150)), "off")
    found = choose_sensors(
        readings().with_columns(v=texts, w=mostly),
        ["v", "w"],
        rows=np.arange(200),
        pairs=PAIRS,
        keep=(),
    )
    assert list(found.values) == ["v"]
    assert np.flatnonzero(found.values["v"].is_null().to_numpy()).tolist() == [3, 8]
    assert found.excluded == {"w": "holds texts, such as 'off'"}
    assert (
        "v: 2 cells are no numbers in its range, such as 'ERR' in row 4"
        in (found.notes[0])
    )


def test_one_absurd_number_sets_no_range() -> None:
    """The range follows from the others: at most 14, so 1,000 on both sides."""
    table = readings().with_columns(v=readings()["v"].scatter(60, 1e30))
    found = choose_sensors(table, ["v"], rows=np.arange(200), pairs=PAIRS, keep=())
    assert found.ranges["v"] == (-1_000.0, 1_000.0)
    assert found.values["v"].null_count() == 1
    assert "(1e+30 in row 61)" in found.notes[0]
    # A spike of a fault stays: 20 times as large as usual.
    spike = readings().with_columns(v=readings()["v"].scatter(60, 200.0))
    found = choose_sensors(spike, ["v"], rows=np.arange(200), pairs=PAIRS, keep=())
    assert found.notes == ()
    assert found.values["v"][60] == 200.0


@pytest.mark.parametrize(
    "name", ["anomaly", "is_fault", "Label", "class", "changepoint", "is anomaly"]
)
def test_labels_are_no_sensors(name: str) -> None:
    """Unless the user names the column; a number that is not a class is a sensor."""
    flags = [float(at % 50 == 0) for at in range(200)]
    table = readings().with_columns(pl.Series(name, flags))
    found = choose_sensors(
        table, ["v", name], rows=np.arange(200), pairs=PAIRS, keep=()
    )
    assert list(found.values) == ["v"]
    assert "looks like a label, not a sensor: it is 0, 1" in found.excluded[name]
    found = choose_sensors(
        table, ["v", name], rows=np.arange(200), pairs=PAIRS, keep=(name,)
    )
    assert list(found.values) == ["v", name]
    smooth = table.with_columns(pl.col("v").alias(name))
    assert (
        name
        in choose_sensors(
            smooth, [name], rows=np.arange(200), pairs=PAIRS, keep=()
        ).values
    )


def test_counters_are_no_sensors() -> None:
    """Of two machines that take turns, hours only rise; wear falls once, and stays."""
    times = pl.Series([at // 2 for at in range(200)])
    machines = pl.Series([f"m{at % 2}" for at in range(200)])
    hours = np.arange(200) // 2 * 0.1 + np.arange(200) % 2 * 5_000
    fuel = 900.0 - np.arange(200) // 6
    table = pl.DataFrame({"hours": hours, "fuel": fuel, "wear": hours})
    table = table.with_columns(wear=pl.Series(hours).scatter(150, 0.0))
    rows = ReadingRows(
        ids=machines, times_us=times, machines=machines, rows=np.arange(200), notes=()
    )
    pairs = rows.pairs()
    found = choose_sensors(
        table, table.columns, rows=np.arange(200), pairs=pairs, keep=()
    )
    assert list(found.values) == ["wear"]
    assert found.excluded["hours"].startswith("only rises, like a counter")
    assert found.excluded["fuel"].startswith("only falls, like a counter")
    every = choose_sensors(
        table, table.columns, rows=np.arange(200), pairs=pairs, keep=("hours",)
    )
    assert list(every.values) == ["hours", "wear"]
    steady = table.with_columns(hours=pl.Series([0.0] * 100 + [1.0] * 100))
    switch = choose_sensors(
        steady, ["hours"], rows=np.arange(200), pairs=pairs, keep=()
    )
    assert list(switch.values) == ["hours"]


def test_of_many_columns_those_that_repeat_least_are_sensors() -> None:
    """16 signals, and a copy of each with some noise: one of each pair is taken."""
    random = np.random.default_rng(1)
    signals = random.normal(size=(2_000, 16))
    copies = signals + random.normal(scale=0.01, size=signals.shape)
    columns = {
        **{f"a{at}": signals[:, at] for at in range(16)},
        **{f"b{at}": copies[:, at] for at in range(16)},
    }
    table = pl.DataFrame(columns)
    found = choose_sensors(
        table,
        table.columns,
        rows=np.arange(2_000),
        pairs=(np.arange(1_999), np.arange(1, 2_000)),
        keep=("b3", "b7"),
    )
    assert sorted(int(name[1:]) for name in found.values) == list(range(16))
    assert {"b3", "b7"} <= set(found.values)
    assert "16 of 32 columns of numbers are sensors" in found.notes[-1]


def test_a_csv_without_names_is_refused(tmp_path: Path) -> None:
    """Its first reading would be lost as names."""
    path = tmp_path / "server.csv"
    path.write_text("0.5,1.5,0.25\n0.5,1.25,0.75\n")
    with pytest.raises(InputError, match="line 1 has no names of columns"):
        read_table(path)

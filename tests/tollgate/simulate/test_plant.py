"""A simulated plant: readings that a user could have, and faults that can be seen."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from tollgate.errors import InputError
from tollgate.simulate.plant import (
    SENSORS,
    Plant,
    faults_frame,
    simulate_plant,
)


@pytest.fixture(scope="module")
def plant() -> Plant:
    """Six machines for twelve days, a reading each 5 minutes."""
    return simulate_plant(machines=6, days=12, interval_s=300, faults=18, seed=4)


def test_equal_arguments_give_equal_plants(plant: Plant) -> None:
    """And another seed another plant."""
    again = simulate_plant(machines=6, days=12, interval_s=300, faults=18, seed=4)
    other = simulate_plant(machines=6, days=12, interval_s=300, faults=18, seed=5)
    assert again.readings.equals(plant.readings)
    assert again.faults == plant.faults
    assert not other.readings.equals(plant.readings)


def test_each_machine_reports_at_its_interval(plant: Plant) -> None:
    """12 days have 3,456 intervals of 5 minutes; ids follow the time."""
    readings = plant.readings
    assert readings["event_time"].is_sorted()
    assert readings["reading_id"].n_unique() == len(readings) == 6 * 3_456
    assert readings["reading_id"].to_list() == sorted(readings["reading_id"])
    for (_,), own in readings.group_by("machine"):
        steps = own["event_time"].diff().drop_nulls().dt.total_seconds().unique()
        assert steps.to_list() == [300]
        assert own.null_count().sum_horizontal().item() == 0


def test_faults_are_in_the_second_half_and_apart(plant: Plant) -> None:
    """So that a detector can learn from the first."""
    faults = faults_frame(plant)
    assert len(faults) == 18
    middle = (
        plant.readings["event_time"].min()
        + (plant.readings["event_time"].max() - plant.readings["event_time"].min()) / 2
    )
    assert (faults["begin"] >= middle.replace(second=0, microsecond=0)).all()
    for (_,), own in faults.group_by("machine"):
        ordered = own.sort("begin")
        assert (ordered["end"][:-1] <= ordered["begin"][1:]).all()


def test_each_kind_of_fault_changes_its_sensors(plant: Plant) -> None:
    """Compared with the same hours of the same machine without any fault."""
    sound = simulate_plant(machines=6, days=12, interval_s=300, faults=0, seed=4)
    # Faults are drawn first, so compare with the machine's own time before the fault.
    assert {one.kind for one in plant.faults} == {
        "bearing",
        "leak",
        "cooling",
        "stuck",
    }
    for fault in plant.faults:
        own = plant.readings.filter(pl.col("machine") == fault.machine)
        during = own.filter(pl.col("event_time").is_between(fault.begin, fault.end))
        late = during[len(during) // 2 :]
        vibration = late["vibration"].drop_nulls()
        if fault.kind == "stuck":
            assert vibration[:-2].n_unique() == 1
        elif fault.kind == "leak":
            assert late["pressure"].mean() < own["pressure"].min() + 0.8
        elif fault.kind == "cooling":
            assert late["temperature"].max() > own["temperature"].quantile(0.9)
        else:
            assert vibration.max() > own["vibration"].quantile(0.95)
    assert len(sound.faults) == 0


def test_sensors_follow_the_load(plant: Plant) -> None:
    """On workdays at noon machines are warmer than on Sunday at noon."""
    first = plant.readings.filter(pl.col("event_time") < pl.datetime(2024, 3, 10, 23))
    noon = first.filter(pl.col("event_time").dt.hour() == 12)
    weekday = noon["event_time"].dt.weekday()
    for name, sign in zip(SENSORS, (1, -1, 1), strict=True):
        work = noon.filter(weekday <= 5)[name].mean()
        rest = noon.filter(weekday == 7)[name].mean()
        assert sign * (work - rest) > 0.1


def test_a_plant_without_faults_has_an_empty_table() -> None:
    """With the columns and types of the others."""
    frame = faults_frame(simulate_plant(machines=1, days=1, faults=0))
    assert frame.columns == ["machine", "kind", "begin", "end"]
    assert len(frame) == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"machines": 0}, "machines: 0 is not within 1 … 999"),
        ({"interval_s": 0}, "interval_s: 0 is not within 1 … 3,600"),
        ({"days": 0.5}, "days: 0.5 is not within 1 … 3,660"),
        ({"faults": -1}, "faults: -1 is not within 0 … "),
        ({"seed": -1}, "seed: -1 is not within 0 … "),
        ({"machines": 999, "days": 100, "interval_s": 1}, "readings: "),
    ],
)
def test_bad_arguments_are_refused(arguments: dict[str, float], words: str) -> None:
    """With the name and the range."""
    with pytest.raises(InputError, match=words):
        simulate_plant(**arguments)  # type: ignore[arg-type]


def test_readings_have_the_decimals_of_their_sensors(plant: Plant) -> None:
    """One for temperatures, two for the others."""
    for name, decimals in (("temperature", 1), ("pressure", 2), ("vibration", 2)):
        values = plant.readings[name].to_numpy()
        np.testing.assert_array_equal(values, np.round(values, decimals))

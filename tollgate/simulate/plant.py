"""
Simulate the sensors of a plant: machines under a daily load, and how some of them fail.

Each machine reports temperature, pressure and vibration. All three follow its load,
which has the rhythm of two shifts and no weekend, and the temperature lags behind it.
So a fixed threshold either sees little or alarms whenever the load is high. A fault
changes one or two of the sensors for some hours; a broken sensor repeats its value.
"""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Mapping
from types import MappingProxyType

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from tollgate.errors import InputError

F64 = npt.NDArray[np.float64]

SENSORS = ("temperature", "pressure", "vibration")  # °C, bar, mm/s
_DECIMALS = MappingProxyType({"temperature": 1, "pressure": 2, "vibration": 2})
MOST_READINGS = 10_000_000
_START = datetime.datetime(2024, 3, 4)  # a Monday
_S_PER_DAY = 86_400
_LEARNING_SHARE = 0.5  # no fault begins earlier, so that a detector can learn
_LAG_S = 1_800.0  # of the temperature behind the load
_LONGEST_S = 6 * 3_600
_FAULT_KINDS = ("bearing", "leak", "cooling", "stuck")


class Fault(msgspec.Struct, frozen=True):
    """
    A fault of one machine.

    Attributes:
        machine: Id of the machine.
        kind: `bearing` (vibration and temperature rise), `leak` (pressure falls),
            `cooling` (temperature rises) or `stuck` (vibration repeats its value).
        begin, end: First time with the fault, and first time without it.
    """

    machine: str
    kind: str
    begin: datetime.datetime
    end: datetime.datetime


class Plant(msgspec.Struct, frozen=True, eq=False):
    """
    Readings of a plant, and the faults in them.

    Attributes:
        readings: In the order of time: reading_id ("R0000001"), machine ("M01"),
            event_time (µs, UTC, without a zone) and the sensors.
        faults: In the order of their beginning.
    """

    readings: pl.DataFrame
    faults: tuple[Fault, ...]


def simulate_plant(
    *,
    machines: int = 8,
    days: float = 14.0,
    interval_s: int = 60,
    faults: int = 24,
    seed: int = 0,
) -> Plant:
    """
    Simulate readings; the same arguments give the same plant.

    Args:
        machines: Number of machines, 1 to 999.
        days: Length of the time.
        interval_s: Time between two readings of a machine.
        faults: Number of faults, all in the second half of the time.
        seed: Seed of the whole simulation, at least 0.

    Raises:
        InputError: An argument is out of range.
    """
    rows = int(days * _S_PER_DAY) // max(interval_s, 1)
    _require("machines", machines, least=1, most=999)
    _require("interval_s", interval_s, least=1, most=3_600)
    _require("days", days, least=1, most=3_660)
    _require("faults", faults, least=0, most=rows // 100 * machines)
    _require("seed", seed, least=0, most=2**63 - 1)
    _require("readings", rows * machines, least=1, most=MOST_READINGS)
    random = np.random.default_rng([seed, 3])
    planned = _plan_faults(
        random, machines=machines, rows=rows, interval_s=interval_s, faults=faults
    )
    frames = []
    for number in range(machines):
        columns = _sensors(random, rows, interval_s=interval_s)
        for kind, first, last in planned.get(number, []):
            _apply_fault(columns, kind, slice(first, last))
        # Machines report one after the other, not all in the same instant.
        offset_us = number * interval_s * 1_000_000 // machines
        at_us = np.arange(rows) * (interval_s * 1_000_000) + offset_us
        frames.append(
            pl.DataFrame(
                {
                    "machine": [_name(number)] * rows,
                    "event_time": pl.Series(at_us).cast(pl.Duration("us")) + _START,
                    **{
                        name: np.round(columns[name], decimals)
                        for name, decimals in _DECIMALS.items()
                    },
                }
            )
        )
    readings = pl.concat(frames).sort("event_time", "machine")
    ids = [f"R{number:07}" for number in range(1, len(readings) + 1)]
    readings.insert_column(0, pl.Series("reading_id", ids))
    found = [
        Fault(
            machine=_name(number),
            kind=kind,
            begin=_START + datetime.timedelta(seconds=first * interval_s),
            end=_START + datetime.timedelta(seconds=last * interval_s),
        )
        for number, own in planned.items()
        for kind, first, last in own
    ]
    found.sort(key=lambda one: (one.begin, one.machine))
    return Plant(readings=readings, faults=tuple(found))


def faults_frame(plant: Plant) -> pl.DataFrame:
    """Return the faults as a table: machine, kind, begin, end."""
    columns = {
        name: [getattr(one, name) for one in plant.faults]
        for name in ("machine", "kind", "begin", "end")
    }
    times = {"begin": pl.Datetime("us"), "end": pl.Datetime("us")}
    texts = {"machine": pl.String, "kind": pl.String}
    return pl.DataFrame(columns, schema={**texts, **times})


def _require(name: str, value: float, *, least: int, most: int) -> None:
    if not least <= value <= most:
        raise InputError(name, f"{value:g} is not within {least} … {most:,}")


def _name(number: int) -> str:
    return f"M{number + 1:02}"


def _sensors(
    random: np.random.Generator, rows: int, *, interval_s: int
) -> dict[str, F64]:
    """Simulate one machine in good order; float64 [rows] by sensor."""
    load = _load(random, rows, interval_s=interval_s)
    warm = _lagged(load, interval_s / _LAG_S)
    base = random.normal([55.0, 6.0, 2.0], [4.0, 0.3, 0.25])
    drift = _wander(random, rows, step=interval_s / (7 * _S_PER_DAY))
    return {
        "temperature": base[0] + 14 * warm + 1.5 * drift + random.normal(0, 0.4, rows),
        "pressure": base[1] - 0.35 * load + random.normal(0, 0.04, rows),
        "vibration": (base[2] + 1.2 * load) * np.exp(random.normal(0, 0.06, rows)),
    }


def _load(random: np.random.Generator, rows: int, *, interval_s: int) -> F64:
    """Simulate the load of a machine, about 0.1 at rest and 0.9 at work."""
    at_s = np.arange(rows) * interval_s
    hour = at_s % _S_PER_DAY / 3_600
    day = at_s // _S_PER_DAY % 7
    begin, end = random.normal([6.0, 22.0], 0.3)
    ramps = 1 / (1 + np.exp(-4 * (hour - begin))) - 1 / (1 + np.exp(-4 * (hour - end)))
    working = np.where(day < 5, ramps, 0.0)
    jobs = _wander(random, rows, step=interval_s / 7_200.0)
    return np.asarray(np.clip(0.1 + 0.7 * working * (1 + 0.15 * jobs), 0.0, 1.2))


def _lagged(values: F64, share: float) -> F64:
    """Follow values with a lag: each step closes a share of the distance."""
    share = min(share, 1.0)
    steps = itertools.accumulate(
        values.tolist(), lambda now, target: now + share * (target - now)
    )
    return np.fromiter(steps, np.float64, len(values))


def _wander(random: np.random.Generator, rows: int, *, step: float) -> F64:
    """Draw a process that returns to 0, of variance 1; `step` is its rate per row."""
    rest = 1 - min(step, 1.0)
    noise = random.normal(0, 1, rows)
    noise[1:] *= np.sqrt(1 - rest**2)
    steps = itertools.accumulate(noise.tolist(), lambda now, more: rest * now + more)
    return np.fromiter(steps, np.float64, rows)


def _plan_faults(
    random: np.random.Generator,
    *,
    machines: int,
    rows: int,
    interval_s: int,
    faults: int,
) -> Mapping[int, list[tuple[str, int, int]]]:
    """
    Place faults that do not touch each other.

    Returns:
        By machine: kind, first row, and the row after the last.
    """
    first = int(rows * _LEARNING_SHARE)
    slots = -(-faults // machines)
    width = (rows - first) // max(slots, 1)
    longest = min(_LONGEST_S // interval_s, width // 2)
    planned: dict[int, list[tuple[str, int, int]]] = {}
    for number in range(faults):
        machine, slot = number % machines, number // machines
        length = int(random.integers(max(longest // 2, 1), longest + 1))
        begin = first + slot * width + int(random.integers(0, width - length))
        kind = _FAULT_KINDS[int(random.integers(len(_FAULT_KINDS)))]
        planned.setdefault(machine, []).append((kind, begin, begin + length))
    return planned


def _apply_fault(columns: dict[str, F64], kind: str, rows: slice) -> None:
    """Change the sensors of one machine during a fault."""
    ramp = np.minimum(1.0, np.linspace(0, 4, rows.stop - rows.start))
    if kind == "bearing":
        columns["vibration"][rows] *= 1 + 0.9 * ramp
        columns["temperature"][rows] += 4 * ramp
    elif kind == "leak":
        columns["pressure"][rows] -= 0.9 * ramp
    elif kind == "cooling":
        columns["temperature"][rows] += 14 * ramp
    else:
        columns["vibration"][rows] = columns["vibration"][rows.start]

"""
Simulate machines with many related sensors, and faults that differ in kind.

The detector's choices were made on the kinds of DESIGN_KINDS and machines whose load
follows the day; UNSEEN_KINDS and machines that work in batches judge them.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

F64 = npt.NDArray[np.float64]
Bool = npt.NDArray[np.bool_]

DESIGN_KINDS = ("pair", "gain", "floor", "burst")
UNSEEN_KINDS = ("drift", "stuck", "step", "noise", "decoupled", "oscillation")
_START = datetime.datetime(2024, 3, 4)
_SHORTEST, _LONGEST = 40, 160  # readings of a fault
_WIDEST_STEP = 4.0  # size of a fault, in standard deviations of the sensor
_LEAST_STEP = 1.5


class PlantSize(msgspec.Struct, frozen=True):
    """
    A simulated plant.

    Attributes:
        sensors: Number of sensors of a machine.
        interval_s: Time between two readings of a machine.
        machines: Number of machines.
        readings: Readings of a machine; the first half is to learn from.
        faults: Faults of a machine in the second half.
        early_faults: Faults of a machine in the first half.
    """

    sensors: int
    interval_s: int
    machines: int = 4
    readings: int = 12_000
    faults: int = 8
    early_faults: int = 0


class MachineFault(msgspec.Struct, frozen=True):
    """A fault: its machine, kind, sensors, and first and last reading."""

    machine: int
    kind: str
    sensors: tuple[int, ...]
    first: int
    last: int


class SimulatedMachines(msgspec.Struct, frozen=True, eq=False):
    """Readings (machine_id, event_time, s0 …, in_window), and the faults in them."""

    table: pl.DataFrame
    sensors: tuple[str, ...]
    faults: tuple[MachineFault, ...]


def simulate_machines(
    size: PlantSize, *, seed: int, kinds: tuple[str, ...], batches: bool
) -> SimulatedMachines:
    """
    Simulate a plant; the same arguments give the same readings.

    Args:
        size: Its size.
        seed: Seed of the whole simulation.
        kinds: Kinds of faults.
        batches: True if machines work in batches; False if their load follows the day.
    """
    random = np.random.default_rng([seed, size.sensors, size.interval_s, int(batches)])
    names = tuple(f"s{at}" for at in range(size.sensors))
    # Machines of one plant are built alike: one mixture, own offsets and noise.
    factors = 2 + size.sensors // 4
    mixture = random.normal(0, 1, (size.sensors, factors))
    mixture *= random.random((size.sensors, factors)) < 0.6
    mixture[:, 0] += random.choice([-1.0, 1.0], size.sensors)
    noise = random.uniform(0.1, 0.6, size.sensors)
    unit = 10 ** random.uniform(-0.5, 2, size.sensors)
    frames, faults = [], []
    for machine in range(size.machines):
        drive = np.column_stack(
            [_drive(random, size, nth=nth, batches=batches) for nth in range(factors)]
        )
        values = drive @ mixture.T
        values = values / values.std(axis=0)
        wander = np.column_stack(
            [_wander(random, size.readings, hours=3_000) for _ in names]
        )
        values = values + noise * (random.normal(0, 1, values.shape) + 0.5 * wander)
        own = _plan(random, size, machine=machine, kinds=kinds)
        flags = np.zeros(size.readings, np.bool_)
        spread = values.std(axis=0)
        for one in own:
            _FAULTS[one.kind](values, one, spread, random)
            flags[one.first : one.last + 1] = True
        faults += own
        values = values * unit + 10 * unit * random.uniform(0.5, 1.5, size.sensors)
        at_us = np.arange(size.readings) * (size.interval_s * 1_000_000)
        frames.append(
            pl.DataFrame(
                {
                    "machine_id": [f"m{machine}"] * size.readings,
                    "event_time": pl.Series(at_us).cast(pl.Duration("us")) + _START,
                    **{
                        name: np.round(values[:, at], 3)
                        for at, name in enumerate(names)
                    },
                    "in_window": flags,
                }
            )
        )
    return SimulatedMachines(
        table=pl.concat(frames), sensors=names, faults=tuple(faults)
    )


def _drive(
    random: np.random.Generator, size: PlantSize, *, nth: int, batches: bool
) -> F64:
    """Simulate what drives the sensors of a machine; variance about 1."""
    rows = size.readings
    slow = _wander(random, rows, hours=random.uniform(30, 600))
    if nth % 2:
        return slow
    if batches:
        lengths = random.integers(30, 400, rows // 30)
        levels = random.choice([-1.2, 0.0, 0.8, 1.5], len(lengths))
        steps = np.repeat(levels, lengths)[:rows]
        return _smooth(steps, random.integers(2, 12)) + 0.3 * slow
    # A "day" is 288 readings at any interval, so that every table has several cycles.
    day = np.arange(rows) / 288
    work = np.tanh(3 * np.sin(2 * np.pi * (day + random.uniform(0, 0.1))))
    rests = (day.astype(int) % 7) >= 5
    return np.where(rests, -1.0, work) * (1 + 0.15 * slow) + 0.3 * slow


def _wander(random: np.random.Generator, rows: int, *, hours: float) -> F64:
    """Draw a process that returns to 0 within so many readings; variance 1."""
    from scipy.signal import lfilter

    rest = np.exp(-1 / hours)
    noise = random.normal(0, np.sqrt(1 - rest**2), rows)
    noise[0] /= np.sqrt(1 - rest**2)
    found: F64 = lfilter([1.0], [1.0, -rest], noise)
    return found


def _smooth(values: F64, readings: int) -> F64:
    kernel = np.ones(readings) / readings
    padded = np.concatenate([np.full(readings - 1, values[0]), values])
    return np.convolve(padded, kernel, "valid")


def _plan(
    random: np.random.Generator,
    size: PlantSize,
    *,
    machine: int,
    kinds: tuple[str, ...],
) -> list[MachineFault]:
    """Place faults of a machine in slots of each half; none touches another."""
    found = []
    half = size.readings // 2
    for begin, count in (
        (half // 5, size.early_faults),
        (half + half // 5, size.faults),
    ):
        end = half if begin < half else size.readings
        for slot in range(count):
            width = (end - begin) // count
            length = int(random.integers(_SHORTEST, min(_LONGEST, width // 2)))
            first = begin + slot * width + int(random.integers(0, width - length))
            kind = str(random.choice(kinds))
            most = 2 if kind == "pair" else int(random.integers(1, 3))
            least = 2 if kind == "pair" else 1
            many = min(max(most, least), size.sensors)
            sensors = random.choice(size.sensors, many, replace=False)
            found.append(
                MachineFault(
                    machine=machine,
                    kind=kind,
                    sensors=tuple(int(one) for one in sensors),
                    first=first,
                    last=first + length - 1,
                )
            )
    return found


def _size(random: np.random.Generator) -> float:
    sign = random.choice([-1.0, 1.0])
    return float(sign * random.uniform(_LEAST_STEP, _WIDEST_STEP))


def _offset(
    values: F64,
    fault: MachineFault,
    spread: F64,
    random: np.random.Generator,
    shape: F64,
) -> None:
    for one in fault.sensors:
        rows = slice(fault.first, fault.last + 1)
        values[rows, one] += _size(random) * spread[one] * shape


def _step(
    values: F64, fault: MachineFault, spread: F64, random: np.random.Generator
) -> None:
    length = fault.last - fault.first + 1
    _offset(values, fault, spread, random, np.ones(length))


def _drift(
    values: F64, fault: MachineFault, spread: F64, random: np.random.Generator
) -> None:
    length = fault.last - fault.first + 1
    _offset(values, fault, spread, random, 1.3 * np.linspace(0, 1, length))


def _oscillation(
    values: F64, fault: MachineFault, spread: F64, random: np.random.Generator
) -> None:
    length = fault.last - fault.first + 1
    turns = random.uniform(2, 4)
    shape = np.sin(2 * np.pi * turns * np.linspace(0, 1, length))
    _offset(values, fault, spread, random, shape)


def _noise(
    values: F64, fault: MachineFault, spread: F64, random: np.random.Generator
) -> None:
    length = fault.last - fault.first + 1
    _offset(values, fault, spread, random, 0.6 * random.normal(0, 1, length))


def _stuck(
    values: F64, fault: MachineFault, spread: F64, random: np.random.Generator
) -> None:
    for one in fault.sensors:
        values[fault.first : fault.last + 1, one] = values[fault.first, one]


def _decoupled(
    values: F64, fault: MachineFault, spread: F64, random: np.random.Generator
) -> None:
    """Replace a sensor's readings by those of another time."""
    length = fault.last - fault.first + 1
    for one in fault.sensors:
        other = int(random.integers(0, fault.first - length))
        values[fault.first : fault.last + 1, one] = values[other : other + length, one]


def _gain(
    values: F64, fault: MachineFault, spread: F64, random: np.random.Generator
) -> None:
    """Amplify a sensor's distance from its mean."""
    factor = abs(_size(random))
    for one in fault.sensors:
        mean = values[:, one].mean()
        rows = slice(fault.first, fault.last + 1)
        values[rows, one] = mean + factor * (values[rows, one] - mean)


def _floor(
    values: F64, fault: MachineFault, spread: F64, random: np.random.Generator
) -> None:
    """Let a sensor fall to a low value, with little noise."""
    length = fault.last - fault.first + 1
    for one in fault.sensors:
        low = values[:, one].mean() - abs(_size(random)) * spread[one]
        values[fault.first : fault.last + 1, one] = low + random.normal(
            0, 0.05 * spread[one], length
        )


def _burst(
    values: F64, fault: MachineFault, spread: F64, random: np.random.Generator
) -> None:
    """Add spikes to one reading in eight."""
    length = fault.last - fault.first + 1
    shape = (random.random(length) < 0.125) * random.uniform(0.8, 1.5, length)
    _offset(values, fault, spread, random, shape)


_FAULTS: dict[str, Callable[[F64, MachineFault, F64, np.random.Generator], None]] = {
    "pair": _step,
    "gain": _gain,
    "floor": _floor,
    "burst": _burst,
    "drift": _drift,
    "stuck": _stuck,
    "step": _step,
    "noise": _noise,
    "decoupled": _decoupled,
    "oscillation": _oscillation,
}

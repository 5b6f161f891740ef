"""
Propose the features of a machine's readings: windows, fields and features.yaml.

Windows are lengths of time, chosen from the median time between the readings of a
machine. Two short ones hold the newest readings, two long ones the past that they are
compared with. Every feature of a sensor that the detector uses is a number of standard
deviations of a long window, so it does not depend on the sensor's unit.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import numpy.typing as npt

from tollgate.errors import InputError, SpecError
from tollgate.features.offline import build
from tollgate.features.spec.description import duration_text
from tollgate.features.spec.feature_spec import SPEC_FILE, FeatureSpec, load_spec
from tollgate.features.spec.spec_document import MAX_ENTRIES, largest_number
from tollgate.features.spec.tile_form import HOPS_US
from tollgate.features.windows.capacity import NEVER_US, dropped_us
from tollgate.history import history_of
from tollgate.schema import EVENT_TIME, TRANSACTION_ID
from tollgate.templating import yaml_number, yaml_text

if TYPE_CHECKING:
    import polars as pl

F32 = npt.NDArray[np.float32]
I64 = npt.NDArray[np.int64]

MOST_SENSORS = 16  # numbers that an entity can store
READINGS = "readings"  # the feature that counts them in the last of LONG_WINDOWS
SHORT_WINDOWS = ("brief", "short")
LONG_WINDOWS = ("long", "longest")

# Numbers of readings in each window, chosen on half of the Numenta Anomaly Benchmark.
_SHORT_READINGS = (6, 24)
_LONG_READINGS = 288
_DAY_US = 86_400 * 10**6
_LONGEST_STORED = 1_008  # without a hop: the store holds 1,024 readings of a machine
# A table that has enough of these cycles has windows of at least their length.
_LONG_CYCLE_US, _LONG_SHARE = _DAY_US, 10
# Hop (a window's begin is rounded by at most so many readings, or 1/24 of it) and
# longest window: the first whose sums the store can hold.
_HOP_CHOICES = (
    (5, 4_032, 14 * _DAY_US),
    (5, 1_728, 6 * _DAY_US),
    (12, 1_728, 6 * _DAY_US),
)
_LONGEST_SHARE = 4
_LEAST_US = 10**6  # duration of a window
_MOST_DECIMALS = 4
_HEADROOM = 10  # a value may be so many times larger than those of the table
_ROUNDED = 0.05  # of the standard deviation, that rounding to decimals may change
_SHRUNK = 0.8  # step by which windows shrink until the store holds their readings


class ReadingFeatures(msgspec.Struct, frozen=True):
    """
    The proposed features of a product of readings.

    Attributes:
        text: Content of features.yaml.
        sensors: Names of the fields.
        interval_us: Median time between readings of one machine, µs.
        windows_us: Length of each window of SHORT_WINDOWS and LONG_WINDOWS, µs.
        hop: Width to which the begins of windows are rounded; `0` for exact windows.
    """

    text: str
    sensors: tuple[str, ...]
    interval_us: int
    windows_us: tuple[int, int, int, int]
    hop: str


def feature_name(sensor: str, *parts: str) -> str:
    """Name a feature of a sensor, such as `pressure_long_deviation`."""
    return "_".join((sensor, *parts))


def sensor_features(sensor: str) -> tuple[str, ...]:
    """Name all features of a sensor in features.yaml, without the sensor itself."""
    names = [feature_name(sensor, short, "mean") for short in SHORT_WINDOWS]
    names.append(feature_name(sensor, SHORT_WINDOWS[-1], "std"))
    for long in LONG_WINDOWS:
        names += [
            feature_name(sensor, long, kind)
            for kind in ("mean", "std", "min", "max", "gap", "deviation")
        ]
        names += [
            feature_name(sensor, long, short, kind)
            for short in SHORT_WINDOWS
            for kind in ("gap", "shift")
        ]
    return tuple(names)


def propose_features(
    table: pl.DataFrame,
    *,
    product: str,
    machine: str,
    sensors: Sequence[str],
    ranges: Mapping[str, tuple[float, float]] = MappingProxyType({}),
    aliases: Mapping[str, str] = MappingProxyType({}),
    origin: str = "",
) -> ReadingFeatures:
    """
    Propose the features that the detector needs, from a table of readings.

    With a hop, windows are as long as the detector works best with. If the store could
    not hold the sums of so many sensors, there is no hop, and windows are shorter.

    Args:
        table: Columns `event_time` (Datetime), the machine's ids, and the sensors.
        product: Name of the product.
        machine: Column of the machines' ids; its name without `_id` is the entity.
        sensors: Columns of numbers; null and NaN where there is no value.
        ranges: Least and greatest valid number of a sensor; none without.
        aliases: Column -> its name in the file that the table comes from.
        origin: Name of that file; empty for none.

    Raises:
        InputError: A column is missing, no machine has two readings, the sensors are
            too many, or a sensor's values or their decimals cannot be stored.
    """
    for name in (EVENT_TIME, machine, *sensors):
        if name not in table.columns:
            problem = f"column missing; the table has {', '.join(table.columns)}"
            raise InputError("readings", problem, where=name)
    if not 1 <= len(sensors) <= MOST_SENSORS:
        problem = f"{len(sensors)} columns; an entity stores 1 … {MOST_SENSORS} numbers"
        raise InputError("sensors", problem)
    code, time_us = _sorted_readings(table, machine)
    interval_us = _interval_us(code, time_us)
    span_us = _span_us(code, time_us)
    head = _Head(
        product=product,
        machine=machine,
        sensors={
            one: (_decimals(table[one].to_numpy(), one), ranges.get(one))
            for one in sensors
        },
        aliases=aliases,
        origin=origin,
    )
    brief_us, short_us = (_whole(count * interval_us) for count in _SHORT_READINGS)
    long_us = max(
        _LONG_READINGS * interval_us, min(_LONG_CYCLE_US, span_us // _LONG_SHARE)
    )
    for rounded, count, cycle_us in _HOP_CHOICES:
        hops = [hop for hop, us in HOPS_US.items() if us <= rounded * interval_us]
        hop = hops[-1] if hops else next(iter(HOPS_US))
        longest_us = max(count * interval_us, min(cycle_us, span_us // _LONGEST_SHARE))
        windows_us = brief_us, short_us, _whole(long_us), _whole(longest_us)
        text = _document(head, windows_us=windows_us, hop=hop)
        if _is_storable(text):
            break
    else:
        hop = "0"
        stored_us = _stored_windows(code, time_us, interval_us, shortest_us=short_us)
        windows_us = brief_us, short_us, *stored_us
        text = _document(head, windows_us=windows_us, hop=hop)
    return ReadingFeatures(
        text=text,
        sensors=tuple(sensors),
        interval_us=interval_us,
        windows_us=windows_us,
        hop=hop,
    )


def load_features(features: ReadingFeatures) -> FeatureSpec:
    """
    Check the proposed features.yaml.

    Raises:
        SpecError: A name in it is not valid.
    """
    return _load_text(features.text)


def build_features(
    table: pl.DataFrame, features: ReadingFeatures, *, source: str = "readings"
) -> tuple[F32, tuple[str, ...]]:
    """
    Compute the proposed features of a table of readings.

    Args:
        table: Columns `event_time`, the machine's ids and the sensors; rows that lack a
            `transaction_id` are numbered.
        features: The result of `propose_features`.
        source: Name of the table, for messages.

    Returns:
        float32 [N, F], in the order of the table; the names of the features.

    Raises:
        InputError: A value is invalid, or the store could not hold all readings of a
            window.
    """
    import polars as pl

    spec = load_features(features)
    if TRANSACTION_ID not in table.columns:
        numbers = pl.int_range(1, len(table) + 1, eager=True)
        table = table.with_columns(numbers.cast(pl.String).alias(TRANSACTION_ID))
    history = history_of(table, spec=spec, source=source)
    return build(spec, history).astype(np.float32), spec.feature_names


def _sorted_readings(table: pl.DataFrame, machine: str) -> tuple[I64, I64]:
    """Return machine number and time (µs) of each reading, sorted by both; [N] each."""
    import polars as pl

    for name in (machine, EVENT_TIME):
        if table[name].null_count():
            row = int(table[name].is_null().arg_max() or 0) + 1
            raise InputError("readings", f"is null in row {row}", where=name)

    code = table[machine].cast(pl.String).rank("dense").to_numpy().astype(np.int64)
    times = table[EVENT_TIME].cast(pl.Datetime("us")).cast(pl.Int64).to_numpy()
    order = np.lexsort((times, code))
    return code[order], times[order]


def median_interval_us(code: I64, time_us: I64) -> int:
    """
    Return the median time between readings of one machine, at least 1 ms.

    Args:
        code: Number of the machine of each reading, in any order; [N].
        time_us: Their times; [N].

    Raises:
        InputError: No machine has readings at two times.
    """
    order = np.lexsort((time_us, code))
    return _interval_us(code[order], time_us[order])


def _interval_us(code: I64, time_us: I64) -> int:
    """Return the median time between sorted readings of one machine."""
    gaps = np.diff(time_us)[code[1:] == code[:-1]]
    gaps = gaps[gaps > 0]
    if not len(gaps):
        raise InputError(
            "readings", "no machine has readings at two times", where=EVENT_TIME
        )
    return max(int(np.median(gaps)), 1_000)


def _span_us(code: I64, time_us: I64) -> int:
    """Return the longest time from the first to the last reading of a machine."""
    starts = np.flatnonzero(np.append(True, code[1:] != code[:-1]))
    stops = np.append(starts[1:], len(code)) - 1
    return int((time_us[stops] - time_us[starts]).max())


def _whole(duration_us: float) -> int:
    """Round a duration to whole seconds, and a long one to whole minutes or hours."""
    unit_us = _LEAST_US
    for step_us in (60 * 10**6, 3_600 * 10**6):
        if duration_us >= 24 * step_us:
            unit_us = step_us
    return max(round(duration_us / unit_us), 1) * unit_us


def _stored_windows(
    code: I64, time_us: I64, interval_us: int, *, shortest_us: int
) -> tuple[int, int]:
    """Choose long windows so that the store holds all readings in them."""
    dropped = dropped_us(code, time_us, MAX_ENTRIES)
    ages_us = (time_us - dropped)[dropped != NEVER_US]
    within_us = int(ages_us.min(initial=np.iinfo(np.int64).max))
    scale = 1.0
    while _whole(scale * _LONGEST_STORED * interval_us) >= within_us:
        scale *= _SHRUNK
        if scale * _LONG_READINGS * interval_us <= shortest_us:
            problem = (
                f"{MAX_ENTRIES:,} readings of a machine come within "
                f"{within_us / 1e6:g} s, though the median time between two is "
                f"{interval_us / 1e6:g} s, and the store holds no more: leave out "
                "repeated readings, or declare fewer sensors"
            )
            raise InputError("readings", problem, where=EVENT_TIME)
    return (
        _whole(scale * _LONG_READINGS * interval_us),
        _whole(scale * _LONGEST_STORED * interval_us),
    )


def _decimals(values: npt.NDArray[np.float64], name: str) -> int:
    """Choose the decimals of a sensor: as many as its values need and have room for."""
    known = np.asarray(values, np.float64)
    known = known[np.isfinite(known)]
    if not len(known):
        raise InputError("readings", "has no value", where=name)
    most = float(np.abs(known).max())
    if most > largest_number(0):
        problem = (
            f"a value is {most:.1e} in size, and {largest_number(0):.0e} is the "
            "largest that can be stored: use a larger unit"
        )
        raise InputError("readings", problem, where=name)
    for decimals in range(_MOST_DECIMALS + 1):
        error = float(np.abs(known - np.round(known, decimals)).max())
        if error <= 1e-12 * max(most, 1.0):
            break
    while decimals and most * _HEADROOM > largest_number(decimals):
        decimals -= 1
    error = float(np.abs(known - np.round(known, decimals)).max())
    if error > _ROUNDED * float(known.std()):
        problem = (
            f"{decimals} decimals can be stored, which changes a value by {error:.1e}, "
            f"and its standard deviation is {known.std():.1e}: use a smaller unit"
        )
        raise InputError("readings", problem, where=name)
    return decimals


def _is_storable(text: str) -> bool:
    """Return whether a features.yaml can be served."""
    try:
        _load_text(text)
    except SpecError:
        return False
    return True


def _load_text(text: str) -> FeatureSpec:
    """Read a features.yaml."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / SPEC_FILE
        path.write_text(text)
        return load_spec(path)


class _Head(msgspec.Struct, frozen=True):
    """Values of a features.yaml in front of its features, except for the windows."""

    product: str
    machine: str
    sensors: Mapping[str, tuple[int, tuple[float, float] | None]]
    aliases: Mapping[str, str]
    origin: str


def _document(head: _Head, *, windows_us: Sequence[int], hop: str) -> str:
    """Write features.yaml."""
    entity = head.machine.removesuffix("_id")
    names = (*SHORT_WINDOWS, *LONG_WINDOWS)
    times = {
        name: duration_text(one) for name, one in zip(names, windows_us, strict=True)
    }
    made = f"# First written from {head.origin}. " if head.origin else "# "
    lines = [
        f"{made}All keys: docs/features.md.",
        "version: 1",
        f"product: {head.product}",
        "amount: false",
        f"lateness: {times[SHORT_WINDOWS[-1]]}",
    ]
    if head.aliases:
        lines.append("aliases:")
        lines += [
            f"  {ours}: [{yaml_text(theirs)}]" for ours, theirs in head.aliases.items()
        ]
    lines += [
        "entities:",
        f"  {entity}: {{key: {head.machine}, hop: {hop}}}",
        "fields:",
    ]
    for name, (decimals, limits) in head.sensors.items():
        inside = ""
        if limits:
            largest = largest_number(decimals)
            least, most = max(limits[0], -largest), min(limits[1], largest)
            inside = f", range: [{yaml_number(least)}, {yaml_number(most)}]"
        lines.append(
            f"  - {{name: {name}, type: number, decimals: {decimals}{inside}}}"
        )
    lines += [
        "",
        "# Of each sensor: means and spread of the newest readings, and how far they",
        "# are from the past, in standard deviations of long windows.",
        "features:",
    ]

    def add(name: str, rule: str) -> str:
        lines.append(f"  - {{name: {name}, {rule}}}")
        return name

    def window(name: str, aggregate: str, length: str, sensor: str) -> str:
        rule = f"entity: {entity}, aggregate: {aggregate}, window: {times[length]}"
        return add(name, f"{rule}, of: {sensor}")

    count = f"entity: {entity}, aggregate: count, window: {times[LONG_WINDOWS[-1]]}"
    add(READINGS, count)
    for sensor in head.sensors:
        add(sensor, f"field: {sensor}")
        short = {
            one: window(feature_name(sensor, one, "mean"), "mean", one, sensor)
            for one in SHORT_WINDOWS
        }
        steady = SHORT_WINDOWS[-1]
        window(feature_name(sensor, steady, "std"), "std", steady, sensor)
        for long in LONG_WINDOWS:
            found = {
                kind: window(feature_name(sensor, long, kind), kind, long, sensor)
                for kind in ("mean", "std", "min", "max")
            }
            gap = feature_name(sensor, long, "gap")
            add(gap, f"difference: [{sensor}, {found['mean']}]")
            deviation = feature_name(sensor, long, "deviation")
            add(deviation, f"ratio: [{gap}, {found['std']}]")
            for name, mean in short.items():
                gap = feature_name(sensor, long, name, "gap")
                add(gap, f"difference: [{mean}, {found['mean']}]")
                shift = feature_name(sensor, long, name, "shift")
                add(shift, f"ratio: [{gap}, {found['std']}]")
    return "\n".join(lines) + "\n"

"""
Detect anomalies of readings without labels, from tail probabilities of deviations.

A measure becomes a surprise: -log10 of the share of training rows that have as much.
For each sensor and each of its long windows there are three measures, in standard
deviations of the window: how far the means of two short windows are from its mean
(shifts), and how far the reading is if it is the window's greatest or least (record;
else 0). A sensor's own surprise is that of the sum, over its long windows, of the
surprise of the record and the mean of those of the shifts.

Several sensors of a machine often follow the same load. A linear model of all of them
predicts each from the others; its residuals, in the means of the short windows, are the
measures of the sensor's relation. They are counted from the mean of each long window,
and the smaller surprise of the two counts: after a fault, one of the two means has
left it behind earlier. The more of a sensor the others explain, the more its relation
counts, and the less its own windows. The surprise of a machine is the largest of its
sensors'. One more curve turns it into the score: 1 - the share of training rows with as
much surprise. Where training rows become too few to know the share, the score only
orders readings: it rises ever more slowly, so that no two surprises look the same.

A sensor may have no value in a short window. The window's mean is then 0, and counts
only if the long window has numbers on both sides of 0, or 0 itself.

A curve is the largest of its segments that begin at or before the measure, in float32:
every operation is monotone, so the score never falls when a measure grows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from tollgate.detection.reading_features import (
    LONG_WINDOWS,
    READINGS,
    SHORT_WINDOWS,
    feature_name,
)
from tollgate.errors import InputError

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]

FEWEST_READINGS = 100  # of a machine in its longest window; before, the score is 0
FEWEST_ROWS = 1_000  # to train on: below, a tail of 1 % is a guess
# Shares of training rows at which a curve has a knot.
_DENSE = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.25, 0.2, 0.15, 0.12)
_TAIL = tuple(
    base / 10**decade
    for decade in range(1, 7)
    for base in (1.0, 0.8, 0.65, 0.5, 0.4, 0.3, 0.25, 0.2, 0.15, 0.12)
)
_ROWS_AT_KNOT = 20  # training rows beyond the last knot, at least
# Of the rows of several sensors, that are left out in each of two more fits.
_LEFT_OUT, _FITS = 0.05, 3
# Relations: share of rows clipped at each end of each sensor in the first fit, share of
# rows with the largest residuals that further fits leave out, and number of these.
_CLIPPED, _FAR_ROWS, _RELATION_FITS = 0.05, 0.1, 3
_RIDGE = 1e-3  # of a variance: sensors that say the same have finite weights
_FAR = 1e12  # standard deviations, or surprise: products with a slope stay finite
_LEAST_KNOWN_SHARE = 1e-3  # of rows; the score does not tell smaller shares
_LEAST_SHARE = 1e-6
MOST_GAP = np.float32(1e30)  # in a residual, so that no sum of gaps is infinite
MOST_SCORE = np.float32(1 - _LEAST_SHARE)  # float32 has 16 numbers between it and 1


class Curve(msgspec.Struct, frozen=True):
    """
    A piecewise linear function that never falls; 0 up to the first knot.

    Attributes:
        at: Places of the knots, ascending.
        value: Values at the knots, ascending from 0.
        continues: True if the last slope continues; otherwise the last value does.
    """

    at: tuple[float, ...]
    value: tuple[float, ...]
    continues: bool

    def segments(self) -> F32:
        """
        Return begin, width, value at the begin, and slope of each segment.

        float32 [4, K]; one that continues is 1e12 wide.
        """
        width = np.diff(self.at)
        slope = np.diff(self.value) / width
        if self.continues:
            width[-1] = _FAR
        found = np.stack([self.at[:-1], width, self.value[:-1], slope])
        return found.astype(np.float32)


class Measures(msgspec.Struct, frozen=True):
    """
    The measures of one sensor over one long window.

    Attributes:
        own, least, greatest: Columns of the reading, and of the window's extremes.
        deviation: Column of (reading - mean) / std of the window.
        means: Column of the mean of each short window.
        shifts: Column, for each short window, of (its mean - mean) / std of the window.
        record_surprise: Curve from the record to its surprise.
        shift_surprises: Curve of each shift.
    """

    own: int
    least: int
    greatest: int
    deviation: int
    means: tuple[int, ...]
    shifts: tuple[int, ...]
    record_surprise: Curve
    shift_surprises: tuple[Curve, ...]


class Residual(msgspec.Struct, frozen=True):
    """
    The part of a sensor that the others do not explain, in the means of a short window.

    Attributes:
        columns: Column of the mean's distance from a long window's mean, for each
            sensor, in the sensors' units.
        ranges: Columns, for each sensor, of the mean, and of the least and the greatest
            number of the long window.
        weights: Their weights; the sum is in standard deviations of the residual.
        surprise: Curve from the absolute sum to its surprise.
    """

    columns: tuple[int, ...]
    ranges: tuple[tuple[int, int, int], ...]
    weights: tuple[float, ...]
    surprise: Curve


class Relation(msgspec.Struct, frozen=True):
    """
    The relation of a sensor to the others.

    Attributes:
        explained: Share of its variance that the others explain, 0 to 1.
        residuals: Its residual in each short window, by the long window whose means
            it is counted from.
        surprise: Curve from the smallest mean surprise of a long window's residuals.
    """

    explained: float
    residuals: tuple[tuple[Residual, ...], ...]
    surprise: Curve


class Sensor(msgspec.Struct, frozen=True):
    """
    A number of the readings.

    Attributes:
        name: Name of the field.
        measures: Its measures over each long window.
        surprise: Curve from the sum of their surprises to the sensor's own surprise.
        relation: Its relation to the other sensors; None if it is the only one.
    """

    name: str
    measures: tuple[Measures, ...]
    surprise: Curve
    relation: Relation | None = None


class Detector(msgspec.Struct, frozen=True):
    """
    A trained detector.

    Attributes:
        features: Names of the columns of its input.
        readings: Column of the machine's number of readings in its longest window.
        fewest_readings: With fewer, the score is 0.
        sensors: The sensors.
        calibration: Curve from a machine's surprise to the score.
    """

    features: tuple[str, ...]
    readings: int
    fewest_readings: int
    sensors: tuple[Sensor, ...]
    calibration: Curve


def train_detector(
    features: npt.ArrayLike,
    names: Sequence[str],
    *,
    sensors: Sequence[str],
) -> Detector:
    """
    Train a detector on readings without labels.

    Rows of machines with fewer than FEWEST_READINGS are left out. With several sensors
    the rows may contain faults: a second and a third fit leave out the 5 % that
    surprise the one before most.

    Args:
        features: What the features.yaml of `propose_features` computes; [N, F].
        names: Names of the features; [F].
        sensors: Names of the fields that are sensors.

    Raises:
        InputError: A feature of a sensor is missing, or too few rows are left.
    """
    table = np.asarray(features, dtype=np.float32)
    columns = {name: at for at, name in enumerate(names)}

    def column(name: str) -> int:
        if name not in columns:
            problem = f"{name!r} is missing: build them with the proposed features.yaml"
            raise InputError("features", problem)
        return columns[name]

    readings = column(READINGS)
    table = table[table[:, readings] >= FEWEST_READINGS]
    if len(table) < FEWEST_ROWS:
        problem = (
            f"{len(table):,} rows come after the first {FEWEST_READINGS} readings of "
            f"their machine: {FEWEST_ROWS:,} are needed"
        )
        raise InputError("features", problem)
    if not sensors:
        raise InputError("sensors", "names no sensor")
    trained = _trained_sensors(table, sensors, column=column)
    if len(sensors) > 1:
        for _ in range(_FITS - 1):
            found = machine_surprise(table, trained)
            ordinary = found <= np.quantile(found, 1 - _LEFT_OUT)
            trained = _trained_sensors(table[ordinary], sensors, column=column)
    return Detector(
        features=tuple(names),
        readings=readings,
        fewest_readings=FEWEST_READINGS,
        sensors=tuple(trained),
        calibration=score_curve(machine_surprise(table, trained)),
    )


def detector_scores(detector: Detector, features: npt.ArrayLike) -> F32:
    """
    Score readings: 1 - the probability that a normal reading scores as high.

    The graph of the detector computes the same.

    Args:
        features: [N, F], in the order of the detector's features.

    Returns:
        float32 [N], from 0 to 1 - 1e-6.

    Raises:
        InputError: The number of columns is not the detector's.
    """
    table = np.asarray(features, dtype=np.float32)
    if table.ndim != 2 or table.shape[1] != len(detector.features):
        problem = f"have shape {table.shape}, not [N, {len(detector.features)}]"
        raise InputError("features", problem)
    rising = apply_curve(
        detector.calibration, machine_surprise(table, detector.sensors)
    )
    score = np.minimum(rising, MOST_SCORE)
    known = table[:, detector.readings] >= detector.fewest_readings
    return np.where(known, score, np.float32(0))


def _trained_sensors(
    table: F32, sensors: Sequence[str], *, column: Callable[[str], int]
) -> list[Sensor]:
    """Fit all curves of the sensors, and their relations."""
    own = [
        tuple(
            _trained_measures(
                table,
                own=column(sensor),
                least=column(feature_name(sensor, window, "min")),
                greatest=column(feature_name(sensor, window, "max")),
                deviation=column(feature_name(sensor, window, "deviation")),
                means=tuple(
                    column(feature_name(sensor, short, "mean"))
                    for short in SHORT_WINDOWS
                ),
                shifts=tuple(
                    column(feature_name(sensor, window, short, "shift"))
                    for short in SHORT_WINDOWS
                ),
            )
            for window in LONG_WINDOWS
        )
        for sensor in sensors
    ]
    relations: list[Relation | None] = [None] * len(own)
    if len(own) > 1:
        relations = list(
            _trained_relations(
                table,
                own,
                [
                    [
                        tuple(
                            column(feature_name(sensor, window, short, "gap"))
                            for sensor in sensors
                        )
                        for short in SHORT_WINDOWS
                    ]
                    for window in LONG_WINDOWS
                ],
            )
        )
    return [
        Sensor(
            name=sensor,
            measures=measures,
            surprise=surprise_curve(_sum_of_surprises(table, measures)),
            relation=relation,
        )
        for sensor, measures, relation in zip(sensors, own, relations, strict=True)
    ]


def _trained_measures(
    table: F32,
    *,
    own: int,
    least: int,
    greatest: int,
    deviation: int,
    means: tuple[int, ...],
    shifts: tuple[int, ...],
) -> Measures:
    """Fit the curves of the measures of one sensor over one long window."""
    record = records(
        table, own=own, least=least, greatest=greatest, deviation=deviation
    )
    return Measures(
        own=own,
        least=least,
        greatest=greatest,
        deviation=deviation,
        means=means,
        shifts=shifts,
        record_surprise=surprise_curve(record),
        shift_surprises=tuple(
            surprise_curve(np.abs(known_part(table, shift, (mean, least, greatest))))
            for shift, mean in zip(shifts, means, strict=True)
        ),
    )


def _trained_relations(
    table: F32,
    own_measures: Sequence[Sequence[Measures]],
    gaps: Sequence[Sequence[tuple[int, ...]]],
) -> list[Relation]:
    """
    Fit the relation of each of two or more sensors to the others.

    Args:
        table: The training rows.
        own_measures: Measures of each sensor over each long window.
        gaps: Columns of the sensors in each short window, for each long window.
    """
    sensors = len(gaps[0][0])
    residuals: list[list[tuple[Residual, ...]]] = [[] for _ in range(sensors)]
    explained = np.zeros(sensors)
    for at, window in enumerate(gaps):
        own: list[list[Residual]] = [[] for _ in range(sensors)]
        for short, columns in enumerate(window):
            ranges = tuple(
                (one[at].means[short], one[at].least, one[at].greatest)
                for one in own_measures
            )
            values = np.column_stack(
                [
                    known_part(table, column, three).astype(np.float64)
                    for column, three in zip(columns, ranges, strict=True)
                ]
            )
            weights, share = _residual_weights(values)
            explained += share / (len(gaps) * len(window))
            for found, row in zip(own, weights.tolist(), strict=True):
                empty = Curve((0.0, 1.0), (0.0, 0.0), continues=False)
                one = Residual(
                    columns=columns, ranges=ranges, weights=tuple(row), surprise=empty
                )
                curve = surprise_curve(residual_sizes(table, one))
                found.append(msgspec.structs.replace(one, surprise=curve))
        for one_sensor, found in zip(residuals, own, strict=True):
            one_sensor.append(tuple(found))
    return [
        Relation(
            explained=float(share),
            residuals=tuple(found),
            surprise=surprise_curve(_least_surprise(table, found)),
        )
        for share, found in zip(explained, residuals, strict=True)
    ]


def _residual_weights(values: F64) -> tuple[F64, F64]:
    """
    Fit a linear model of each column by the others, from rows without extremes.

    The first fit clips each column; each further one leaves out the rows that have the
    largest residuals of the one before, which may be faults.

    Args:
        values: [N, S].

    Returns:
        Weights of the residuals, [S, S], in the standard deviations of these; the share
        of each column's variance that the others explain, [S].
    """
    low, high = np.quantile(values, (_CLIPPED, 1 - _CLIPPED), axis=0)
    middle = np.median(values, axis=0)
    weights, explained = _linear_weights(np.clip(values, low, high))
    for _ in range(_RELATION_FITS):
        size = np.abs((values - middle) @ weights.T).max(axis=1)
        near = size <= np.quantile(size, 1 - _FAR_ROWS)
        weights, explained = _linear_weights(values[near])
    return weights, explained


def _linear_weights(values: F64) -> tuple[F64, F64]:
    """Fit a linear model of each column by the others from all rows."""
    spread = values.std(axis=0)
    changes = spread > 0
    scale = np.where(changes, spread, np.inf)
    standard = (values - values.mean(axis=0)) / scale
    covariance = standard.T @ standard / len(values)
    covariance[~changes, ~changes] = 1.0
    precision = np.linalg.inv(covariance + _RIDGE * np.eye(len(spread)))
    own = np.diag(precision)
    explained = np.where(changes, np.clip(1 - 1 / own, 0, 1), 0)
    return precision / np.sqrt(own)[:, None] / scale, explained


def machine_surprise(table: F32, sensors: Sequence[Sensor]) -> F32:
    """Return the largest surprise of the sensors of each row; float32 [N]."""
    largest: F32 = np.maximum.reduce([sensor_surprise(table, one) for one in sensors])
    return largest


def sensor_surprise(table: F32, sensor: Sensor) -> F32:
    """Return the surprise of one sensor in each row; float32 [N]."""
    own = apply_curve(sensor.surprise, _sum_of_surprises(table, sensor.measures))
    if sensor.relation is None:
        return own
    found = _least_surprise(table, sensor.relation.residuals)
    related = apply_curve(sensor.relation.surprise, found)
    share = np.float32(sensor.relation.explained)
    total: F32 = own * (np.float32(1) - share) + related * share
    return total


def _sum_of_surprises(table: F32, measures: Sequence[Measures]) -> F32:
    """Sum the surprises of a sensor over its long windows; float32 [N]."""
    total = np.zeros(len(table), np.float32)
    for one in measures:
        record = records(
            table,
            own=one.own,
            least=one.least,
            greatest=one.greatest,
            deviation=one.deviation,
        )
        total += apply_curve(one.record_surprise, record)
        share = np.float32(1 / len(one.shifts))
        for column, mean, curve in zip(
            one.shifts, one.means, one.shift_surprises, strict=True
        ):
            shift = known_part(table, column, (mean, one.least, one.greatest))
            total += apply_curve(curve, np.abs(shift)) * share
    return total


def _least_surprise(table: F32, windows: Sequence[Sequence[Residual]]) -> F32:
    """Return the smallest mean surprise of a long window's residuals; float32 [N]."""
    least: F32 = np.minimum.reduce([_mean_of_surprises(table, one) for one in windows])
    return least


def _mean_of_surprises(table: F32, residuals: Sequence[Residual]) -> F32:
    """Return the mean surprise of a sensor's residuals; float32 [N]."""
    total = np.zeros(len(table), np.float32)
    share = np.float32(1 / len(residuals))
    for one in residuals:
        total += apply_curve(one.surprise, residual_sizes(table, one)) * share
    return total


def residual_sizes(table: F32, residual: Residual) -> F32:
    """Return the absolute residual of each row, in standard deviations; float32 [N]."""
    total = np.zeros(len(table), np.float32)
    for column, three, weight in zip(
        residual.columns, residual.ranges, residual.weights, strict=True
    ):
        limited = np.clip(known_part(table, column, three), -MOST_GAP, MOST_GAP)
        total += limited * np.float32(weight)
    return np.abs(total)


def known_part(table: F32, column: int, columns: tuple[int, int, int]) -> F32:
    """
    Return a column, with 0 where a sensor has no value in a short window; float32 [N].

    Args:
        columns: Columns of the mean of the short window, and of the least and the
            greatest number of the long one. A mean of no values is 0, and one of values
            is never outside of the range.
    """
    mean, least, greatest = (table[:, one] for one in columns)
    empty = (mean == 0) & ((mean < least) | (mean > greatest))
    return np.where(empty, np.float32(0), table[:, column])


def records(table: F32, *, own: int, least: int, greatest: int, deviation: int) -> F32:
    """Return the deviation of rows that are extremes of their window, else 0; [N]."""
    extreme = table[:, own] >= table[:, greatest]
    extreme |= table[:, own] <= table[:, least]
    return np.where(extreme, np.abs(table[:, deviation]), np.float32(0))


def apply_curve(curve: Curve, measure: F32) -> F32:
    """Return the values of a curve; float32 [N]."""
    zero = np.float32(0)
    found = np.zeros(len(measure), np.float32)
    for begin, width, value, slope in curve.segments().T:
        reached = np.minimum(measure - begin, width) * slope + value
        found = np.maximum(found, np.where(measure >= begin, reached, zero))
    return found


def surprise_curve(measure: npt.ArrayLike) -> Curve:
    """
    Fit -log10 of the share of rows that have at least a measure.

    Beyond the last knot, the share falls to a tenth for each step by which the measure
    grew over the last tenth before.

    Args:
        measure: Measures of the training rows, 0 and more; [N].
    """
    at, share = _knots(np.asarray(measure, np.float64))
    at = np.append(at, at[-1] + _last_step(at, share))
    share = np.append(share, share[-1] / 10)
    return Curve(tuple(at.tolist()), tuple((-np.log10(share)).tolist()), continues=True)


def score_curve(surprise: npt.ArrayLike) -> Curve:
    """
    Fit 1 - the share of rows that have at least a surprise, down to 1e-3 of the rows.

    A surprise beyond has 1 - share / (1 + decades), down to 1e-6: the decades by which
    the share would fall if it went on as over the last tenth before. So the score still
    rises for a surprise far beyond those of the training rows.

    Args:
        surprise: Surprises of the training rows; [N].
    """
    at, share = _knots(np.asarray(surprise, np.float64))
    known = max(int((share >= _LEAST_KNOWN_SHARE).sum()), 2)
    at, share = at[:known], share[:known]
    falls = np.geomspace(1, max(share[-1] / _LEAST_SHARE, 2), 65)[1:]
    at = np.append(at, at[-1] + _last_step(at, share) * (falls - 1))
    share = np.append(share, share[-1] / falls)
    return Curve(tuple(at.tolist()), tuple((1.0 - share).tolist()), continues=False)


def _last_step(at: F64, share: F64) -> float:
    """Return the growth over which the share fell to its last tenth."""
    before = min(int(np.searchsorted(-share, -10 * share[-1])), len(at) - 2)
    fall = float(np.log10(share[before] / share[-1]))
    # Without a fall, all rows have the same measure: it is the only scale.
    return float(at[-1] - at[before]) / (fall or 1.0)


def _knots(values: F64) -> tuple[F64, F64]:
    """
    Find places with the share of values that are at least as large.

    Returns:
        Two or more places, ascending from 0; their shares, falling from 1.
    """
    ordered = np.sort(values)
    rows = len(ordered)
    wanted = [one for one in (*_DENSE, *_TAIL) if one * rows >= _ROWS_AT_KNOT]
    places = np.unique(ordered[[rows - round(one * rows) for one in wanted]])
    places = places.astype(np.float32).astype(np.float64)
    places = np.unique(places[places > 0])
    share = (rows - np.searchsorted(ordered, places, "left")) / rows
    if not len(places):
        return np.array([0.0, 1.0]), np.array([1.0, 1.0 / max(rows, 10)])
    rarer = np.append(True, np.diff(share) < 0)
    return np.append(0.0, places[rarer]), np.append(1.0, share[rarer])

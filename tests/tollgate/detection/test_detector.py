"""The detector's curves, scores and limits, against counts of the training rows."""

import msgspec
import numpy as np
import pytest

from tollgate.detection.detector import (
    FEWEST_READINGS,
    MOST_SCORE,
    Curve,
    Detector,
    apply_curve,
    detector_scores,
    score_curve,
    surprise_curve,
    train_detector,
)
from tollgate.detection.reading_features import (
    LONG_WINDOWS,
    READINGS,
    SHORT_WINDOWS,
    feature_name,
)
from tollgate.errors import InputError

SENSORS = ("heat", "noise")


def names():
    """List the columns that the detector reads, and one more."""
    found = [READINGS, "other"]
    for sensor in SENSORS:
        found.append(sensor)
        found += [feature_name(sensor, one, "mean") for one in SHORT_WINDOWS]
        for window in LONG_WINDOWS:
            found += [feature_name(sensor, window, one) for one in ("min", "max")]
            found.append(feature_name(sensor, window, "deviation"))
            for one in SHORT_WINDOWS:
                found += [
                    feature_name(sensor, window, one, k) for k in ("gap", "shift")
                ]
    return tuple(found)


def vectors(rows=20_000, *, seed=0):
    """Make rows of machines in order: a tenth are extremes of their windows."""
    random = np.random.default_rng(seed)
    table = random.normal(size=(rows, len(names()))).astype(np.float32)
    at = {name: place for place, name in enumerate(names())}
    table[:, at[READINGS]] = 1_000
    for sensor in SENSORS:
        extreme = random.random(rows) < 0.1
        for window in LONG_WINDOWS:
            own = table[:, at[sensor]]
            table[:, at[feature_name(sensor, window, "max")]] = own + ~extreme
            table[:, at[feature_name(sensor, window, "min")]] = own - 1
    return table


@pytest.fixture(scope="module")
def detector() -> Detector:
    """A detector of two sensors."""
    return train_detector(vectors(), names(), sensors=SENSORS)


def test_a_surprise_is_the_logarithm_of_a_tail():
    """Of an exponential distribution, -log10 of the tail is proportional."""
    measure = np.random.default_rng(0).exponential(size=200_000)
    curve = surprise_curve(measure)
    asked = np.array([0.5, 1, 2, 4, 6], np.float32)
    assert apply_curve(curve, asked) == pytest.approx(asked * np.log10(np.e), rel=0.03)
    # Far beyond all that was seen, it grows on.
    assert apply_curve(curve, np.float32([40]))[0] == pytest.approx(
        40 * np.log10(np.e), rel=0.3
    )


def test_scores_are_shares_of_normal_rows_that_score_less():
    """On rows that it was not trained on, a score of 1 - p is reached by a share p."""
    detector = train_detector(vectors(), names(), sensors=SENSORS)
    score = detector_scores(detector, vectors(100_000, seed=1))
    for share in (0.5, 0.1, 0.02, 0.005):
        reached = float((score >= 1 - share).mean())
        assert reached == pytest.approx(share, rel=0.25)


def test_a_score_never_falls_when_a_measure_grows(detector):
    """Of each measure of each sensor, over nine decades, to the last bit."""
    row = vectors(1)
    at = {name: place for place, name in enumerate(names())}
    row[:, [place for name, place in at.items() if "_" in name]] = 0.5
    sizes = np.geomspace(1e-3, 1e6, 5_000, dtype=np.float32)
    for sensor in SENSORS:
        row[:, at[sensor]] = row[:, at[feature_name(sensor, "long", "max")]]
        for name, place in at.items():
            if not name.endswith(("deviation", "shift")):
                continue
            many = np.repeat(row, len(sizes), axis=0)
            many[:, place] = sizes
            score = detector_scores(detector, many)
            assert (np.diff(score) >= 0).all()
            many[:, place] = -sizes
            assert (detector_scores(detector, many) == score).all()


def test_scores_stay_below_one(detector):
    """Also far beyond the largest number that a field may have."""
    table = np.full((4, len(names())), np.finfo(np.float32).max)
    table[1] = 1e12
    table[2] *= -1
    table[3, 5:] = np.inf
    score = detector_scores(detector, table)
    assert score.max() == MOST_SCORE < 1


def test_one_sensor_is_enough(detector):
    """A machine's surprise is that of its most surprising sensor."""
    table = vectors(2)
    table[1] = table[0]
    at = names().index(feature_name("noise", "longest", "brief", "shift"))
    table[1, at] = 50
    quiet, loud = detector_scores(detector, table)
    assert quiet < 0.99 < loud


def test_a_sensor_that_leaves_its_relation_is_found():
    """
    One follows the other; a step that both make is usual, and one that only one makes
    is not, though it is no larger than they have been.
    """
    table = vectors()
    at = {name: place for place, name in enumerate(names())}
    gaps = {
        sensor: [
            at[feature_name(sensor, long, short, "gap")]
            for long in LONG_WINDOWS
            for short in SHORT_WINDOWS
        ]
        for sensor in SENSORS
    }
    table[:, gaps["noise"]] = (
        10 * table[:, gaps["heat"]] + 0.5 * table[:, gaps["noise"]]
    )
    detector = train_detector(table, names(), sensors=SENSORS)
    for sensor in detector.sensors:
        assert sensor.relation is not None
        assert sensor.relation.explained == pytest.approx(100 / 100.25, abs=0.01)
    row = np.zeros((2, len(names())), np.float32)
    row[:, at[READINGS]] = 1_000
    row[:, gaps["heat"]] = 1.5
    row[0, gaps["noise"]] = 15
    row[1, gaps["noise"]] = -15
    together, apart = detector_scores(detector, row)
    assert together < 0.9
    assert apart > 0.999


def test_one_window_that_a_fault_has_left_calms_a_relation():
    """The mean of the other one still contains the fault: no alarm after it."""
    table = vectors()
    at = {name: place for place, name in enumerate(names())}

    def gaps(sensor, long):
        return [at[feature_name(sensor, long, one, "gap")] for one in SHORT_WINDOWS]

    for long in LONG_WINDOWS:
        heat = table[:, gaps("heat", long)]
        table[:, gaps("noise", long)] = heat + 0.1 * table[:, gaps("noise", long)]
    detector = train_detector(table, names(), sensors=SENSORS)
    row = np.zeros((3, len(names())), np.float32)
    row[:, at[READINGS]] = 1_000
    row[1, gaps("heat", "longest")] = 5
    row[2, gaps("heat", "longest")] = row[2, gaps("heat", "long")] = 5
    calm, after, during = detector_scores(detector, row)
    assert calm == after < 0.9
    assert during > 0.999


def test_surprises_far_beyond_the_training_have_different_scores():
    """The score rises to the end: 1, 10 and 100 times the largest of 10,000 rows."""
    surprise = np.random.default_rng(1).exponential(1.0, 10_000)
    curve = score_curve(surprise)
    asked = np.float32(surprise.max()) * np.array([1, 2, 10, 50], np.float32)
    found = apply_curve(curve, asked)
    assert (np.diff(found) > 0).all()
    assert found[-1] < 1


def test_faults_in_the_training_rows_do_not_hide_others():
    """3 % of the rows have a step in one sensor; a smaller one still is rare."""
    table = vectors()
    at = {name: place for place, name in enumerate(names())}
    heat, noise = (
        [
            at[feature_name(sensor, long, short, "gap")]
            for long in LONG_WINDOWS
            for short in SHORT_WINDOWS
        ]
        for sensor in ("heat", "noise")
    )
    table[:, noise] = table[:, heat] + 0.1 * table[:, noise]
    table[: len(table) * 3 // 100, noise] += 30
    detector = train_detector(table, names(), sensors=SENSORS)
    relation = detector.sensors[SENSORS.index("noise")].relation
    assert relation is not None
    assert relation.explained == pytest.approx(1 / 1.01, abs=0.005)
    row = np.zeros((2, len(names())), np.float32)
    row[:, at[READINGS]] = 1_000
    row[1, noise] = 3
    usual, unusual = detector_scores(detector, row)
    assert usual < 0.9
    assert unusual > 0.96


def test_a_reading_within_its_windows_range_is_no_record(detector):
    """Its deviation does not count then."""
    at = {name: place for place, name in enumerate(names())}
    table = np.zeros((2, len(names())), np.float32)
    table[:, at[READINGS]] = 1_000
    for window in LONG_WINDOWS:
        table[:, at[feature_name("heat", window, "deviation")]] = 30
        table[:, at[feature_name("heat", window, "min")]] = -1
        table[:, at[feature_name("noise", window, "min")]] = -1
        table[:, at[feature_name("noise", window, "max")]] = 1
    table[0, [at[feature_name("heat", one, "max")] for one in LONG_WINDOWS]] = 1
    inside, record = detector_scores(detector, table)
    assert inside == 0
    assert record > 0.999


def test_a_sensor_without_values_is_not_one_that_fell_to_zero(detector):
    """Its means are 0, far from all numbers of the long windows; other rows count."""
    at = {name: place for place, name in enumerate(names())}
    row = vectors(2)[:1]
    for one in SHORT_WINDOWS:
        row[:, at[feature_name("heat", one, "mean")]] = 0
        for window in LONG_WINDOWS:
            row[:, at[feature_name("heat", window, "min")]] = 15
            row[:, at[feature_name("heat", window, "max")]] = 20
            for kind in ("gap", "shift"):
                row[:, at[feature_name("heat", window, one, kind)]] = -17
    row[:, at["heat"]] = 17  # no record
    assert detector_scores(detector, row)[0] < 0.99
    fell = row.copy()
    for window in LONG_WINDOWS:
        fell[:, at[feature_name("heat", window, "min")]] = 0
    assert detector_scores(detector, fell)[0] > 0.9999


def test_a_machine_with_few_readings_scores_zero(detector):
    """Its windows say little; from 100 readings on it is scored."""
    table = np.repeat(vectors(1), 2, axis=0)
    table[:, names().index(feature_name("heat", "long", "short", "shift"))] = 60
    table[:, 0] = FEWEST_READINGS - 1, FEWEST_READINGS
    few, enough = detector_scores(detector, table)
    assert few == 0
    assert enough > 0.99


def test_a_sensor_that_never_changed_is_trained():
    """Any change of it is as rare as can be known."""
    table = vectors()
    at = {name: place for place, name in enumerate(names())}
    for name, place in at.items():
        if name.startswith("heat"):
            table[:, place] = 0
    detector = train_detector(table, names(), sensors=["heat"])
    changed = table[:1].copy()
    changed[:, at[feature_name("heat", "long", "deviation")]] = 20
    assert detector_scores(detector, table).max() <= 0.5
    assert detector_scores(detector, changed)[0] > 0.999


def test_a_detector_survives_a_file(detector):
    """Its description is plain data."""
    text = msgspec.json.encode(detector)
    assert msgspec.json.decode(text, type=Detector) == detector


def test_a_curve_without_rows_is_flat_and_rises_once():
    """It has two knots at least."""
    assert surprise_curve(np.zeros(100)).value[0] == 0
    assert len(score_curve(np.zeros(100)).at) >= 2


def test_a_measure_that_never_varies_is_no_surprise():
    """All rows have 2: only more than that surprises."""
    for curve in (
        surprise_curve(np.full(1_000, 2.0)),
        score_curve(np.full(1_000, 2.0)),
    ):
        found = apply_curve(curve, np.array([0, 2, 4, 8], np.float32))
        assert found[:2].tolist() == [0, 0]
        assert 0 < found[2] < found[3] < np.inf


def test_a_curve_interpolates_between_its_knots():
    """numpy.interp is the reference within the knots."""
    curve = Curve((0.0, 1.0, 4.0), (0.0, 2.0, 3.0), continues=False)
    asked = np.linspace(-1, 6, 50).astype(np.float32)
    expected = np.interp(asked, curve.at, curve.value)
    assert apply_curve(curve, asked) == pytest.approx(expected, abs=1e-6)


def test_bad_input_is_refused(detector):
    """A missing feature, too few rows, no sensor, another number of columns."""
    with pytest.raises(InputError, match="'heat_long_min' is missing"):
        train_detector(np.full((2_000, 2), 1e3), (READINGS, "heat"), sensors=["heat"])
    with pytest.raises(InputError, match=r"500 rows come after .* 1,000 are needed"):
        train_detector(vectors(500), names(), sensors=SENSORS)
    with pytest.raises(InputError, match="names no sensor"):
        train_detector(vectors(), names(), sensors=[])
    with pytest.raises(InputError, match=r"have shape \(4, 3\)"):
        detector_scores(detector, np.zeros((4, 3)))

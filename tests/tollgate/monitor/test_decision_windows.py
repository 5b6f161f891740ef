"""Windows: speed of detection, and no alarm for unchanged decisions."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.monitor.distributions import (
    DAY_US,
    MONDAY_US,
    NAMES,
    ROWS,
    drawn,
    rows_of,
    trained_on,
)
from tollgate.features.spec.feature_spec import FeatureSpec
from tollgate.monitor.decision_windows import ReleaseWindows
from tollgate.monitor.drift import ColumnResult, DriftLimits
from tollgate.monitor.training_baseline import Reference, reference_of
from tollgate.schema import ARTIFACT_FILE

SIZE = 2_500
STRICT = DriftLimits(psi=0.0, ks=0.0, false_alarms=0.1)  # then chance alone decides


@pytest.fixture(scope="module")
def reference() -> Reference:
    """Return the training distribution of columns of every shape."""
    return trained_on(drawn(ROWS, seed=1))


def release_windows(
    reference: Reference,
    *,
    limits: DriftLimits = DriftLimits(),  # noqa: B008
) -> ReleaseWindows:
    """Start to monitor a release."""
    return ReleaseWindows("fraud-1", reference, size=SIZE, limits=limits)


def column(verdicts: list[ColumnResult], name: str) -> ColumnResult:
    """Return the result of a column."""
    return next(one for one in verdicts if one.name == name)


@pytest.mark.parametrize("seed", range(5))
def test_50_000_unshifted_decisions_raise_no_alarm(
    reference: Reference, seed: int
) -> None:
    """Every column of every window and day holds."""
    stream = release_windows(reference)
    stream.add(rows_of(drawn(50_000, seed=100 + seed), every_us=4_000_000))
    stream.settle(MONDAY_US + 10 * DAY_US)
    assert stream.judged == {"decisions": 20, "day": 3}
    windows = [*stream.windows, *stream.days]
    assert {v.state for w in windows for v in w.verdicts} == {"holds"}


@pytest.mark.parametrize("onset", [0, 1, 700, 1_800, 2_499])
@pytest.mark.parametrize("name", [*NAMES, "score"])
@pytest.mark.parametrize("sign", [-1, 1])
def test_shift_of_two_sigmas_is_found_within_5_000_decisions(
    reference: Reference, name: str, onset: int, sign: int
) -> None:
    """In any column, at any place in a window, up or down."""
    values = drawn(SIZE + 5_000, seed=7)[: onset + 5_000]
    at = (*NAMES, "score").index(name)
    values[onset:, at] += 2 * sign * np.nanstd(drawn(ROWS, seed=1)[:, at])
    stream = release_windows(reference)
    stream.add(rows_of(values))
    assert name in [one.name for window in stream.windows for one in window.drifted]


def test_false_alarms_are_as_rare_as_stated() -> None:
    """
    With limits of nothing, a tenth of the unchanged releases may be accused, ever.

    Each of 80 draws its own training rows, too. What was found is beyond such limits
    in every window; that chance may have done it is all that speaks for it.
    """
    accused = 0
    for seed in range(80):
        stream = release_windows(
            trained_on(drawn(4_000, seed=1_000 + seed)), limits=STRICT
        )
        stream.add(rows_of(drawn(10_000, seed=5_000 + seed), seed=seed))
        accused += stream.drifted["decisions"] > 0
        states = {v.state for window in stream.windows for v in window.verdicts}
        assert "unsure" in states
    assert accused <= 8


def test_similar_rows_of_customers_raise_no_alarm() -> None:
    """100 equal rows of each of 100 customers count as 100 rows."""
    reference = trained_on(drawn(ROWS, seed=1))
    accused = 0
    for seed in range(30):
        own = drawn(100, seed=9_000 + seed).repeat(100, axis=0)
        who = np.arange(100).repeat(100)
        stream = release_windows(reference)
        stream.add(rows_of(own, seed=seed, customers=who))
        accused += stream.drifted["decisions"] > 0
    assert accused <= 1


def test_small_shift_is_no_drift_for_any_number_of_rows(
    reference: Reference,
) -> None:
    """A tenth of a sigma is certain after 80,000 rows, and accepted."""
    values = drawn(80_000, seed=8)
    values[:, 0] += 1.0
    stream = release_windows(reference)
    stream.add(rows_of(values, every_us=1_000_000))
    stream.settle(MONDAY_US + 10 * DAY_US)
    (day,) = stream.days
    found = column(day.verdicts, "normal")
    assert found.state == "holds"
    assert found.least.ks > 0
    assert found.sigmas == pytest.approx(0.1, abs=0.02)


def test_degraded_vectors_are_counted_and_are_no_drift(reference: Reference) -> None:
    """A store outage raises no alarm; windows wait for valid rows."""
    values = drawn(10_000, seed=9)
    apart = np.zeros(len(values), np.bool_)
    apart[500:700] = apart[3_000:7_000] = True
    values[apart] = 0
    stream = release_windows(reference)
    stream.add(rows_of(values, apart=apart))
    assert [window.mix.rows for window in stream.windows] == [2_700, 6_500]
    assert stream.windows[-1].mix.degraded() == {"STORE_UNAVAILABLE": 4_000}
    assert (stream.judged["decisions"], stream.troubled["decisions"]) == (1, 1)
    assert stream.drifted["decisions"] == 0
    assert stream.fates() == {
        "compared": 5_800,
        "degraded": 4_200,
        "withheld": 0,
        "unknown": 0,
    }


def test_field_that_is_no_longer_sent_is_found(reference: Reference) -> None:
    """A third more rows without a value, by the missing share."""
    values = drawn(5_000, seed=10)
    values[2_500:, 0] = np.nan
    stream = release_windows(reference)
    stream.add(rows_of(values))
    first, second = stream.windows
    assert column(first.verdicts, "holed").missing == pytest.approx(0.3, abs=0.03)
    assert not first.drifted
    assert [one.name for one in second.drifted] == ["normal"]


def test_rows_without_a_score_are_no_drift_of_the_score(reference: Reference) -> None:
    """A rule decided a third of them before the model; their features are compared."""
    values = drawn(5_000, seed=12)
    values[::3, -1] = np.nan
    stream = release_windows(reference)
    stream.add(rows_of(values))
    assert not any(window.drifted for window in stream.windows)
    score = column(stream.windows[0].verdicts, "score")
    assert (score.missing, score.state) == (0.0, "holds")
    assert column(stream.windows[0].verdicts, "holed").missing > 0.25


def test_windows_do_not_depend_on_the_size_of_reads(reference: Reference) -> None:
    """The same windows are judged alike."""
    values = drawn(8_000, seed=11)
    values[5_000:, 1] *= 5
    rows = rows_of(values)
    whole, pieces = release_windows(reference), release_windows(reference)
    whole.add(rows)
    for at in range(0, len(rows), 333):
        pieces.add(rows.take(slice(at, at + 333)))
    assert [w.verdicts for w in whole.windows] == [w.verdicts for w in pieces.windows]
    assert whole.drifted["decisions"] == 1


def test_day_is_judged_once_after_it_is_over(reference: Reference) -> None:
    """Not before its last decisions can be sealed."""
    stream = release_windows(reference)
    rows = rows_of(drawn(2_000, seed=12), every_us=60_000_000)  # a day and 9 hours
    stream.add(rows)
    stream.settle(MONDAY_US + DAY_US + 1)
    assert stream.judged["day"] == 0
    for _ in range(2):
        stream.settle(MONDAY_US + DAY_US + 600_000_000)
    assert [(day.number, day.rows) for day in stream.days] == [(1, 1_440)]
    stream.add(rows.take(slice(0, 10)))  # too late for its day
    stream.settle(MONDAY_US + 2 * DAY_US)
    assert stream.judged["day"] == 1


def test_calendar_feature_is_judged_over_a_whole_period(spec: FeatureSpec) -> None:
    """Half a week has no weekend: no drift, and no figure."""
    values = drawn(ROWS, seed=1)
    text = reference_of({ARTIFACT_FILE: b'{"training": null}'}, spec)
    assert "no training distribution" in str(text)
    reference = trained_on(values, spec=spec)
    assert {one.round_s for one in reference.columns} == {0}
    weekend = next(one for one in spec.features if one.calendar == "weekend")
    flag = NAMES.index("flag")
    columns = list(reference.columns)
    columns[flag] = type(columns[flag])(
        "feature", weekend.name, columns[flag].marks, 0.0, 7 * 86_400.0
    )
    short, long = (release_windows(Reference(ROWS, tuple(columns))) for _ in range(2))
    weekdays = drawn(2_500, seed=13)
    weekdays[:, flag] = 0
    short.add(rows_of(weekdays, every_us=60_000_000))
    long.add(rows_of(weekdays, every_us=300_000_000))
    for stream, state in ((short, "untold"), (long, "drift")):
        assert column(stream.windows[0].verdicts, weekend.name).state == state


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (b"{}", "has no training distribution"),
        (b"[1", "cannot be read"),
        (
            b'{"training": {"rows": 0, "quantiles": [0, 1], "features": {}}}',
            "no training rows",
        ),
        (
            b'{"training": {"rows": 9, "quantiles": [0, 0.5, 1], "features": '
            b'{"a": {"quantiles": [1, 2], "missing": 0}}}}',
            "has 2 quantiles of a, not 3",
        ),
        (
            b'{"training": {"rows": 9, "quantiles": [0, 0.5, 1], "features": '
            b'{"a": {"quantiles": [3, 2, 4], "missing": 0}}}}',
            "quantiles of a that fall",
        ),
    ],
)
def test_unusable_training_record_is_reported(record: bytes, expected: str) -> None:
    """Nothing is judged; decisions are still counted."""
    problem = reference_of({ARTIFACT_FILE: record}, None)
    assert isinstance(problem, str)
    assert expected in problem
    stream = ReleaseWindows("fraud-1", problem, size=SIZE, limits=DriftLimits())
    stream.add(rows_of(drawn(3_000, seed=14)))
    assert stream.fates()["unknown"] == 3_000
    assert stream.judged["decisions"] == 0
    assert stream.windows[0].mix.rows == SIZE

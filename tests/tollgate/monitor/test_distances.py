"""Distances, compared with hand arithmetic, other libraries and known samples."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from tests.support.monitor.distributions import NAMES, drawn, rows_of, trained_on
from tollgate.monitor.drift import (
    ComparedDistributions,
    band,
    chance_of,
    compare,
    compare_share,
    design_effect,
)
from tollgate.monitor.tallies import CLUSTERS, ColumnCounts
from tollgate.monitor.training_baseline import marks_of

SHARES = (0.0, 0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 1.0)

# PSI of a tenth where there was nothing, which counts as a ten-thousandth.
TENTH = (0.1 - 1e-4) * np.log(0.1 / 1e-4) + 0.1 * np.log(1 / 0.9)


def compared(values: np.ndarray, quantiles: list[float]) -> ComparedDistributions:
    """Compare values with listed quantiles."""
    marks = marks_of(quantiles, SHARES)
    cell = np.searchsorted(marks.values, values, side="left")
    cell = cell + np.searchsorted(marks.values, values, side="right")
    return compare(np.bincount(cell, minlength=2 * len(marks.values) + 1), marks)


def listed(values: np.ndarray) -> list[float]:
    """List quantiles as artifact.json has them."""
    return np.quantile(values, SHARES, method="nearest").tolist()


def test_psi_is_the_sum_of_its_bins() -> None:
    """Five bins of 0.1, 0.4, 0.5 against 0.2, 0.3, 0.5: 0.1 ln 2 + 0.1 ln (4/3)."""
    seen, trained = np.array([0.1, 0.5]), np.array([0.2, 0.5])
    found = ComparedDistributions(seen, trained, np.ones(2, np.bool_)).distance()
    assert found.psi == pytest.approx(0.1 * np.log(2) + 0.1 * np.log(4 / 3))
    assert found.ks == pytest.approx(0.1)


@pytest.mark.parametrize("moved", [0.0, 0.5, 2.0])
def test_distances_from_quantiles_are_near_those_of_all_rows(moved: float) -> None:
    """Nine quantiles give nearly the KS of scipy, and the PSI of the same bins."""
    chance = np.random.default_rng(1)
    before = chance.normal(0, 1, 50_000).astype(np.float32).astype(float)
    after = chance.normal(moved, 1, 50_000).astype(np.float32).astype(float)
    found = compared(after, listed(before)).distance()
    ks = stats.ks_2samp(before, after).statistic
    assert ks - 0.03 <= found.ks <= ks + 1e-4
    edges = [-np.inf, *listed(before)[1:-1], np.inf]
    one, other = (np.histogram(x, edges)[0] / len(x) for x in (after, before))
    psi = ((one - other) * np.log(np.maximum(one, 1e-4) / other)).sum()
    assert found.psi == pytest.approx(psi, rel=0.02, abs=1e-3)


@pytest.mark.parametrize("moved", [-1.0, 0.5, 1.0, 2.0])
def test_shift_is_in_standard_deviations(moved: float) -> None:
    """For a normal number, and for a skewed one, by its ranks."""
    chance = np.random.default_rng(2)
    before, after = chance.normal(0, 1, 50_000), chance.normal(moved, 1, 50_000)
    for shape in (np.copy, np.exp):
        found = compared(shape(after), listed(shape(before)))
        assert found.shift(50_000) == pytest.approx(moved, abs=0.06)


@pytest.mark.parametrize("share", [0.26, 0.3, 0.4, 0.49])
def test_share_within_the_record_has_no_distance(share: float) -> None:
    """Quantiles 0 0 0 0 0 1 1 1 1 are of any share of ones from 0.25 to 0.5."""
    ones = np.arange(1000) < share * 1000
    found = compared(ones.astype(float), [0.0] * 5 + [1.0] * 4).distance()
    assert (found.psi, found.ks) == (pytest.approx(0), pytest.approx(0))


def test_share_beyond_the_record_has_the_distance_to_it() -> None:
    """All ones: 0.5 from the most that the record allows."""
    found = compared(np.ones(1000), [0.0] * 5 + [1.0] * 4).distance()
    assert found.ks == pytest.approx(0.5)
    rare = compared(np.arange(1000) % 20 == 0, [0.0] * 8 + [1.0]).distance()
    assert rare.ks == pytest.approx(0.04)  # 5 % ones where there was up to 1 %


def test_change_of_a_constant_is_found() -> None:
    """All training rows were 3."""
    values = np.where(np.arange(1000) < 100, 7.0, 3.0)
    assert compared(np.full(1000, 3.0), [3.0] * 9).distance().ks == 0
    found = compared(values, [3.0] * 9).distance()
    assert found.ks == pytest.approx(0.1)
    assert found.psi == pytest.approx(TENTH)


def test_missing_values_are_a_distance() -> None:
    """A tenth of the rows has no value; in training all had one."""
    found = compare_share(0.1, 0.0).distance()
    assert found.ks == pytest.approx(0.1)
    assert found.psi == pytest.approx(TENTH)


def test_band_has_the_stated_coverage() -> None:
    """Of 4,000 samples of 200 rows, 5 % leave a band of 5 %, give or take 1."""
    drawn_ = np.sort(np.random.default_rng(3).random((4_000, 200)), axis=1)
    steps = np.arange(201) / 200
    off = np.maximum(steps[1:] - drawn_, drawn_ - steps[:-1]).max(axis=1)
    assert 0.03 < (off > band(200, 0.05)).mean() < 0.06


def test_chances_of_all_looks_add_up_to_half_of_the_limit() -> None:
    """For any number of windows."""
    total = sum(chance_of(0.01, look=look, events=4) * 4 for look in range(1, 10**5))
    assert 0.00499 < total < 0.005


def test_copied_rows_count_as_one() -> None:
    """20 copies of each customer count as one; rows of different customers as many."""
    values = drawn(40_000, seed=4)
    reference = trained_on(values)
    customers = np.repeat(np.arange(2_000), 20)
    copies = rows_of(values[::20].repeat(20, axis=0), customers=customers)
    for rows, alike in ((copies, 20), (rows_of(values), 1)):
        tally = ColumnCounts(reference)
        tally.add(rows)
        upto = np.cumsum(tally.cells[0], axis=1)[:, :-1]
        assert design_effect(upto, tally.rows) == pytest.approx(alike, rel=0.3)
    alone = np.zeros(CLUSTERS, np.int64)
    alone[7] = 500
    assert design_effect(alone[:, None] // 2, alone) == 500


def test_counts_of_parts_add_up() -> None:
    """No row is stored."""
    values = drawn(3_000, seed=5)
    reference = trained_on(drawn(5_000, seed=6))
    rows = rows_of(values)
    whole, parts = ColumnCounts(reference), ColumnCounts(reference)
    whole.add(rows)
    for at in range(0, len(rows), 700):
        parts.add(rows.take(slice(at, at + 700)))
    assert len(whole) == len(parts) == 3_000
    for one, other in zip(whole.cells, parts.cells, strict=True):
        assert (one == other).all()
    holed = whole.missing[NAMES.index("holed")].sum()
    assert holed == np.isnan(values[:, NAMES.index("holed")]).sum()

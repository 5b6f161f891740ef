"""Intervals, compared with hand calculation, scipy and simulated draws."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from tollgate.challenger import intervals
from tollgate.challenger.intervals import Interval


@pytest.mark.parametrize(
    ("hits", "rows"), [(0, 1), (0, 40), (1, 40), (20, 40), (40, 40), (7, 100_000)]
)
def test_share_has_wilsons_interval(hits: int, rows: int) -> None:
    """As in scipy, at both ends, too."""
    found = intervals.share(hits, rows)
    known = stats.binomtest(hits, rows).proportion_ci(0.95, method="wilson")
    assert found.value == hits / rows
    assert (found.low, found.high) == pytest.approx((known.low, known.high), abs=1e-12)


def test_no_flip_in_ten_rows_by_hand() -> None:
    """0 of n: from 0 to z^2 / (n + z^2), which is 3.8416 / 13.8416 for ten."""
    found = intervals.share(0, 10)
    assert (found.value, found.low) == (0.0, 0.0)
    assert found.high == pytest.approx(3.841459 / 13.841459, abs=1e-6)


def test_without_rows_the_interval_spans_everything() -> None:
    """The value is NaN."""
    found = [
        intervals.share(0, 0),
        intervals.worth_share(0, 0, hit_squares=0, squares=0),
        intervals.difference(0, 0, than=(3, 10)),
        intervals.difference(3, 10, than=(0, 0)),
        intervals.paired_difference(0, 0, rows=0),
        intervals.mean(0.0, 0.0, 0),
        intervals.quantile([0, 0], [0.0, 1.0, 2.0], at=0.99),
        intervals.ks_distance([0, 0], [1, 1]),
        intervals.stability_index([0, 0], [0, 0]),
    ]
    assert all(math.isnan(one.value) for one in found)
    assert [(one.low, one.high) for one in found] == [
        (0, 1),
        (0, 1),
        (-1, 1),
        (-1, 1),
        (-1, 1),
        (-math.inf, math.inf),
        (0, math.inf),
        (0, 1),
        (0, math.inf),
    ]


@pytest.mark.parametrize(
    ("one", "other", "low", "high"),
    [
        # Newcombe (1998), table II, method 10.
        ((56, 70), (48, 80), 0.0524, 0.3339),
        ((9, 10), (3, 10), 0.1705, 0.8090),
        ((6, 7), (2, 7), 0.0582, 0.8062),
        ((5, 56), (0, 29), -0.0381, 0.1926),
        ((0, 10), (0, 20), -0.1611, 0.2775),
        ((0, 10), (0, 10), -0.2775, 0.2775),
        ((10, 10), (0, 20), 0.6791, 1.0000),
        ((10, 10), (0, 10), 0.6075, 1.0000),
    ],
)
def test_difference_has_newcombes_interval(
    one: tuple[int, int], other: tuple[int, int], low: float, high: float
) -> None:
    """His own examples, to his four digits."""
    found = intervals.difference(*one, than=other)
    assert (found.low, found.high) == pytest.approx((low, high), abs=6e-5)


def test_paired_difference_by_hand() -> None:
    """12 more, 2 less in 44 rows: (10 / 46) -+ 1.96 sqrt(15 - 100 / 46) / 46."""
    found = intervals.paired_difference(12, 2, rows=44)
    half = 1.959964 * math.sqrt(15 - 100 / 46) / 46
    assert found.value == pytest.approx(10 / 44)
    assert found.low == pytest.approx(10 / 46 - half)
    assert found.high == pytest.approx(10 / 46 + half)
    nothing = intervals.paired_difference(0, 0, rows=100)
    assert nothing.value == 0
    assert nothing.high == -nothing.low == pytest.approx(1.959964 / 102)


def test_mean_has_the_normal_interval() -> None:
    """As in numpy and scipy."""
    drawn = np.random.default_rng(4).normal(0.3, 0.1, 500)
    found = intervals.mean(float(drawn.sum()), float((drawn**2).sum()), 500)
    low, high = stats.norm.interval(0.95, drawn.mean(), stats.sem(drawn))
    assert (found.value, found.low, found.high) == pytest.approx(
        (drawn.mean(), low, high), abs=1e-9
    )
    assert intervals.mean(0.4, 0.16, 1) == Interval(0.4, -math.inf, math.inf)
    assert intervals.mean(0.0, 0.0, 9) == Interval(0.0, 0.0, 0.0)


def test_share_of_equal_amounts_is_a_share_of_rows() -> None:
    """Then Cochran's variance is the binomial's."""
    found = intervals.worth_share(
        30 * 500.0, 400 * 500.0, hit_squares=30 * 500.0**2, squares=400 * 500.0**2
    )
    rows = intervals.share(30, 400)
    assert (found.value, found.low, found.high) == pytest.approx(
        (rows.value, rows.low, rows.high)
    )


def test_interval_of_no_moved_money_is_not_zero() -> None:
    """99 rows of 1 and one of 99: worth as much as four rows that are alike."""
    total, squares = 99 + 99.0, 99 + 99.0**2
    found = intervals.worth_share(0.0, total, hit_squares=0.0, squares=squares)
    alike = total * total / squares
    assert alike == pytest.approx(3.96)
    assert found.high == pytest.approx(3.841459 / (alike + 3.841459), abs=1e-6)


def test_quantile_lies_between_its_order_statistics() -> None:
    """The 99th of 1,000 rows, one to a bin: ranks 983 and 998, by hand."""
    edges = [float(at) for at in range(1_001)]
    found = intervals.quantile([1] * 1_000, edges, at=0.99)
    # 990 -+ 1.96 sqrt(9.9) = 983.8 and 996.2: down to 983, up to 997, and one.
    assert found == Interval(989.5, 982.0, 998.0)
    assert intervals.quantile([1] * 100, edges[:101], at=0.99).high == math.inf


def test_ks_distance_equals_scipys() -> None:
    """On bins of one value each; at most 1, at least 0."""
    chance = np.random.default_rng(5)
    a, b = chance.integers(0, 50, 900), chance.integers(5, 50, 700)
    counts = [np.bincount(one, minlength=50).tolist() for one in (a, b)]
    found = intervals.ks_distance(*counts)
    assert found.value == pytest.approx(stats.ks_2samp(a, b).statistic)
    within = math.sqrt(math.log(80) / 1_800) + math.sqrt(math.log(80) / 1_400)
    assert found.low == max(0.0, found.value - within)
    assert intervals.ks_distance([4, 0], [4, 0]).value == 0
    assert intervals.ks_distance([4, 0], [0, 4]).value == 1


def test_stability_index_by_hand() -> None:
    """Two bins, 600 and 400 against 500 and 500, with half a row in each."""
    found = intervals.stability_index([600, 400], [500, 500])
    p, q = (600.5 / 1_001, 400.5 / 1_001), (0.5, 0.5)
    by_hand = sum((b - a) * math.log(b / a) for a, b in zip(p, q, strict=True))
    assert found.value == pytest.approx(by_hand)
    assert found.low < by_hand < found.high


@pytest.mark.parametrize("moved", [(50, 0), (0, 50)])
def test_scores_that_left_their_only_bin_are_detected(moved: tuple[int, int]) -> None:
    """To either side of it."""
    before, after = [0, 1_000, 0], [moved[0] * 20, 0, moved[1] * 20]
    assert intervals.stability_index(before, after).low > 1


def test_intervals_have_the_stated_coverage() -> None:
    """At least 92 % of 400 draws each hold the truth; chance alone breaks no limit."""
    chance = np.random.default_rng(6)
    p, q = np.full(10, 0.1), np.linspace(0.06, 0.14, 10)
    truth = float(((q - p) * np.log(q / p)).sum())
    worth = chance.lognormal(8, 1.5, 20_000)
    flipped = chance.random(20_000) < 0.02 + 0.1 * (worth > 20_000)
    share = worth[flipped].sum() / worth.sum()
    held = {"psi": 0, "money": 0, "chance": 0}
    for _ in range(400):
        one = chance.multinomial(2_000, p).tolist()
        found = intervals.stability_index(one, chance.multinomial(2_000, q).tolist())
        held["psi"] += found.low <= truth <= found.high
        same = intervals.stability_index(one, chance.multinomial(2_000, p).tolist())
        held["chance"] += same.low == 0
        rows = chance.integers(0, 20_000, 1_500)
        c, f = worth[rows], flipped[rows]
        money = intervals.worth_share(
            c[f].sum(),
            c.sum(),
            hit_squares=(c[f] ** 2).sum(),
            squares=(c * c).sum(),
        )
        held["money"] += money.low <= share <= money.high
    assert min(held.values()) >= 0.92 * 400, held


def test_design_effect_by_hand() -> None:
    """Two clusters of 10, 8 and 2 hit: 2 (3^2 + 3^2) / (20 x 0.25) = 7.2."""
    assert intervals.design_effect([10, 10, 0], [8, 2, 0]) == pytest.approx(7.2)
    assert intervals.design_effect([10, 10], [5, 5]) == 1  # less than strangers: 1
    assert intervals.design_effect([10, 0], [5, 0]) == 1  # one cluster shows nothing
    assert intervals.design_effect([10, 10], [0, 0]) == 1
    assert intervals.design_effect([0, 0], [0, 0]) == 1


def test_similar_rows_of_a_customer_widen_the_interval() -> None:
    """
    Of 400 draws of 300 customers with 20 rows each, who are hit or not as people.

    At least 92 % hold the truth with the design effect; without it far fewer.
    """
    chance = np.random.default_rng(7)
    held = alone = 0
    for _ in range(400):
        people = chance.beta(0.2, 1.8, 300)  # 10 % in the mean
        hits = chance.binomial(20, people)
        heap = chance.integers(0, 64, 300)
        by_rows = np.bincount(heap, minlength=64) * 20
        by_hits = np.bincount(heap, weights=hits, minlength=64)
        effect = intervals.design_effect(by_rows.tolist(), by_hits.tolist())
        found = intervals.share(hits.sum() / effect, 6_000 / effect)
        held += found.low <= 0.1 <= found.high
        found = intervals.share(int(hits.sum()), 6_000)
        alone += found.low <= 0.1 <= found.high
    assert held >= 0.92 * 400, held
    assert alone < 0.8 * 400, alone

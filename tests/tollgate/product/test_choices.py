"""Which rows a product is judged on, and the thresholds that come of them."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from tollgate.features.spec import FeatureSpec
from tollgate.product.splitting import held_out, split
from tollgate.product.thresholds import choose

DAY_US = 86_400_000_000
LABEL = np.tile(np.array([1, 0, 0, 0], np.int8), 50)


def test_the_last_fifth_in_time_is_held_out() -> None:
    """In whatever order the rows are."""
    time_us = np.random.default_rng(0).permutation(200) * 1_000
    test = held_out(LABEL, time_us=time_us)
    assert test.sum() == 40
    assert time_us[test].min() > time_us[~test].max()


def test_without_times_a_fifth_of_each_outcome_is_drawn() -> None:
    """The same rows for the same seed."""
    test = held_out(LABEL, time_us=np.zeros(200, np.int64))
    assert (test[LABEL == 1].sum(), test[LABEL == 0].sum()) == (10, 30)
    again = held_out(LABEL, time_us=np.zeros(200, np.int64))
    np.testing.assert_array_equal(test, again)


def test_where_the_last_rows_have_one_outcome_rows_are_drawn() -> None:
    """Nothing could be judged on them."""
    label = np.sort(LABEL)[::-1]
    test = held_out(label, time_us=np.arange(200))
    assert sorted(set(label[test])) == [0, 1]


def test_rows_with_cut_windows_are_not_learned_from(spec: FeatureSpec) -> None:
    """The longest one has 30 days; unless too few rows were left."""
    days = np.arange(200, dtype=np.int64)
    train, test = split(LABEL, time_us=days * DAY_US, spec=spec)
    np.testing.assert_array_equal(np.flatnonzero(train), np.arange(30, 160))
    np.testing.assert_array_equal(np.flatnonzero(test), np.arange(160, 200))
    train, _ = split(LABEL, time_us=days * DAY_US // 4, spec=spec)
    assert train.sum() == 160
    plain = msgspec.structs.replace(spec, entities=())
    train, _ = split(LABEL, time_us=days * DAY_US, spec=plain)
    assert train.sum() == 160


def test_three_of_four_declined_rows_are_right() -> None:
    """From the lowest score on at which that holds; then comes a tenth for review."""
    score = np.arange(1000) / 1000
    label = np.zeros(1000, np.int8)
    label[900:] = 1  # all of the last hundred
    label[860:900:4] = 1  # a quarter of those before
    chosen = choose(score, label)
    declined = label[score >= chosen.decline]
    assert 0.75 <= declined.mean() < 0.77
    assert (chosen.declined, chosen.found_declined) == (len(declined), declined.sum())
    assert chosen.reviewed == 100
    reviewed = (score >= chosen.review) & (score < chosen.decline)
    assert chosen.found_reviewed == label[reviewed].sum()


@pytest.mark.parametrize("share", [0.0, 0.4])
def test_where_no_score_is_sure_nothing_is_declined(share: float) -> None:
    """A tenth is still looked at."""
    label = np.zeros(1000, np.int8)
    label[: round(share * 1000)] = 1
    score = np.random.default_rng(1).permutation(1000) / 1001
    chosen = choose(score, label)
    assert (chosen.decline, chosen.declined) == (1.0, 0)
    assert chosen.reviewed == 100


def test_never_more_than_half_are_declined() -> None:
    """Where nearly all have the outcome."""
    label = np.ones(1000, np.int8)
    label[::10] = 0
    chosen = choose(np.arange(1000) / 1000, label)
    assert chosen.declined == 500


@pytest.mark.parametrize("label", [LABEL[:100], 1 - LABEL[:100]])
def test_equal_scores_go_together(label: np.ndarray) -> None:
    """One score for all would decline all; thresholds stay in their order."""
    chosen = choose(np.full(100, 0.3), label.astype(np.int8))
    assert chosen.review <= chosen.decline
    assert chosen.declined == 0

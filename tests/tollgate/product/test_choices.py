"""The selection of held-out rows."""

from __future__ import annotations

import msgspec
import numpy as np

from tollgate.features.spec.feature_spec import FeatureSpec
from tollgate.product.splitting import describe, held_out, split

DAY_US = 86_400_000_000
LABEL = np.tile(np.array([1, 0, 0, 0], np.int8), 50)


def test_the_last_fifth_in_time_is_held_out() -> None:
    """In any order of the rows."""
    time_us = np.random.default_rng(0).permutation(200) * 1_000
    test = held_out(LABEL, time_us=time_us)
    assert test.sum() == 40
    assert time_us[test].min() > time_us[~test].max()


def test_without_times_a_random_fifth_of_each_outcome_is_held_out() -> None:
    """The same seed gives the same rows."""
    test = held_out(LABEL, time_us=np.zeros(200, np.int64))
    assert (test[LABEL == 1].sum(), test[LABEL == 0].sum()) == (10, 30)
    again = held_out(LABEL, time_us=np.zeros(200, np.int64))
    np.testing.assert_array_equal(test, again)


def test_random_rows_are_held_out_if_the_last_have_one_outcome() -> None:
    """A model cannot be evaluated on one outcome."""
    label = np.sort(LABEL)[::-1]
    test = held_out(label, time_us=np.arange(200))
    assert sorted(set(label[test])) == [0, 1]


def test_rows_with_incomplete_windows_are_not_used_for_training(
    spec: FeatureSpec,
) -> None:
    """The longest window has 30 days; if too few rows are left, all are used."""
    days = np.arange(200, dtype=np.int64)
    train, test = split(LABEL, time_us=days * DAY_US, spec=spec)
    np.testing.assert_array_equal(np.flatnonzero(train), np.arange(30, 160))
    np.testing.assert_array_equal(np.flatnonzero(test), np.arange(160, 200))
    train, _ = split(LABEL, time_us=days * DAY_US // 4, spec=spec)
    assert train.sum() == 160
    plain = msgspec.structs.replace(spec, entities=())
    train, _ = split(LABEL, time_us=days * DAY_US, spec=plain)
    assert train.sum() == 160


def test_description_of_held_out_rows_names_their_selection() -> None:
    """By days, or as random; the comment of the policy has this text."""
    day = np.datetime64("2026-01-01", "us").astype(np.int64)
    time_us = day + np.arange(200) * DAY_US
    test = held_out(LABEL, time_us=time_us)
    words = "the last fifth in time, 2026-06-10 to 2026-07-19"
    assert describe(test, time_us=time_us) == words
    drawn = held_out(LABEL, time_us=np.zeros(200, np.int64))
    words = "a fifth of each outcome, drawn by chance"
    assert describe(drawn, time_us=np.zeros(200, np.int64)) == words

"""Columns that duplicate another one, or give the outcome away."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pytest

from tollgate.evaluation import roc_auc
from tollgate.product.columns import Column, classify_column
from tollgate.product.plan import drop_duplicates, leak_reason, solo_auc

POSITIVE = np.tile([True, False, False, True], 50)
CHANCE = np.random.default_rng(5)
NOISE = CHANCE.normal(size=200).round(3)


def column(values: Any, name: str = "it") -> Column:
    """Classify a usable column."""
    found = classify_column(pl.Series(name, values))
    assert isinstance(found, Column), found
    return found


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (POSITIVE.astype(int), "equals the outcome"),
        (np.where(POSITIVE, "bad", "good"), "equals the outcome"),
        (np.where(POSITIVE, np.arange(200) % 4, 9), "determines the outcome: each"),
        (np.where(POSITIVE, NOISE + 100, NOISE), "determines the outcome: one thresh"),
        (pl.Series([1 if one else None for one in POSITIVE]), "is empty in just"),
        (pl.Series([None if one else "x" for one in POSITIVE]), "is empty in just"),
    ],
)
def test_column_that_reveals_the_outcome_is_found(values: Any, words: str) -> None:
    """By its values, by one threshold, or by where it is empty."""
    assert leak_reason(column(values), POSITIVE).startswith(words)


@pytest.mark.parametrize(
    "values",
    [
        NOISE,
        CHANCE.choice(["a", "b", "c"], 200),
        np.where(np.arange(200) == 0, 1 - POSITIVE, POSITIVE.astype(int)),
        pl.Series([None if at % 5 == 0 else at % 7 for at in range(200)]),
        # Every value is of one row, so each goes with one outcome, by chance.
        CHANCE.permutation(200) * 3 + 1,
    ],
)
def test_honest_column_is_no_leak(values: Any) -> None:
    """Also a column that is wrong in a single row, or different in each."""
    assert leak_reason(column(values), POSITIVE) == ""


def test_first_of_equal_columns_is_used() -> None:
    """Nulls compare equal; so do numbers and their texts."""
    first = [1.5, None, 2.5, 2.5]
    columns = [
        column(first, "a"),
        column([1.5, None, 2.5, 9.0], "b"),
        column(["1.5", "", "2.5", "2.5"], "c"),
        column(["x", "y", "x", "y"], "d"),
        column(["x", "y", "x", "y"], "e"),
    ]
    distinct, excluded = drop_duplicates(columns)
    assert [one.source for one in distinct] == ["a", "b", "d"]
    assert [(one.source, one.reason) for one in excluded] == [
        ("c", "is the same as 'a'"),
        ("e", "is the same as 'd'"),
    ]


def test_solo_auc_is_the_auc_of_the_column_alone() -> None:
    """At least 0.5; words are ranked by their share of outcomes."""
    values = NOISE + POSITIVE
    wanted = roc_auc(POSITIVE.astype(int), values)
    assert solo_auc(column(values.round(3)), POSITIVE) == pytest.approx(
        wanted, abs=0.01
    )
    turned = solo_auc(column((-values).round(3)), POSITIVE)
    assert turned == pytest.approx(wanted, abs=0.01)
    words = np.where(NOISE > 0.3, "x", np.where(POSITIVE, "y", "z"))
    assert solo_auc(column(words), POSITIVE) > 0.75

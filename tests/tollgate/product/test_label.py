"""The label: the outcome that the score is the probability of."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pytest

from tollgate.errors import InputError
from tollgate.product.label import find_label


def label(values: list[Any]) -> pl.Series:
    """Make an outcome for each of some hundred rows."""
    return pl.Series("y", values * 30)


@pytest.mark.parametrize(
    ("values", "positive"),
    [
        ([0, 1, 0], "1"),
        ([1.0, 2.0, 1.0], "2"),
        (["1", "2", "2"], "2"),
        ([-1, 1, 1], "1"),
        (["yes", "no", "no"], "yes"),
        (["No", "Yes", "Yes"], "Yes"),
        ([True, False, True], "1"),
        (["good", "bad", "good"], "bad"),
        (["spam", "ham", "ham"], "spam"),
    ],
    ids=str,
)
def test_usual_positive_outcome_of_two_is_chosen(
    values: list[Any], positive: str
) -> None:
    """It is yes, true or the larger number; else the rarer outcome."""
    found = find_label(label(values), source="t", positive=None)
    assert found.positive == positive
    texts = [str(one) for one in values]
    wanted = [one in (positive, f"{positive}.0", "True") for one in texts] * 30
    np.testing.assert_array_equal(found.values == 1, wanted)


def test_named_outcome_of_several_is_positive() -> None:
    """The others count as one outcome."""
    found = find_label(label(["a", "b", "c"]), source="t", positive="b")
    assert sorted(found.others) == ["a", "c"]
    assert found.share == pytest.approx(1 / 3)


def test_rows_without_outcome_are_unknown() -> None:
    """Null, NaN and blank count as no outcome."""
    found = find_label(label(["1", "0", " ", None]), source="t", positive=None)
    assert found.known.tolist()[:4] == [True, True, False, False]
    numbers = find_label(label([1.0, 0.0, float("nan")]), source="t", positive=None)
    assert numbers.known.sum() == 60


@pytest.mark.parametrize(
    ("values", "positive", "words"),
    [
        ([1], None, "is '1' in every row: there is nothing to learn"),
        ([None], None, "is empty: there is no outcome"),
        (["a", "b", "c"], None, "has 3 outcomes, "),
        (list(range(50)), None, "has 50 different values in 1,500 rows"),
        (["a", "b"], "z", "no row is 'z'; there are "),
    ],
)
def test_column_without_two_usable_outcomes_is_refused(
    values: list[Any], positive: str | None, words: str
) -> None:
    """The message names the problem and the remedy."""
    with pytest.raises(InputError) as caught:
        find_label(label(values), source="t", positive=positive)
    assert str(caught.value).startswith(f"t: y: {words}")


def test_too_few_rows_of_an_outcome_are_refused() -> None:
    """Also 19 rows of one outcome."""
    for values in ([0, 1] * 5, [1] * 19 + [0] * 500, [0] * 19 + [1] * 500):
        with pytest.raises(InputError, match="at least 20 of either outcome"):
            find_label(pl.Series("y", values), source="t", positive=None)

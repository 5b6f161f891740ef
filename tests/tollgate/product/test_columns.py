"""The classification of a column by its values."""

from __future__ import annotations

import datetime as dt
from typing import Any

import polars as pl
import pytest

from tollgate.product.columns import MOST_WORDS, Column, ExcludedColumn, classify_column

ROWS = 40


def column(values: list[Any], **options: Any) -> pl.Series:
    """Return a column of 40 rows."""
    repeated = (values * ROWS)[:ROWS]
    return pl.Series("it", repeated, **options)


def taken(series: pl.Series) -> Column:
    """Classify a usable column."""
    found = classify_column(series)
    assert isinstance(found, Column), found
    return found


def reason(series: pl.Series) -> str:
    """Return the reason why a column is excluded."""
    found = classify_column(series)
    assert isinstance(found, ExcludedColumn), found
    return found.reason


def test_numbers_have_their_decimals_and_range() -> None:
    """Numbers and texts of numbers alike."""
    for values in ([1.25, -3.5, None], ["1.25", " -3.5", "n/a"]):
        found = taken(column(values))
        assert (found.kind, found.decimals) == ("number", 2)
        assert (found.low, found.high, found.missing) == (-3.5, 1.25, 13)


def test_stray_texts_among_numbers_are_missing_and_noted() -> None:
    """If they are at most a tenth of the values."""
    found = taken(column([*map(str, range(12)), "oops"]))
    assert found.kind == "number"
    assert found.notes == ("3 texts such as 'oops' count as missing",)


def test_true_and_false_are_numbers() -> None:
    """They are 0 and 1."""
    found = taken(column([True, False, None]))
    assert (found.low, found.high, found.decimals) == (0, 1, 0)


def test_words_are_in_alphabetical_order() -> None:
    """pandas and scikit-learn number them in this order."""
    found = taken(column(["b", "a", "", None, "c"]))
    assert (found.kind, found.words, found.missing) == ("category", ("a", "b", "c"), 16)
    assert taken(column(["b", "a"], dtype=pl.Categorical)).words == ("a", "b")


def test_commonest_of_many_words_are_used() -> None:
    """If they cover half of the rows."""
    words = [f"w{at:03}" for at in range(400) for _ in range(3)] + ["w000"] * 50
    found = taken(pl.Series("it", words))
    assert len(found.words) == MOST_WORDS
    assert found.notes[0].startswith("the commonest 250 of 400 words")
    rare = [f"w{at:03}" for at in range(600) for _ in range(3)]
    assert "none of them common" in reason(pl.Series("it", rare))


def test_codes_with_leading_zeros_are_words() -> None:
    """A postcode is no number."""
    assert taken(column(["01234", "99999"])).words == ("01234", "99999")


@pytest.mark.parametrize(
    ("series", "words"),
    [
        (column([7]), "is 7 in every row"),
        (column(["x"]), "is 'x' in every row"),
        (column([None], dtype=pl.Float64), "is empty"),
        (column([None]), "is empty"),
        (column(["", "  "]), "is empty"),
        (column([dt.date(2024, 1, 1)]), "is a time"),
        (column(["2024-01-01", "2024-02-01"]), "is a time"),
        (column(["01.02.2024", "17.02.2024"]), "is a time"),
        (column([[1], [2]]), "holds List"),
        (column([{"a": 1}]), "holds Struct"),
        (pl.Series("it", range(100, 140)), "numbers the rows"),
        (pl.Series("user_id", [at * 17 for at in range(40)]), "numbers the rows"),
        (pl.Series("it", [f"person {at}" for at in range(40)]), "ids or free text"),
        (column([10**15, 1]), "goes beyond 1e+12"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_useless_column_is_excluded(series: pl.Series, words: str) -> None:
    """The reason is reported."""
    assert reason(series).startswith(words) or words in reason(series)


def test_mix_of_numbers_and_texts_is_excluded() -> None:
    """Half numbers and half texts, all different."""
    values = [str(at) if at % 2 else f"word {at}" for at in range(400)]
    assert reason(pl.Series("it", values)).startswith("mixes numbers (50%) and texts")


def test_null_counts_as_a_second_value() -> None:
    """A missing value may carry information."""
    assert taken(column([7, None])).missing == 20
    assert taken(column(["x", None])).words == ("x",)


def test_more_than_four_decimals_are_exact() -> None:
    """No digit is lost, also in very small numbers."""
    found = taken(column([0.12345, -1e-7]))
    assert (found.decimals, found.low, found.high) == (None, -1e-7, 0.12345)
    assert found.notes == ()

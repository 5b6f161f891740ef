"""Numbers, times and words of a column, in all notations."""

from __future__ import annotations

import datetime as dt
import math

import polars as pl
import pytest

from tollgate.product.table_reading import (
    as_numbers,
    as_text,
    as_times_us,
    decimals_of,
    has_placed_zeros,
)

NOON_US = 1_709_553_600_000_000  # 2024-03-04T12:00:00Z


def test_texts_of_numbers_are_numbers() -> None:
    """Blanks and words such as n/a are missing; other texts are counted."""
    column = pl.Series([" 1", "2.5", "", "N/A", None, "abc", "-"])
    found = as_numbers(column)
    assert found.values.to_list() == [1.0, 2.5, None, None, None, None, None]
    assert (found.texts, found.example) == (1, "abc")


def test_infinite_numbers_are_missing() -> None:
    """NaN is missing, too; only infinities are counted."""
    found = as_numbers(pl.Series([1.0, math.nan, math.inf, -math.inf, None]))
    assert found.values.to_list() == [1.0, None, None, None, None]
    assert found.infinite == 2


@pytest.mark.parametrize(
    ("values", "decimals"),
    [
        ([1.0, -20.0], 0),
        ([0.1, 0.3, 1234567.9], 1),
        ([0.29, 57.29, 1e6 + 0.57], 2),
        ([0.0001], 4),
        ([1 / 3], None),
        ([1e-7, 0.5], None),
        ([0.1 + 0.2], None),  # 0.30000000000000004
        ([123_456_789_012.5], None),
    ],
)
def test_decimals_are_found_from_the_values(
    values: list[float], decimals: int | None
) -> None:
    """At most four; None if rounding would change a value."""
    assert decimals_of(pl.Series(values)) == decimals


@pytest.mark.parametrize(
    "column",
    [
        pl.Series([dt.datetime(2024, 3, 4, 12)]),
        pl.Series([dt.datetime(2024, 3, 4, 13)]).dt.replace_time_zone("Europe/Berlin"),
        pl.Series(["2024-03-04 12:00:00"]),
        pl.Series(["04.03.2024 12:00"]),
        pl.Series(["2024/03/04 12:00:00"]),
        pl.Series([" 04/03/2024 12:00:00 PM"]),
        pl.Series(["2024-03-04T12:00:00.000Z"]),
        pl.Series(["2024-03-04T07:00:00-05:00"]),
        pl.Series([NOON_US // 10**6]),
        pl.Series([NOON_US / 10**3]),
        pl.Series([NOON_US]),
        pl.Series([str(NOON_US)]),
    ],
    ids=lambda column: str(column[0]),
)
def test_time_is_the_same_in_all_notations(column: pl.Series) -> None:
    """Datetimes with and without a zone, texts, and counts since 1970."""
    assert as_times_us(column).to_list() == [NOON_US]


@pytest.mark.parametrize("form", ["%d/%m/%Y %H:%M:%S", "%m/%d/%Y %I:%M:%S %p"])
def test_day_and_month_are_read_so_that_days_follow_each_other(form: str) -> None:
    """From the 2nd to the 9th of March either could be the day."""
    times = [dt.datetime(2024, 3, day, 12) for day in range(2, 10)]
    texts = pl.Series([one.strftime(form) for one in times])
    assert as_times_us(texts).cast(pl.Datetime("us")).to_list() == times


def test_times_of_a_zone_with_daylight_saving_have_two_offsets() -> None:
    """New York is four hours behind UTC in summer, five in winter."""
    summer, winter = "2024-07-01T08:00:00-04:00", "2024-01-01T07:00:00-05:00"
    noon = [dt.datetime(2024, month, 1, 12, tzinfo=dt.timezone.utc) for month in (7, 1)]
    found = as_times_us(pl.Series([summer, winter])).to_list()
    assert found == [int(one.timestamp()) * 10**6 for one in noon]


def test_dates_are_times_and_other_values_are_null() -> None:
    """Values that are no time, or of another century, are null."""
    days = pl.Series(["04.03.2024", "31.12.2024", "soon", None])
    assert as_times_us(days).null_count() == 2
    assert as_times_us(pl.Series([dt.date(1950, 1, 1)])).to_list() == [None]
    assert as_times_us(pl.Series([True])).to_list() == [None]


def test_texts_that_a_request_cannot_have_are_missing() -> None:
    """Empty ones and those over 128 bytes."""
    texts = pl.Series(["a", "", "  ", "x" * 129, "ü" * 64, None])
    assert as_text(texts).to_list() == ["a", None, None, None, "ü" * 64, None]


def test_leading_zero_makes_a_number_a_code() -> None:
    """01234 would lose its zero as a number; 0 and 0.5 do not."""
    assert has_placed_zeros(pl.Series(["01234", "2"]))
    assert not has_placed_zeros(pl.Series(["0", "0.5"]))
    assert not has_placed_zeros(pl.Series([1, 2]))


def test_float32_column_has_the_values_of_the_file() -> None:
    """0.1 is no tenth in float32; 0.25 is a quarter."""
    singles = pl.Series([0.1, 19.99], dtype=pl.Float32).cast(pl.Float64)
    assert decimals_of(singles) is None
    assert decimals_of(pl.Series([0.25], dtype=pl.Float32).cast(pl.Float64)) == 2

"""Each bad row is named by field and value, and says nothing about its neighbours."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tollgate.features.fields import hash_words
from tollgate.features.spec.spec_definition import Field
from tollgate.features.windows.entity_entries import MISSING
from tollgate.schema import ERROR_BYTES
from tollgate.validation import Checked, check_fields, check_rows

pytestmark = pytest.mark.usefixtures("both_packers")

NOW_US = 1_800_000_000_000_000
GOOD = {"transaction_id": b"t1", "customer_id": b"c1", "amount": 12.34, "time": NOW_US}


def check(*rows: dict[str, object]) -> Checked:
    """Check rows that differ from a good one in what is given."""
    full = [GOOD | row for row in rows]
    return check_rows(
        {
            name: [row[name] for row in full]  # type: ignore[misc]
            for name in ("transaction_id", "customer_id")
        },
        amount=np.array([row["amount"] for row in full], np.float64),
        time_us=np.array([row["time"] for row in full], np.int64),
        now_us=NOW_US,
    )


BAD = [
    ({"transaction_id": b""}, 'transaction_id: "": is empty'),
    ({"customer_id": b"x" * 129}, "customer_id: "),
    ({"customer_id": b"\xff\xfe"}, 'customer_id: "\\xff\\xfe": is not UTF-8'),
    ({"amount": -1.0}, "amount: -1.0: is negative"),
    ({"amount": math.nan}, "amount: nan: is not a finite number"),
    ({"amount": math.inf}, "amount: inf: is not a finite number"),
    ({"amount": -math.inf}, "amount: -inf: is not a finite number"),
    ({"amount": 1.005}, "amount: 1.005: is not in whole cents"),
    ({"amount": 10_000_000.01}, "amount: 10000000.01: is over 10000000.00"),
    ({"amount": 1e300}, "amount: 1e+300: is over 10000000.00"),
    ({"time": 946_684_799_999_999}, "event_time: 946684799999999: is before the year"),
    ({"time": NOW_US + 86_400_000_001}, "is over a day ahead"),
    ({"time": -(2**63)}, "event_time: -9223372036854775808: is before the year 2000"),
]


@pytest.mark.parametrize(("change", "words"), BAD)
def test_a_bad_row_is_named_and_its_neighbours_are_not(
    change: dict[str, object], words: str
) -> None:
    """The middle one of three rows is bad; the others keep their cents."""
    checked = check({}, change, {})
    assert list(checked.errors) == [1]
    assert words in checked.errors[1]
    assert checked.bad.tolist() == [False, True, False]
    assert checked.cents.tolist() == [1234, 0, 1234]


@pytest.mark.parametrize(
    "amount", [0.0, 0.01, 57.160000000000004, 0.1 + 0.2, 10_000_000.0, 8.98]
)
def test_an_amount_that_is_cents_but_for_binary_noise_is_good(amount: float) -> None:
    """Cents are the nearest integer to a hundred times the amount."""
    checked = check({"amount": amount})
    assert not checked.errors
    assert checked.cents.tolist() == [round(amount * 100)]


def test_limits_themselves_are_allowed() -> None:
    """128 bytes, the first moment of 2000, exactly a day ahead: all good."""
    checked = check(
        {"customer_id": "ü".encode() * 64},
        {"time": 946_684_800_000_000},
        {"time": NOW_US + 86_400_000_000},
    )
    assert checked.errors == {}


def test_the_first_wrong_field_is_the_one_told() -> None:
    """A row with two faults has one error: of the field that stands first."""
    checked = check({"customer_id": b"", "amount": -1.0})
    assert checked.errors == {0: 'customer_id: "": is empty'}


def test_a_split_character_is_no_text_even_when_its_neighbour_completes_it() -> None:
    """Two ids that are valid UTF-8 only when joined are both refused."""
    first, second = "é".encode()[:1], "é".encode()[1:]
    checked = check({"transaction_id": first}, {"transaction_id": second})
    assert sorted(checked.errors) == [0, 1]


def test_an_error_fits_its_slot_and_one_line() -> None:
    """Long and unprintable values are cut and escaped."""
    checked = check({"customer_id": b"a\nb\x00" * 1000})
    text = checked.errors[0]
    assert len(text.encode()) <= ERROR_BYTES
    assert text.isprintable()


FIELDS = (
    Field(name="items", type="number", decimals=1, low=0, high=100, vocabulary=()),
    Field(name="channel", type="category", decimals=0, low=0, high=0, vocabulary=()),
)


def test_declared_fields_are_checked_and_scaled() -> None:
    """Missing values are no error; wrong ones are named, and stand as something."""
    words = [b"web", b"", b"\xff", b"x" * 129]
    columns, errors = check_fields(
        FIELDS,
        {
            "items": np.array([1.25, math.nan, 10.1, 10.0]),
            "channel": np.array(words, np.object_),
        },
    )
    assert columns["items"].tolist() == [12, MISSING, 0, 100]
    assert columns["channel"].tolist() == hash_words([b"web", b"", b"", b""]).tolist()
    assert errors[2] == "items: 10.1: is not within 0 … 10"
    assert errors[3].endswith("has 129 bytes, 128 are allowed")
    assert list(errors) == [2, 3]


def test_field_that_was_not_sent_has_no_column() -> None:
    """It is missing for every row, which costs nothing."""
    assert check_fields(FIELDS, {}) == ({}, {})

"""One purchase, checked as the server checks it and written as columns are."""

from __future__ import annotations

from datetime import datetime, timezone

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tollgate.validation import check_rows
from tollgate_client import InvalidRequest
from tollgate_client.contract import FRAUD_INPUTS
from tollgate_client.inputs import Purchase, check_columns, encode_purchase
from tollgate_client.wire import request_of, requests_of

TIME_US = 1_600_000_000_000_000
IDS = ("transaction_id", "customer_id", "terminal_id")
FIELDS = {"channel": "BYTES", "tip": "FP64"}


def purchase(**changed):
    """A good purchase with some values replaced."""
    return {
        "transaction_id": "t1",
        "customer_id": "c1",
        "terminal_id": "m1",
        "amount": 12.34,
        "event_time": TIME_US,
        **changed,
    }


def written(**changed) -> Purchase:
    """Write a purchase of the product fraud."""
    return encode_purchase(purchase(**changed), inputs=FRAUD_INPUTS, fields={})


def refusal(**changed) -> str:
    """Return the words with which a purchase is refused."""
    with pytest.raises(InvalidRequest) as caught:
        written(**changed)
    return str(caught.value)


def test_purchases_make_the_request_that_columns_make():
    """Byte for byte, fields and parameters included."""
    rows = [
        purchase(transaction_id=f"t{i}", amount=i / 4, customer_id="é" * (i + 1))
        | ({"channel": "web", "tip": 0.5} if i % 2 else {})
        for i in range(5)
    ]
    made = request_of(
        [encode_purchase(row, inputs=FRAUD_INPUTS, fields=FIELDS) for row in rows],
        product="fraud",
        kinds={**FRAUD_INPUTS, **FIELDS},
        dry_run=True,
    )
    columns = {name: [row[name] for row in rows] for name in purchase()}
    columns |= {name: [row.get(name) for row in rows] for name in FIELDS}
    (expected,) = requests_of(
        check_columns(columns, inputs=FRAUD_INPUTS, fields=FIELDS),
        product="fraud",
        size=32,
        dry_run=True,
        deadline_s=0.25,
    )
    assert made.encode(left_s=0.25) == expected


@settings(deadline=None, max_examples=300)
@given(
    ids=st.tuples(*[st.text(max_size=8) | st.binary(max_size=130)] * 3),
    amount=st.floats() | st.integers(-5, 10**10).map(lambda cents: cents / 100),
    time_us=st.integers(-(2**63), 10**15),
)
def test_a_row_is_refused_when_the_server_would(ids, amount, time_us):
    """The same rows, for the same field and rule; the clock's rule is the server's."""
    raw = []
    for one in ids:
        try:
            raw.append(one if isinstance(one, bytes) else one.encode())
        except UnicodeEncodeError:
            return
    checked = check_rows(
        {name: [one] for name, one in zip(IDS, raw, strict=True)},
        amount=np.array([amount]),
        time_us=np.array([time_us]),
        now_us=TIME_US,
    )
    row = purchase(
        amount=amount, event_time=time_us, **dict(zip(IDS, raw, strict=True))
    )
    if not checked.errors:
        assert encode_purchase(row, inputs=FRAUD_INPUTS, fields={}).parts
        return
    with pytest.raises(InvalidRequest) as caught:
        encode_purchase(row, inputs=FRAUD_INPUTS, fields={})
    field, *_, rule = str(caught.value).split(": ")
    said = checked.errors[0].split(": ")
    assert (field, rule) == (said[0], said[-1])


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"customer_id": None}, "customer_id: missing; needed are transaction_id, "),
        ({"terminal_id": 7}, "terminal_id: 7: is not text"),
        ({"customer_id": "\ud800"}, r"customer_id: '\ud800': is not valid Unicode"),
        ({"amount": "1.5"}, "amount: '1.5': is not a number"),
        ({"amount": True}, "amount: True: is not a number"),
        ({"event_time": 1.5}, "event_time: 1.5: is not a 64-bit integer"),
        ({"event_time": 2**63}, "event_time: 9223372036854775808: is not a 64-bit"),
        ({"event_time": datetime(2026, 1, 1)}, "event_time: datetime.datetime(2026"),
        (
            {"event_time": np.datetime64("NaT")},
            "event_time: numpy.datetime64('NaT'): i",
        ),
        ({"colour": "red"}, "colour: unknown; known are transaction_id, customer_id"),
    ],
)
def test_what_cannot_be_written_is_named(changed, words):
    """Field, value and rule stand in one line."""
    assert refusal(**changed).startswith(words)


@pytest.mark.parametrize(
    "time",
    [
        datetime(2020, 9, 13, 12, 26, 40, tzinfo=timezone.utc),
        np.datetime64("2020-09-13T12:26:40"),
        np.int64(TIME_US),
    ],
)
def test_times_of_every_kind_are_microseconds(time):
    """A datetime with its zone, a datetime64 in UTC, an integer."""
    assert written(event_time=time).parts == written(event_time=TIME_US).parts


@pytest.mark.parametrize("amount", [10**309, 10**400, -(10**400)])
def test_an_integer_beyond_doubles_is_refused(amount):
    """As a mistake of the row: JSON has such numbers."""
    assert "is not a finite number" in refusal(amount=amount)

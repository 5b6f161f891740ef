"""What a caller hands in is checked before anything is sent."""

from datetime import datetime

import numpy as np
import pytest

from tollgate_client import InvalidRequest
from tollgate_client.contract import FRAUD_INPUTS
from tollgate_client.inputs import check_columns


def columns(**changed):
    """Two good rows, with some columns replaced."""
    return {
        "transaction_id": ["t1", "t2"],
        "customer_id": ["c1", "c2"],
        "terminal_id": ["m1", "m2"],
        "amount": [1.5, 2.0],
        "event_time": [1_533_000_000_000_000, 1_533_000_001_000_000],
        **changed,
    }


def refusal(**changed):
    """Return the words with which changed columns are refused."""
    with pytest.raises(InvalidRequest) as caught:
        check_columns(columns(**changed), inputs=FRAUD_INPUTS)
    return str(caught.value)


def test_good_columns_become_bytes_and_little_endian_numbers():
    """Texts are encoded as UTF-8, numbers get the type of the wire."""
    rows = check_columns(columns(customer_id=["ä", b"\xff"]), inputs=FRAUD_INPUTS)
    assert rows.count == 2
    assert rows.values["customer_id"] == ["ä".encode(), b"\xff"]
    assert rows.values["amount"].dtype == np.dtype("<f8")
    assert rows.values["event_time"].dtype == np.dtype("<i8")


def test_a_missing_column_is_named_with_all_that_are_needed():
    """The words name what is missing and what the product needs."""
    given = columns()
    del given["amount"]
    with pytest.raises(InvalidRequest, match=r"^amount: missing; needed are trans"):
        check_columns(given, inputs=FRAUD_INPUTS)


def test_an_unknown_column_is_named_instead_of_dropped():
    """A misspelt optional field must not vanish silently."""
    assert refusal(chanel=["web", "web"]).startswith("chanel: unknown; known are ")


@pytest.mark.parametrize(
    ("name", "values", "words"),
    [
        ("customer_id", [596, 597], "customer_id: row 0: 596 is not text"),
        ("customer_id", ["a", None], "customer_id: row 1: None is not text"),
        ("customer_id", ["a", "\ud800"], "customer_id: row 1: '\\ud800' is not valid"),
        ("customer_id", "ab", "customer_id: must be a column, one value per row"),
        ("amount", [1.0, "12"], "amount: row 1: '12' is not a number"),
        ("amount", [1.0, None], "amount: row 1: None is not a number"),
        ("amount", [True, False], "amount: row 0: True is not a number"),
        ("amount", 3.5, "amount: must be one value per row, not of shape []"),
        ("amount", [[1.0], [2.0]], "amount: must be one value per row, not of shape"),
        ("amount", [[1.0], [2.0, 3.0]], "amount: must be one value per row"),
        ("event_time", [1, 2.5], "event_time: row 1: 2.5 is not a 64-bit integer"),
        ("event_time", [1, 2**63], f"event_time: row 1: {2**63} is not a 64-bit"),
        ("event_time", [1, 2**70], f"event_time: row 1: {2**70} is not a 64-bit"),
        ("event_time", ["NaT"], "event_time: row 0: 'NaT' is not a 64-bit integer"),
        ("amount", [1.0], "amount: 1 rows, but transaction_id has 2"),
        ("amount", [], "amount: no rows"),
    ],
)
def test_a_wrong_value_is_refused_with_column_row_and_value(name, values, words):
    """Each refusal says where and what, in one line."""
    said = refusal(**{name: values})
    assert said.startswith(words)
    assert "\n" not in said


def test_no_rows_at_all_are_refused():
    """An empty request has no answer."""
    assert refusal(**{name: [] for name in FRAUD_INPUTS}).endswith("no rows")


def test_a_missing_time_in_a_datetime_column_is_named():
    """NaT would otherwise travel as the smallest integer."""
    times = np.array(["2018-07-25", "NaT"], dtype="datetime64[us]")
    assert refusal(event_time=times).startswith("event_time: row 1: ")


def test_datetimes_of_any_unit_become_microseconds():
    """A history in milliseconds and a request in seconds mean the same instant."""
    instant = datetime(2018, 7, 25, 12, 30, 1)
    for unit in ("s", "ms", "us", "ns"):
        times = np.array([instant, instant], dtype=f"datetime64[{unit}]")
        rows = check_columns(columns(event_time=times), inputs=FRAUD_INPUTS)
        assert rows.values["event_time"].tolist() == [1_532_521_801_000_000] * 2


def test_whole_numbers_are_amounts_too():
    """Amounts may come as integers of any width."""
    rows = check_columns(columns(amount=np.array([3, 4], "i2")), inputs=FRAUD_INPUTS)
    assert rows.values["amount"].tolist() == [3.0, 4.0]


def test_declared_fields_are_sent_whether_they_are_there_or_not():
    """None becomes NaN or an empty text; so does a column that is left out."""
    fields = {"channel": "BYTES", "items": "FP64"}
    rows = check_columns(columns(items=[3, None]), inputs=FRAUD_INPUTS, fields=fields)
    assert rows.inputs == {**FRAUD_INPUTS, **fields}
    assert rows.values["channel"] == [b"", b""]
    assert rows.values["items"].tolist()[0] == 3.0
    assert np.isnan(rows.values["items"][1])
    texts = check_columns(
        columns(channel=np.array(["web", None])), inputs=FRAUD_INPUTS, fields=fields
    )
    assert texts.values["channel"] == [b"web", b""]


def test_a_wrong_field_is_refused_like_any_column():
    """By its type and length; None is for declared fields alone."""
    fields = {"items": "FP64"}
    for values, words in (
        (["3", 4], "items: row 0: '3' is not a number"),
        ([1, 2, 3], "items: 3 rows, but transaction_id has 2"),
        (5.0, "items: must be one value per row"),
    ):
        with pytest.raises(InvalidRequest) as caught:
            check_columns(columns(items=values), inputs=FRAUD_INPUTS, fields=fields)
        assert words in str(caught.value)
    assert "amount: row 1: None" in refusal(amount=[1.0, None])
    assert "items: unknown" in refusal(items=[1.0, 2.0])

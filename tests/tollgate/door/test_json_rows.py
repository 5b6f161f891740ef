"""Bodies are rows, or a refusal that says what is wrong with which row."""

from __future__ import annotations

import json
from datetime import datetime, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tollgate.door.json_rows import RepeatedKey, field_of, read_json, read_rows
from tollgate.door.refusal import Refusal


def test_one_row_and_a_list_of_rows_are_read() -> None:
    """Only the list is answered by a list."""
    one = read_rows(b'{"a": 1, "b": "x"}', most=4)
    assert (one.rows, one.alone) == ([{"a": 1, "b": "x"}], True)
    many = read_rows(b'[{"a": 1}, {"a": 2.5}]', most=4)
    assert (many.rows, many.alone) == ([{"a": 1}, {"a": 2.5}], False)


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"", "the body is empty; send JSON"),
        (b'{"a": 1', "the body is not valid JSON: Input data was truncated"),
        (b'{"a": NaN}', "the body is not valid JSON: JSON is malformed"),
        (b'[{"a": -Infinity}]', "the body is not valid JSON"),
        (b'{"a": 1e999, "b": NaN}', "the body is not valid JSON"),
        (b'{"a": "\xff"}', "the body is not UTF-8"),
        (b'{"\\ud800": 1}', "the body is not valid JSON"),
        (b'[{"a": 1e999}, {"\\ud800": 1}]', "the body is not valid JSON"),
        (b'[{"a": 1e999}, {"a": "\\ud800"}]', "the body is not valid JSON"),
        (b"[" * 100_000, "the body is nested too deeply"),
        (b"[]", "0 rows; a request holds 1 to 4"),
        (b"[{}, {}, {}, {}, {}]", "5 rows; a request holds 1 to 4"),
        (b"null", "the body is null; send a row as an object, or a list of rows"),
        (b"7", "the body is a number; send a row"),
        (b"true", "the body is a truth value; send a row"),
        (b'"x"', "the body is a text; send a row"),
    ],
)
def test_a_body_without_rows_is_refused_in_words(body: bytes, problem: str) -> None:
    """With status 400."""
    with pytest.raises(Refusal) as refused:
        read_rows(body, most=4)
    assert refused.value.status == 400
    assert refused.value.problem.startswith(problem)


def test_a_bad_row_leaves_the_others() -> None:
    """A repeated key, a number beyond doubles, and no object at all."""
    rows = read_rows(
        b'[{"a": 1}, {"a": 1, "a": 2}, {"a": 1e999}, 7, [1], {"a": 3}]', most=9
    ).rows
    assert rows[0] == {"a": 1}
    assert rows[1] == "a: appears twice"
    assert isinstance(rows[2], dict)
    assert repr(rows[2]["a"]) == "1e999"
    assert rows[3] == "7: is not an object with fields"
    assert rows[4] == "[1]: is not an object with fields"
    assert rows[5] == {"a": 3}
    assert read_rows(b'{"a": 1, "a": 1}', most=1).rows == ["a: appears twice"]


def test_a_time_in_words_needs_a_zone() -> None:
    """µs, or RFC 3339."""
    row = b'{"event_time": "%s"}'
    (good,) = read_rows(row % b"2026-01-02T03:04:05.5Z", most=1).rows
    wanted = datetime(2026, 1, 2, 3, 4, 5, 500_000, tzinfo=timezone.utc)
    assert good == {"event_time": wanted}
    for text in (b"2026-01-02T03:04:05", b"yesterday", b""):
        (bad,) = read_rows(row % text, most=1).rows
        assert isinstance(bad, str)
        assert "is neither µs since 1970 nor RFC 3339 with a time zone" in bad


PLAIN = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=6)
PLAIN |= st.floats(allow_nan=False, allow_infinity=False)
OBJECTS = st.lists(st.tuples(st.text(max_size=3), PLAIN), max_size=5)


@given(st.lists(OBJECTS, max_size=4), st.booleans())
def test_it_reads_what_pythons_parser_reads(
    rows: list[list[tuple[str, object]]], escaped: bool
) -> None:
    """And finds each repeated key, with and without escapes in the body."""
    write = json.JSONEncoder(ensure_ascii=escaped).encode
    members = []
    for row in rows:
        pairs = (f"{write(key)}:{write(value)}" for key, value in row)
        members.append("{" + ",".join(pairs) + "}")
    found = read_json(f"[{','.join(members)}]".encode())
    for row, value in zip(rows, found, strict=True):
        repeated = len(dict(row)) < len(row)
        assert isinstance(value, RepeatedKey) == repeated
        if not repeated:
            assert value == dict(row)


def test_the_field_of_an_error_is_named_if_the_product_has_it() -> None:
    """Text of other errors names none."""
    assert field_of("amount: -1.0: is negative", ["amount"]) == "amount"
    assert field_of("b: unknown; known are amount", ["amount"]) == ""
    assert field_of("no time left", ["amount"]) == ""

"""What no history is read from, and in which words that is said."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from tests.support.features.history_tables import UTC_US, refusal, table
from tollgate.errors import InputError
from tollgate.features.spec.feature_spec import FeatureSpec
from tollgate.history import history_of, read_table


def test_label_without_its_time_is_refused(spec: FeatureSpec) -> None:
    """Known, but nobody can say since when: it would leak into the past."""
    time = table()["event_time"][0]
    error = refusal(spec, label=[1, 0, None], label_time=[time, None, None])
    assert str(error) == (
        "file.csv: label_time: row 1: is null, but the row has a label"
    )


@pytest.mark.parametrize("unit", ["ms", "us"])
def test_moment_that_python_cannot_name_is_refused_all_the_same(
    spec: FeatureSpec, unit: str
) -> None:
    """Years after 9999, and such as overflow microseconds."""
    times = pl.Series("event_time", [2**62, UTC_US, UTC_US]).cast(pl.Datetime(unit))
    with pytest.raises(InputError, match=r"row 0: 14\d+-"):
        history_of(table().with_columns(times), spec=spec, source="")


@pytest.mark.parametrize(
    ("column", "values", "words"),
    [
        ("transaction_id", ["1", None, "3"], "row 1: is null"),
        ("customer_id", ["1", "2", None], "row 2: is null"),
        ("amount", [1.0, None, 1.0], "row 1: is null"),
        ("event_time", [None, "2018-04-01", None], "row 0: is null"),
        ("transaction_id", ["1", "2", "1"], "row 2: '1' appears twice"),
        ("transaction_id", ["1", "", "2"], "row 1: '' is not 1 to 128 bytes long"),
        ("terminal_id", ["t" * 129, "t", "t"], "is not 1 to 128 bytes long"),
        ("terminal_id", ["é" * 65, "t", "t"], "is not 1 to 128 bytes long"),
        ("customer_id", [b"\xff", b"a", b"b"], "invalid utf8"),
        ("customer_id", [[1], [2], [3]], "List(Int64) is not String"),
        ("amount", [1.0, -0.01, 1.0], "row 1: -0.01 is not whole cents"),
        ("amount", [1.0, 1.0, float("nan")], "row 2: nan is not whole cents"),
        ("amount", [float("inf"), 1.0, 1.0], "row 0: inf is not whole cents"),
        ("amount", [1e308, 1.0, 1.0], "row 0: 1e+308 is not whole cents"),
        ("amount", [1.0, 1.005, 1.0], "row 1: 1.005 is not whole cents"),
        ("amount", [1.0, 10_000_000.01, 1.0], "0 … 10000000.00"),
        ("amount", ["1.5", "1,5", "1"], "row 1: '1,5' is not a number"),
        ("amount", [[1], [2], [3]], "List(Int64) is not Float64"),
        ("event_time", ["2018-04-01", "soon", "2018-04-02"], "row 1: 'soon' is not a"),
        ("event_time", [str(UTC_US), "x", "7"], "row 1: 'x' is not a time"),
        (
            "event_time",
            ["2018-04-01T00:00:00", "2018-04-01T00:00:00+02:00", "2018-04-01T00:00:00"],
            "row 1: '2018-04-01T00:00:00+02:00' is not a time",
        ),
        ("event_time", [1.5, 2.5, 3.5], "Float64 is not a time"),
        (
            "event_time",
            [UTC_US, 946_684_799_999_999, UTC_US],
            "row 1: 946684799999999 is not within 2000-01-01 … 2200-01-01; numbers are",
        ),
        (
            "event_time",
            [UTC_US, UTC_US, 7_258_118_400_000_000],
            "row 2: 72581184000000",
        ),
        ("event_time", [UTC_US // 10**6] * 3, "row 0: 1522540800 is not within 2000"),
        ("event_time", ["1522540800"] * 3, "row 0: '1522540800' is not within 2000"),
        ("event_time", [UTC_US, 2**63 - 1, UTC_US], "row 1: 9223372036854775807 is"),
        (
            "event_time",
            ["2018-04-01", "1999-12-31T23:59:59", "2018-04-02"],
            "row 1: '1999-12-31T23:59:59' is not within 2000-01-01",
        ),
        (
            "event_time",
            [datetime.datetime(2018, 4, 1), datetime.datetime(2200, 1, 1), None],
            "row 2: is null",
        ),
        (
            "event_time",
            [datetime.datetime(2018, 4, 1)] + [datetime.datetime(2200, 1, 1)] * 2,
            "row 1: 2200-01-01T00:00:00.000000 is not within 2000",
        ),
        (
            "label_time",
            [datetime.datetime(2018, 4, 1)] * 2 + [datetime.datetime(1, 1, 1)],
            "row 2: 0001-01-01T00:00:00.000000 is not within 2000",
        ),
        ("label", [0, 1, 2], "row 2: 2 is neither 0 nor 1"),
        ("label", [0.0, 0.5, 1.0], "row 1: 0.5 is neither 0 nor 1"),
        ("label", ["0", "yes", "1"], "row 1: 'yes' is neither 0 nor 1"),
        ("label_time", ["2018-04-01", "later", "2018-04-01"], "row 1: 'later' is not"),
    ],
)
def test_wrong_value_is_refused_by_column_row_and_value(
    spec: FeatureSpec, column: str, values: list[Any], words: str
) -> None:
    """One line: the file, the column, the row and the value."""
    error = refusal(spec, **{column: values})
    assert error.where == column
    assert words in str(error)
    assert error.exit_status == 2


def test_long_value_is_shown_in_short(spec: FeatureSpec) -> None:
    """A megabyte of id does not become a megabyte of message."""
    assert len(str(refusal(spec, customer_id=["x" * 10**6, "a", "b"]))) < 200


def test_missing_column_is_named_with_those_there(spec: FeatureSpec) -> None:
    """What is missing, and what the file has instead."""
    frame = table().drop("amount").with_columns(price=pl.lit(1.0))
    with pytest.raises(InputError) as caught:
        history_of(frame, spec=spec, source="file.csv")
    assert caught.value.where == "amount"
    assert "column missing; the file has transaction_id" in str(caught.value)
    assert str(caught.value).endswith("price")


def test_unreadable_files_are_named(tmp_path: Path, simulated: pl.DataFrame) -> None:
    """Missing, of another kind, empty, cut short, overwritten, not text: one line."""
    whole = tmp_path / "whole.parquet"
    simulated.write_parquet(whole)
    content = whole.read_bytes()
    files = {
        "cut.parquet": content[: len(content) // 2],
        "text.parquet": b"transaction_id,amount\n1,2\n",
        "zeros.parquet": content[:100]
        + bytes(len(content) - 20_000)
        + content[-19_900:],
        "tail.parquet": content[-8_000:],
        "empty.parquet": b"",
        "empty.csv": b"",
        "ragged.csv": b"a,b\n1,2,3\n",
        "latin.csv": b"transaction_id\n\xe9\n",
        "broken.jsonl": b'{"a": 1\n',
        "notes.txt": b"hello",
        "noending": b"hello",
    }
    for name, body in files.items():
        (tmp_path / name).write_bytes(body)
    for name in [*files, "nowhere.csv", "nowhere.parquet", "nowhere.jsonl"]:
        with pytest.raises(InputError) as caught:
            read_table(tmp_path / name)
        assert str(caught.value).startswith(f"{tmp_path / name}: ")
        assert "\n" not in str(caught.value)
        assert caught.value.exit_status == 2

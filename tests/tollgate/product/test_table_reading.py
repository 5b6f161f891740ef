"""Unprepared tables are read, or refused in one sentence."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from tollgate.errors import InputError
from tollgate.product.table_reading import read_table


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
def test_csv_may_have_another_separator(tmp_path: Path, separator: str) -> None:
    """It is the most frequent one of the header; a note reports it."""
    path = tmp_path / "a.csv"
    path.write_text(f"a{separator}b\n1{separator}x\n2{separator}\n")
    read = read_table(path)
    assert read.frame.to_dict(as_series=False) == {"a": ["1", "2"], "b": ["x", None]}
    assert bool(read.notes) == (separator != ",")


def test_byte_order_mark_is_no_part_of_a_name(tmp_path: Path) -> None:
    """Spreadsheets write one at the start of a file."""
    path = tmp_path / "a.csv"
    path.write_bytes(b"\xef\xbb\xbfa,b\r\n1,2\r\n")
    assert read_table(path).frame.columns == ["a", "b"]


def test_json_lines_may_mix_texts_and_numbers(tmp_path: Path) -> None:
    """The type is inferred from all lines."""
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": 1}\n' * 200 + '{"a": "x", "b": 2}\n')
    assert read_table(path).frame["a"].to_list()[-2:] == ["1", "x"]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.csv", b"a,b,a\n1,2,3\n", "a: two columns have this name"),
        ("a.csv", "a\ngröße\n".encode("latin1"), "line 2 is not UTF-8 (byte 0xf6)"),
        ("a.csv", b"", "holds no rows"),
        ("a.csv", b"a,b\n", "holds no rows"),
        ("a.csv", b"a\n1\n2,3\n", "cannot be read"),
        ("a.parquet", b"hello", "cannot be read"),
        ("a.jsonl", b'{"a": 1}\n{"a":\n', "cannot be read"),
        ("a.xlsx", b"PK", "is none of .parquet"),
    ],
)
def test_unreadable_table_is_refused_in_one_line(
    tmp_path: Path, name: str, content: bytes, words: str
) -> None:
    """The line names the file and the problem."""
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        read_table(path)
    assert str(caught.value).startswith(str(path))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_file_is_refused(tmp_path: Path) -> None:
    """A folder is refused, too."""
    for path in (tmp_path / "no.csv", tmp_path):
        with pytest.raises(InputError):
            read_table(path)


def test_parquet_columns_have_their_types(tmp_path: Path) -> None:
    """Only the columns of a CSV are all text."""
    frame = pl.DataFrame({"a": [1, 2], "b": [True, False]})
    frame.write_parquet(tmp_path / "a.parquet")
    assert read_table(tmp_path / "a.parquet").frame.equals(frame)

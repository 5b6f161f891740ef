"""A sample is read as it was written, and what is wrong in it is named."""

import json
from datetime import date, timedelta

import numpy as np
import polars as pl
import pytest

from converters.card.quality import MISSING, groups_of
from converters.sample import MOST_SEGMENTS, Sample, read_sample
from tollgate.errors import InputError

TABLE = {
    "amount": [10.5, 0.1, 3e38],
    "count": [1, 2, 3],
    "fraud": [0, 1, 0],
    "channel": ["web", "shop", "web"],
}


def written(folder, suffix, table=None):
    """Write a table in one of the formats."""
    frame = pl.DataFrame(TABLE if table is None else table)
    path = folder / f"rows{suffix}"
    if suffix == ".parquet":
        frame.write_parquet(path)
    elif suffix == ".csv":
        frame.write_csv(path)
    else:
        frame.write_ndjson(path)
    return path


def refused(path, **asked):
    """Return the line with which a sample is refused, without the file's name."""
    with pytest.raises(InputError) as caught:
        read_sample(path, **{"names": None, **asked})
    said = str(caught.value)
    assert said.startswith(f"{path}: ")
    assert "\n" not in said
    return said.removeprefix(f"{path}: ")


@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".jsonl", ".ndjson"])
def test_every_format_gives_the_same_sample(tmp_path, suffix):
    """Features are float32 in the requested order, with labels and segments."""
    found = read_sample(
        written(tmp_path, suffix),
        names=("count", "amount"),
        label="fraud",
        segments=("channel",),
    )
    expected = np.array([[1, 10.5], [2, 0.1], [3, 3e38]], dtype=np.float32)
    assert found.rows.dtype == np.float32
    assert np.array_equal(found.rows, expected)
    assert found.classes((0, 1)).tolist() == [0, 1, 0]
    assert found.segments == {"channel": ("web", "shop", "web")}


@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".jsonl"])
def test_without_names_every_column_of_numbers_is_a_feature(tmp_path, suffix):
    """Label, segments and texts are none."""
    found = read_sample(
        written(tmp_path, suffix), names=None, label="fraud", segments=("channel",)
    )
    assert found.names == ("amount", "count")
    assert read_sample(written(tmp_path, suffix), names=None).names == (
        "amount",
        "count",
        "fraud",
    )


@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".jsonl"])
def test_an_empty_number_is_missing(tmp_path, suffix):
    """NaN, as a model reads it."""
    table = {"a": [1.0, None, 3.0], "b": [1, 2, None]}
    found = read_sample(written(tmp_path, suffix, table), names=("a", "b"))
    assert np.isnan(found.rows).tolist() == [[0, 0], [1, 0], [0, 1]]


def test_numbers_beyond_float32_become_what_the_server_would_see(tmp_path):
    """1e300 is infinite in float32; 16777217 is rounded; truth is 1 and 0."""
    table = {"a": [1e300, -1e300], "b": [16777217, 2], "c": [True, False]}
    found = read_sample(written(tmp_path, ".parquet", table), names=("a", "b", "c"))
    assert found.rows.tolist() == [[np.inf, 16777216.0, 1.0], [-np.inf, 2.0, 0.0]]


@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".jsonl"])
def test_a_text_among_numbers_is_named_with_row_and_column(tmp_path, suffix):
    """Far below the rows that a reader would guess a type from."""
    values = [str(number) for number in range(5000)]
    values[4321] = "12,5"
    path = written(tmp_path, suffix, {"a": values, "b": [1] * 5000})
    said = refused(path, names=("a", "b"))
    assert said.startswith("row 4322, column 'a': '12,5' is not a number, and served")


def test_mixed_json_lines_name_the_row(tmp_path):
    """A number, then a text in the same field."""
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(json.dumps({"a": one}) for one in (1, 2, "x")) + "\n")
    said = refused(path, names=("a",))
    assert said == (
        "row 3, column 'a': 'x' is not a number, and served features are: encode texts "
        "as codes and train on those"
    )


def test_missing_columns_are_named(tmp_path):
    """Features, label and segments alike, with what is there."""
    path = written(tmp_path, ".csv")
    for asked in (
        {"names": ("amount", "age")},
        {"label": "age"},
        {"segments": ("age",)},
    ):
        said = refused(path, **asked)
        assert said.startswith("age: lacks the column; it has ['amount', 'count', ")


def test_a_label_is_no_feature(tmp_path):
    """A model that was trained on its own label is a mistake worth a word."""
    path = written(tmp_path, ".csv")
    said = refused(path, names=("amount", "fraud"), label="fraud")
    assert said == "fraud: is a feature of the model"


def test_a_feature_may_be_a_segment(tmp_path):
    """Where the features are known by name; otherwise a segment is none."""
    path = written(tmp_path, ".parquet")
    found = read_sample(path, names=("amount", "count"), segments=("count",))
    assert found.segments == {"count": ("1", "2", "3")}
    assert found.rows[:, 1].tolist() == [1, 2, 3]
    assert read_sample(path, names=None, segments=("count",)).names == (
        "amount",
        "fraud",
    )


def test_a_segment_is_a_feature_where_one_would_be_missing(tmp_path):
    """The model says how many features it has; the label is never one."""
    path = written(tmp_path, ".csv")
    asked = {"names": None, "label": "fraud", "segments": ("count", "channel")}
    assert read_sample(path, **asked, columns=1).names == ("amount",)
    found = read_sample(path, **asked, columns=2)
    assert found.names == ("amount", "count")
    assert found.segments["count"] == ("1", "2", "3")
    assert read_sample(path, **asked, columns=3).names == ("amount",)


@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".jsonl"])
def test_many_numbers_become_ranges(tmp_path, suffix):
    """More values than texts may have: five ranges, whole bounds in full."""
    values = [1000 * one for one in range(100)]
    table = {"a": [0.5] * 102, "n": [*values, None, None]}
    found = read_sample(
        written(tmp_path, suffix, table), names=("a", "n"), segments=("n",)
    )
    groups = dict(groups_of(found.segments["n"]))
    assert list(groups) == [
        "up to 19,000",
        "above 19,000 to 39,000",
        "above 39,000 to 59,000",
        "above 59,000 to 79,000",
        "above 79,000",
        MISSING,
    ]
    assert [int(mask.sum()) for mask in groups.values()] == [20, 20, 20, 20, 20, 2]
    assert groups["above 79,000"].tolist() == [False] * 80 + [True] * 20 + [False] * 2


def test_odd_numbers_stay_in_their_ranges(tmp_path):
    """An infinity is the largest number, NaN is none, a fraction keeps six digits."""
    values = [one / 7 for one in range(60)]
    table = {"n": [*values, float("inf"), float("nan")]}
    found = read_sample(
        written(tmp_path, ".parquet", table), names=("n",), segments=("n",)
    )
    groups = dict(groups_of(found.segments["n"]))
    assert next(iter(groups)) == "up to 1.71429"
    assert groups[list(groups)[4]].tolist() == [one > 48 / 7 for one in values] + [
        True,
        False,
    ]
    assert groups[MISSING].tolist() == [False] * 61 + [True]


def test_labels_must_be_classes_of_the_model(tmp_path):
    """The first that is none is named with its row; an empty one too."""
    table = {"a": [1, 2, 3], "label": ["yes", "no", "maybe"]}
    found = read_sample(written(tmp_path, ".csv", table), names=("a",), label="label")
    with pytest.raises(InputError) as caught:
        found.classes(("no", "yes"))
    assert str(caught.value).endswith(
        "row 3, column 'label': 'maybe' is none of the model's classes ['no', 'yes']"
    )
    assert found.classes(("no", "maybe", "yes")).tolist() == [2, 0, 1]
    table = {"a": [1, 2], "label": [1, None]}
    path = written(tmp_path, ".parquet", table)
    said = refused(path, names=("a",), label="label")
    assert said == "row 2, column 'label': has no label"


@pytest.mark.parametrize(
    "label",
    [(1, 0), (1.0, 0.0), (True, False), ("1", "0"), ("1.0", "0.0"), ("true", "False")],
)
def test_one_class_may_be_written_in_many_ways(label):
    """1, 1.0, true and the text of each are one class."""
    rows = np.zeros((2, 1), np.float32)
    found = Sample(rows=rows, names=("a",), label=label).classes((0, 1))
    assert found.tolist() == [1, 0]


def test_a_segment_with_too_many_values_is_refused(tmp_path):
    """An identifier makes no segments."""
    count = MOST_SEGMENTS + 1
    days = [date(2018, 1, 1) + timedelta(one) for one in range(count)]
    table = {"a": range(count), "id": [f"c{one}" for one in range(count)], "day": days}
    path = written(tmp_path, ".parquet", table)
    for name in ("id", "day"):
        assert refused(path, names=("a",), segments=(name,)) == (
            f"{name}: has 51 different values, not all numbers; at most 50 texts make "
            "segments"
        )


def test_files_that_are_no_sample_are_refused(tmp_path):
    """Missing, of another format, damaged, empty, or without a number."""
    assert refused(tmp_path / "rows.csv").startswith("cannot be read: No such file")
    assert refused(tmp_path / "rows.xlsx").startswith("is none of .parquet, .csv")
    path = tmp_path / "rows.parquet"
    path.write_bytes(b"PAR1 and no more")
    assert refused(path)
    path = tmp_path / "rows.jsonl"
    path.write_text('{"a": 1}\n{"a": ')
    assert refused(path)
    path = tmp_path / "rows.csv"
    path.write_bytes(b"a,b\n1,\xff\xfe\n")
    assert refused(path)
    path.write_text("")
    assert refused(path)
    path.write_text("a,b\n")
    assert refused(path) == "holds no rows of numbers"
    path.write_text("a,b\nx,y\n")
    assert refused(path) == "holds no rows of numbers"
    path.write_text("a,b\n1,2\n1,2,3\n")
    assert refused(path)


def test_what_is_sensitive_is_never_a_feature(tmp_path):
    """Named as one it is refused; without names its numbers are not taken for one."""
    path = tmp_path / "rows.parquet"
    pl.DataFrame({"a": [1.0, 2.0], "age": [30, 40], "y": [0, 1]}).write_parquet(path)
    found = read_sample(path, names=None, label="y", sensitive=("age",))
    assert found.names == ("a",)
    assert found.segments == {"age": ("30", "40")}
    assert found.sensitive == ("age",)
    with pytest.raises(InputError, match="age: is a feature of the model"):
        read_sample(path, names=("a", "age"), label="y", sensitive=("age",))
    with pytest.raises(InputError, match="sex: lacks the column"):
        read_sample(path, names=("a",), label="y", sensitive=("sex",))


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_words_become_the_codes_of_their_order(tmp_path, suffix):
    """None is -1, unseen -2; a column of codes alone stays as it is."""
    path = tmp_path / f"rows{suffix}"
    frame = pl.DataFrame(
        {
            "a": ["low", None, "high", "odd"],
            "b": ["1", "0", "-2", "1"],
            "c": [1, 2, 3, 4],
        }
    )
    write = frame.write_csv if suffix == ".csv" else frame.write_parquet
    write(path)
    words = {"a": ("low", "high"), "b": ("x", "y")}
    sample = read_sample(path, names=("a", "b", "c"), words=words)
    assert sample.rows.tolist() == [[0, 1, 1], [-1, 0, 2], [1, -2, 3], [-2, 1, 4]]

"""Histories from files: three formats, aliases, times, labels, declared fields."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from tests.support.features.history_tables import UTC_US, refusal, same, table
from tollgate.features.fields import hash_words
from tollgate.features.spec.feature_spec import FeatureSpec, load_spec
from tollgate.features.windows.entity_entries import MISSING
from tollgate.history import history_of, read_history


def test_values_become_bytes_cents_and_microseconds(spec: FeatureSpec) -> None:
    """Ids are UTF-8, money integer cents, times µs since the epoch."""
    history = history_of(table(), spec=spec, source="x")
    assert len(history) == 3
    assert history.transaction_id == [b"1", b"2", b"007"]
    assert history.entity_id["customer_id"] == [b"c", b"c", "é".encode()]
    assert history.cents.tolist() == [1234, 0, 1_000_000_000]
    assert (history.event_time_us - UTC_US).tolist() == [0, 1, 86_400_000_000]
    assert history.label.tolist() == [-1, -1, -1]
    assert history.label_time_us.tolist() == history.event_time_us.tolist()


def test_every_cent_of_a_double_is_found(spec: FeatureSpec) -> None:
    """cents / 100 as a double comes back as these cents, whatever the amount."""
    drawn = np.random.default_rng(0).integers(0, 10**9 + 1, 20_000)
    cents = np.concatenate([np.arange(20_000), drawn])
    frame = pl.DataFrame(
        {
            "transaction_id": np.arange(len(cents)),
            "customer_id": np.zeros(len(cents), np.int64),
            "terminal_id": np.zeros(len(cents), np.int64),
            "amount": cents / 100,
            "event_time": np.full(len(cents), UTC_US),
        }
    )
    assert (history_of(frame, spec=spec, source="").cents == cents).all()


def test_parquet_csv_and_json_lines_give_one_history(
    spec: FeatureSpec, simulated: pl.DataFrame, tmp_path: Path
) -> None:
    """The simulator's rows survive each format; an id like 007 stays text."""
    frame = simulated.head(500).with_columns(
        transaction_id="00" + pl.col("transaction_id")
    )
    frame.write_parquet(tmp_path / "history.parquet")
    frame.write_csv(tmp_path / "history.csv")
    frame.with_columns(pl.col("event_time", "label_time").dt.to_string()).write_ndjson(
        tmp_path / "history.jsonl"
    )
    histories = [
        read_history(tmp_path / f"history.{kind}", spec=spec)
        for kind in ("parquet", "csv", "jsonl")
    ]
    assert same(histories[0], histories[1])
    assert same(histories[0], histories[2])
    assert histories[0].transaction_id[6] == b"007"
    assert histories[0].label.tolist() == frame["label"].to_list()
    assert histories[0].cents.tolist() == (frame["amount"] * 100).round().to_list()


@pytest.mark.parametrize(
    "times",
    [
        ["2018-04-01T00:00:00", "2018-04-01T00:00:00.000001", "2018-04-02T00:00:00"],
        ["2018-04-01 00:00:00", "2018-04-01 00:00:00.000001", "2018-04-02 00:00:00"],
        ["2018-04-01T00:00:00Z", "2018-04-01T00:00:00.000001Z", "2018-04-02T00:00:00Z"],
        [
            "2018-04-01T02:00:00+02:00",
            "2018-03-31T22:00:00.000001-02:00",
            "2018-04-02T00:00:00Z",
        ],
        [str(UTC_US), str(UTC_US + 1), str(UTC_US + 86_400_000_000)],
        [UTC_US, UTC_US + 1, UTC_US + 86_400_000_000],
    ],
)
def test_times_may_be_iso_text_with_a_zone_or_microseconds(
    spec: FeatureSpec, times: list[Any]
) -> None:
    """All of these name the same three moments."""
    history = history_of(table(event_time=times), spec=spec, source="")
    assert same(history, history_of(table(), spec=spec, source=""))


@pytest.mark.parametrize("unit", ["ms", "us", "ns"])
@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Berlin"])
def test_datetimes_of_any_unit_and_zone_are_utc(
    spec: FeatureSpec, unit: str, zone: str | None
) -> None:
    """A zone is converted; a naive time is UTC."""
    frame = table().with_columns(
        pl.Series("event_time", [UTC_US, UTC_US + 10**6, UTC_US + 86_400 * 10**6]).cast(
            pl.Datetime("us", "UTC" if zone else None)
        )
    )
    kind = pl.Datetime(unit, zone)
    if zone:
        frame = frame.with_columns(pl.col("event_time").dt.convert_time_zone(zone))
    history = history_of(frame.cast({"event_time": kind}), spec=spec, source="")
    assert (history.event_time_us - UTC_US).tolist() == [0, 1_000_000, 86_400_000_000]


def test_aliases_name_other_peoples_columns(spec: FeatureSpec) -> None:
    """The handbook's names are known; our own name wins where a file has both."""
    theirs = {
        "transaction_id": "TRANSACTION_ID",
        "event_time": "TX_DATETIME",
        "customer_id": "CUSTOMER_ID",
        "terminal_id": "TERMINAL_ID",
        "amount": "TX_AMOUNT",
    }
    ours = table(label=[0, 1, 0])
    renamed = ours.rename(theirs | {"label": "TX_FRAUD"})
    wanted = history_of(ours, spec=spec, source="")
    assert same(history_of(renamed, spec=spec, source=""), wanted)
    both = ours.with_columns(TX_AMOUNT=pl.lit(1.0))
    assert same(history_of(both, spec=spec, source=""), wanted)


def test_numbers_may_be_ids(spec: FeatureSpec) -> None:
    """An integer column is its decimal text."""
    history = history_of(table(customer_id=[5, 6, 70]), spec=spec, source="")
    assert history.entity_id["customer_id"] == [b"5", b"6", b"70"]


@pytest.mark.parametrize(
    "labels", [[1, None, 0], [True, None, False], ["1", None, "0"]]
)
def test_labels_are_one_zero_or_not_known(spec: FeatureSpec, labels: list[Any]) -> None:
    """Numbers, booleans and text of a CSV; a null is not known yet."""
    history = history_of(table(label=labels), spec=spec, source="")
    assert history.label.tolist() == [1, -1, 0]


def test_label_times_are_read(spec: FeatureSpec) -> None:
    """`label_time` is when a label became known."""
    later = table()["event_time"].dt.offset_by("3d").to_list()
    history = history_of(table(label=[0, 1, 0], label_time=later), spec=spec, source="")
    gap = history.label_time_us - history.event_time_us
    assert gap.tolist() == [3 * 86_400_000_000] * 3


@pytest.mark.parametrize("kind", [pl.Datetime("us"), pl.String, pl.Int64])
def test_label_that_is_not_known_yet_needs_no_time(
    spec: FeatureSpec, kind: pl.DataType
) -> None:
    """A pending label's time is null, or means nothing: its purchase's stands there."""
    later = table()["event_time"].dt.offset_by("3d").to_list()
    times = pl.Series([later[0], None, later[2]], dtype=pl.Datetime("us")).cast(kind)
    frame = table(label=[1, None, None]).with_columns(label_time=times)
    history = history_of(frame, spec=spec, source="")
    gap = history.label_time_us - history.event_time_us
    assert history.label.tolist() == [1, -1, -1]
    assert gap.tolist() == [3 * 86_400_000_000, 0, 0]


def test_labels_may_all_be_pending(spec: FeatureSpec) -> None:
    """A column of nulls has no type; it says that nothing is known."""
    nothing = [None] * 3
    history = history_of(table(label=nothing, label_time=nothing), spec=spec, source="")
    assert history.label.tolist() == [-1] * 3
    assert history.label_time_us.tolist() == history.event_time_us.tolist()


def test_empty_table_is_an_empty_history(spec: FeatureSpec) -> None:
    """No rows are no error."""
    history = history_of(table().clear(), spec=spec, source="")
    assert len(history) == 0
    assert history.entity_codes("customer_id").tolist() == []


def test_entity_codes_are_dense_and_in_order_of_sight(spec: FeatureSpec) -> None:
    """Equal ids have equal codes."""
    history = history_of(table(), spec=spec, source="")
    assert history.entity_codes("customer_id").tolist() == [0, 0, 1]
    assert history.entity_codes("terminal_id").tolist() == [0, 1, 0]


def test_take_picks_whole_rows(spec: FeatureSpec) -> None:
    """By positions or by a slice, all columns together."""
    frame = table(label=[0, 1, 0])
    history = history_of(frame, spec=spec, source="")
    picked = history_of(frame[[2, 0]], spec=spec, source="")
    assert same(history.take(np.array([2, 0])), picked)
    assert same(history.take(slice(1)), history_of(frame.head(1), spec=spec, source=""))


WITH_FIELDS = """\
version: 1
product: shop
entities: {customer: {key: customer_id}, terminal: {key: terminal_id}}
aliases: {items: [ITEMS]}
fields:
  - {name: items, type: number, decimals: 1, range: [0, 9]}
  - {name: channel, type: category}
features:
  - {name: a, entity: customer, aggregate: sum, of: items, window: 1d}
  - {name: b, entity: terminal, aggregate: distinct, of: channel, window: 1d}
"""


@pytest.fixture
def with_fields(tmp_path: Path) -> FeatureSpec:
    """A product with a number and a category."""
    path = tmp_path / "features.yaml"
    path.write_text(WITH_FIELDS)
    return load_spec(path)


def test_declared_fields_are_read_and_may_be_null(with_fields: FeatureSpec) -> None:
    """Nulls, NaN and empty texts are missing; texts of a CSV are numbers too."""
    for items in ([1.25, None, float("nan")], ["1.25", None, "nan"]):
        frame = table(ITEMS=items, channel=["web", None, ""])
        history = history_of(frame, spec=with_fields, source="x")
        assert history.fields["items"].tolist() == [12, MISSING, MISSING]
        channels = hash_words([b"web", b"", b""]).tolist()
        assert history.fields["channel"].tolist() == channels
    picked = history.take(np.array([1, 0]))
    assert picked.fields["items"].tolist() == [MISSING, 12]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"items": [1.0, 2.0, 9.1]}, "items: row 2: 9.1 is not within 0 … 9"),
        ({"items": ["1", "x", "2"]}, "items: row 1: 'x' is not a number"),
        ({"channel": ["a", "b", "c" * 129]}, "is over 128 bytes long"),
    ],
)
def test_wrong_fields_are_refused(
    with_fields: FeatureSpec, changes: dict[str, list[Any]], words: str
) -> None:
    """By column, row and value."""
    columns = {"items": [1.0, 2.0, 3.0], "channel": ["a", "b", "c"]} | changes
    assert words in str(refusal(with_fields, **columns))


def test_declared_field_must_be_a_column(with_fields: FeatureSpec) -> None:
    """A request may leave it out; a file that lacks it is the wrong file."""
    error = refusal(with_fields, items=[1.0, 2.0, 3.0])
    assert "channel: column missing" in str(error)


def test_a_column_for_the_policy_may_be_absent(tmp_path: Path) -> None:
    """No feature is made of it; where it is there, it is read."""
    path = tmp_path / "features.yaml"
    consent = "  - {name: consent, type: number, use: policy}\nfeatures:\n"
    path.write_text(WITH_FIELDS.replace("features:\n", consent))
    spec = load_spec(path)
    columns = {"items": [1.0, 2.0, 3.0], "channel": ["a", "b", "c"]}
    without = history_of(table(**columns), spec=spec, source="x")
    assert sorted(without.fields) == ["channel", "items"]
    history = history_of(table(**columns, consent=[1, None, 0]), spec=spec, source="x")
    assert history.fields["consent"].tolist() == [1, MISSING, 0]

"""The simulated history as a whole: order, ids, rates, repeatability, the file."""

from __future__ import annotations

import datetime
import os
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal

from tollgate.errors import InputError
from tollgate.simulate import simulate, write

COLUMNS = {
    "transaction_id": pl.String,
    "customer_id": pl.String,
    "terminal_id": pl.String,
    "amount": pl.Float64,
    "event_time": pl.Datetime("us"),
    "label": pl.Int8,
    "label_time": pl.Datetime("us"),
    "fraud_scenario": pl.Int8,
}


def tiny(**changes: Any) -> pl.DataFrame:
    """Simulate a tiny history with some arguments changed."""
    return simulate(**({"customers": 50, "terminals": 100, "days": 30} | changes))


@pytest.fixture(scope="module")
def default() -> pl.DataFrame:
    """The default history: 5,000 customers, 10,000 terminals, 183 days."""
    return simulate()


def test_columns_are_the_canonical_ones(default: pl.DataFrame) -> None:
    """Names, order and types are fixed, and nothing is missing."""
    assert dict(default.schema) == COLUMNS
    assert default.null_count().sum_horizontal().item() == 0


def test_rows_are_ordered_by_time_and_id(default: pl.DataFrame) -> None:
    """Ids are 1, 2, ... in order of (event_time, length of id, id), ties included."""
    ids = default["transaction_id"]
    assert ids.to_list() == [str(n) for n in range(1, default.height + 1)]
    order = default.select(
        "event_time", pl.col("transaction_id").str.len_bytes(), id="transaction_id"
    )
    assert_frame_equal(order, order.sort(order.columns))
    assert default["event_time"].n_unique() < default.height  # there are ties


def test_days_begin_and_end_where_asked(default: pl.DataFrame) -> None:
    """All purchases lie in the days from start on."""
    assert default["event_time"].dt.date().min() == datetime.date(2018, 4, 1)
    assert default["event_time"].dt.date().max() == datetime.date(2018, 9, 30)
    moved = tiny(start=datetime.date(2024, 2, 28))
    shift = datetime.datetime(2024, 2, 28) - datetime.datetime(2018, 4, 1)
    times = pl.col("event_time", "label_time")
    assert_frame_equal(moved, tiny().with_columns(times + shift))


def test_ids_are_padded_to_one_width() -> None:
    """Ids have a letter and at least five digits, counted from 1."""
    frame = simulate(customers=120_000, terminals=1, days=1, radius=3.0)
    assert frame["customer_id"].str.contains(r"^C\d{6}$").all()
    assert frame["terminal_id"].unique().to_list() == ["T00001"]


def test_amounts_are_whole_cents(default: pl.DataFrame) -> None:
    """An amount is the double nearest to its cents and never negative."""
    amounts = default["amount"].to_numpy()
    np.testing.assert_array_equal(np.rint(amounts * 100) / 100, amounts)
    assert amounts.min() >= 0


def test_label_and_scenario_agree(default: pl.DataFrame) -> None:
    """Fraud is what has a scenario; all three occur; above 220 all is fraud."""
    assert (default["label"] == (default["fraud_scenario"] > 0)).all()
    assert set(default["fraud_scenario"].unique()) == {0, 1, 2, 3}
    assert (default.filter(pl.col("amount") > 220)["label"] == 1).all()
    assert default.filter(fraud_scenario=1)["amount"].min() == pytest.approx(220, 1e-3)


def test_a_taken_terminal_has_no_legitimate_purchase_that_day(
    default: pl.DataFrame,
) -> None:
    """Scenario 2 takes whole days of a terminal."""
    by_day = default.group_by("terminal_id", pl.col("event_time").dt.date()).agg(
        taken=(pl.col("fraud_scenario") == 2).any(), clean=pl.col("label").min()
    )
    assert by_day.filter("taken")["clean"].to_list() == [1] * by_day["taken"].sum()


def test_a_stolen_cards_amounts_are_five_times_whole_cents(
    default: pl.DataFrame,
) -> None:
    """Scenario 3 multiplies by 5, so its mean is about five times the usual one."""
    usual = default.filter(fraud_scenario=0)["amount"].mean()
    stolen = default.filter(fraud_scenario=3)["amount"]
    assert ((stolen * 100).round().cast(pl.Int64) % 5 == 0).all()
    assert stolen.mean() / usual == pytest.approx(5, rel=0.1)  # type: ignore[operator]


def test_labels_are_known_after_the_purchase_and_tell_nothing_early(
    default: pl.DataFrame,
) -> None:
    """label_time is later than event_time, and frauds wait as long as the others."""
    delay = (default["label_time"] - default["event_time"]).dt.total_seconds()
    assert delay.min() > 0  # type: ignore[operator]
    late = default.select("label", late=delay > 7 * 86_400)
    shares = late.group_by("label").agg(pl.col("late").mean()).sort("label")["late"]
    assert shares.to_list() == pytest.approx([0.0368, 0.0368], abs=0.006)


def test_the_default_resembles_the_public_data(default: pl.DataFrame) -> None:
    """Figures of the handbook's 1,754,155 public rows, within seed-to-seed spread."""
    assert default.height == pytest.approx(1_754_155, rel=0.05)
    assert default["customer_id"].n_unique() == pytest.approx(4_990, abs=10)
    assert default["terminal_id"].n_unique() == pytest.approx(10_000, abs=5)
    assert default["label"].mean() == pytest.approx(0.008369, rel=0.1)
    counts = default["fraud_scenario"].value_counts().sort("fraud_scenario")["count"]
    assert counts.to_list()[1:] == pytest.approx([973, 9_077, 4_631], rel=0.15)
    quantiles = [default["amount"].quantile(q) for q in (0.05, 0.25, 0.5, 0.75, 0.95)]
    assert quantiles == pytest.approx([6.0, 21.01, 44.64, 76.95, 130.94], rel=0.05)
    rows = default.group_by("terminal_id").len()["len"]
    quantiles = [rows.quantile(q) for q in (0.05, 0.25, 0.5, 0.75, 0.95)]
    assert quantiles == pytest.approx([118, 148, 171, 199, 244], rel=0.08)


@pytest.mark.parametrize(("customers", "terminals"), [(500, 1_000), (2_000, 8_000)])
def test_fraud_rate_does_not_depend_on_the_size(customers: int, terminals: int) -> None:
    """Victims are in proportion to the population, so the rate stays near 0.8 %."""
    frame = simulate(customers=customers, terminals=terminals, days=120)
    assert 0.005 < frame["label"].mean() < 0.011  # type: ignore[operator]


@pytest.mark.parametrize("seed", range(5))
def test_a_tiny_history_has_purchases_and_fraud(seed: int) -> None:
    """50 customers, 100 terminals, 30 days: hundreds of rows, fraud, mostly not."""
    frame = tiny(seed=seed)
    assert frame.height > 500
    assert 0.01 < frame["label"].mean() < 0.3  # type: ignore[operator]


def test_same_seed_same_history_other_seed_another() -> None:
    """The seed decides everything."""
    assert_frame_equal(tiny(seed=5), tiny(seed=5))
    assert not tiny(seed=5).equals(tiny(seed=6))


def test_more_days_only_add_rows() -> None:
    """A history begins with every shorter one, labels and ids included."""
    short, long = tiny(days=11), tiny(days=30)
    assert_frame_equal(long.head(short.height), short)
    assert long["event_time"][short.height] >= datetime.datetime(2018, 4, 12)


def test_progress_is_told_each_day() -> None:
    """The callback hears days done and all days, in order."""
    heard: list[tuple[int, int]] = []
    tiny(days=3, progress=lambda done, of: heard.append((done, of)))
    assert heard == [(1, 3), (2, 3), (3, 3)]


def test_a_history_without_purchases_keeps_its_columns() -> None:
    """A customer who happens not to buy gives an empty frame of the same schema."""
    frames = [
        simulate(customers=1, terminals=1, days=1, radius=200.0, seed=seed)
        for seed in range(12)
    ]
    empty = [frame for frame in frames if frame.is_empty()]
    assert empty
    assert dict(empty[0].schema) == COLUMNS


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"customers": 0}, "customers: 0 is not"),
        ({"customers": True}, "customers: True is not"),
        ({"terminals": -3}, "terminals: -3 is not"),
        ({"terminals": 2.5}, "terminals: 2.5 is not"),
        ({"days": 0}, "days: 0 is not"),
        ({"days": 40_000}, "days: 40000 is not"),
        ({"seed": -1}, "seed: -1 is not"),
        ({"radius": 0.0}, "radius: 0.0 is not"),
        ({"radius": float("nan")}, "radius: nan is not"),
        ({"radius": float("inf")}, "radius: inf is not"),
        ({"start": datetime.date(1999, 12, 31)}, "start: 1999-12-31 is not"),
        ({"start": datetime.datetime(2018, 4, 1, 7)}, "start: 2018-04-01 07:00:00"),
        ({"customers": 10**6, "days": 365}, "days: 365 days of 1,000,000 customers"),
        ({"customers": 10**6, "terminals": 10**6}, "radius: 5 puts some 7,853,981,6"),
        ({"radius": 1e-9}, "radius: 1e-09: no customer has a terminal in reach"),
    ],
)
def test_a_bad_argument_is_named_with_its_value(
    arguments: dict[str, Any], message: str
) -> None:
    """What is out of range, absurd or hopeless is refused by flag and value."""
    with pytest.raises(InputError) as caught:
        tiny(**arguments)
    assert str(caught.value).startswith(message)


def test_a_written_history_reads_back_and_repeats(tmp_path: Path) -> None:
    """The file holds the frame, replaces an older one, is the same bytes each time."""
    path = tmp_path / "history.parquet"
    path.write_text("older")
    write(tiny(), path)
    assert_frame_equal(pl.read_parquet(path), tiny())
    write(tiny(), tmp_path / "again.parquet")
    assert path.read_bytes() == (tmp_path / "again.parquet").read_bytes()
    assert sorted(os.listdir(tmp_path)) == ["again.parquet", "history.parquet"]


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    """Written whole or not at all: on an error the older file stays as it was."""
    path = tmp_path / "history.parquet"
    path.write_text("older")
    broken = pl.DataFrame({"x": [object()]}, schema={"x": pl.Object})
    with pytest.raises(InputError, match="cannot be written"):
        write(broken, path)
    assert path.read_text() == "older"
    assert os.listdir(tmp_path) == ["history.parquet"]


@pytest.mark.parametrize("name", ["", "missing/history.parquet"])
def test_a_path_that_cannot_be_written_is_named(tmp_path: Path, name: str) -> None:
    """A folder, or a file in a folder that is not there, is a person's mistake."""
    with pytest.raises(InputError, match=str(tmp_path)):
        write(tiny(days=1), tmp_path / name)

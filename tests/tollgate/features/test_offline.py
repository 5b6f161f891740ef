"""Offline features against plain pandas, hand arithmetic and an outside reference."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pandas as pd
import polars as pl
import pytest

from tollgate.features.offline import build, feature_columns
from tollgate.features.spec.feature_spec import FeatureSpec
from tollgate.history import History, history_of, read_history, read_table

DAYS = (1, 7, 30)
CUSTOMER = slice(3, 9)  # columns of the vector that come from the customer

# The reference sorts by time alone: of all its rows, only this customer's pair of
# one second was summed in the reverse order of (time, id).
REVERSED_PAIR = [1240489, 1240490]


def handbook_name(name: str) -> str:
    """Name a column of the handbook's file that holds one of our features."""
    kind, _, days = name.rpartition("_")
    entity, _, number = kind.partition("_")
    if days not in ("1d", "7d", "30d"):
        return f"TX_{name.upper()}"
    return f"{entity}_id_{number}_{days[:-1]}day_window".upper()


def coarse(frame: pl.DataFrame, *, every: str, seed: int) -> pl.DataFrame:
    """Give a history ties, missing and late labels, and an order of its own."""
    source = np.random.default_rng(seed)
    known = pl.Series(source.random(len(frame)) < 0.9)
    extra = pl.Series(source.choice([0, 0, 6, 12], len(frame)))
    return frame.with_columns(
        event_time=pl.col("event_time").dt.truncate(every),
        label=pl.when(known).then("label"),
        label_time=pl.col("label_time") + pl.duration(days=extra),
    ).sample(fraction=1.0, shuffle=True, seed=seed)


def plain_features(frame: pl.DataFrame) -> pd.DataFrame:
    """Compute the fifteen features row by row, from their definition alone."""
    table = pd.DataFrame(frame.to_dict(as_series=False))
    answer = pd.DataFrame(index=table.index)
    answer["amount"] = table["amount"]
    answer["during_weekend"] = (table["event_time"].dt.dayofweek >= 5).astype(int)
    answer["during_night"] = (table["event_time"].dt.hour <= 6).astype(int)
    ids = table["transaction_id"]
    places = {one: n for n, one in enumerate(sorted(ids, key=lambda i: (len(i), i)))}
    table["place"] = ids.map(places)
    table["cents"] = [round(amount * 100) for amount in table["amount"]]
    parts = [
        pd.DataFrame(rule(group), index=group.index)
        for key, rule in (("customer_id", customer), ("terminal_id", terminal))
        for _, group in table.groupby(key)
    ]
    numbers = pd.concat(parts).groupby(level=0).first()
    return answer.join(numbers)


def customer(group: pd.DataFrame) -> list[dict[str, float]]:
    """Count and average one customer's purchases, each row's own included."""
    time, place = group["event_time"].to_numpy(), group["place"].to_numpy()
    cents = group["cents"].to_numpy()
    rows = []
    for at, mine in zip(time, place, strict=True):
        upto = (time < at) | ((time == at) & (place <= mine))
        row = {}
        for days in DAYS:
            inside = cents[upto & (time > at - np.timedelta64(days, "D"))]
            mean = int(inside.sum()) / (len(inside) * 100)
            row[f"customer_nb_tx_{days}d"] = len(inside)
            row[f"customer_avg_amount_{days}d"] = mean
        rows.append(row)
    return rows


def terminal(group: pd.DataFrame) -> list[dict[str, float]]:
    """Count one terminal's purchases and known frauds, up to seven days ago."""
    time, known = group["event_time"].to_numpy(), group["label_time"].to_numpy()
    fraud = group["label"].to_numpy() == 1
    rows = []
    for at in time:
        end = at - np.timedelta64(7, "D")
        row = {}
        for days in DAYS:
            inside = (time > end - np.timedelta64(days, "D")) & (time <= end)
            count, frauds = inside.sum(), (inside & fraud & (known <= at)).sum()
            row[f"terminal_nb_tx_{days}d"] = count
            row[f"terminal_risk_{days}d"] = frauds / count if count else 0.0
        rows.append(row)
    return rows


def test_equals_plain_pandas(spec: FeatureSpec, simulated: pl.DataFrame) -> None:
    """Ties, late and missing labels and any order of rows: equal to the last bit."""
    frame = coarse(simulated, every="6h", seed=1)
    late = frame["label_time"] - frame["event_time"] > pl.duration(days=7)
    assert frame.filter(late, pl.col("label") == 1).height > 100
    history = history_of(frame, spec=spec, source="simulated")
    wanted = plain_features(frame)[list(spec.feature_names)]
    np.testing.assert_array_equal(build(spec, history), wanted.to_numpy(np.float64))
    assert (wanted["terminal_risk_30d"] > 0).mean() > 0.1  # there was something to see


def test_order_of_rows_does_not_matter(
    spec: FeatureSpec, simulated: pl.DataFrame
) -> None:
    """Permuted rows permute answers."""
    history = history_of(coarse(simulated, every="1d", seed=2), spec=spec, source="")
    order = np.random.default_rng(5).permutation(len(history))
    np.testing.assert_array_equal(
        build(spec, history)[order], build(spec, history.take(order))
    )


def test_window_ends_are_open_before_and_closed_after(spec: FeatureSpec) -> None:
    """A purchase exactly one window ago is out, one µs later is in; by hand."""
    day_us = 86_400_000_000
    at = 1_600_000_000_000_000
    times = [at, at - day_us, at - day_us + 1, at - 7 * day_us, at - 8 * day_us]
    history = one_customer(times, amounts=[1.0, 2.0, 4.0, 8.0, 16.0])
    columns = feature_columns(spec.feature_names, build(spec, history))
    assert columns["customer_nb_tx_1d"][0] == 2
    assert columns["customer_avg_amount_1d"][0] == (1 + 4) / 2
    assert columns["customer_nb_tx_7d"][0] == 3
    assert columns["customer_avg_amount_7d"][0] == (1 + 2 + 4) / 3
    assert columns["customer_nb_tx_30d"][0] == 5
    # Delayed by 7 days, its end closed: 7 days ago is in, 8 days ago out of "1d".
    assert columns["terminal_nb_tx_1d"][0] == 1
    assert columns["terminal_nb_tx_7d"][0] == 2


@pytest.mark.parametrize(
    ("known_after_us", "risk"),
    [(0, 1.0), (8 * 86_400_000_000, 1.0), (8 * 86_400_000_000 + 1, 0.0)],
)
def test_label_counts_from_its_label_time_on(
    spec: FeatureSpec, known_after_us: int, risk: float
) -> None:
    """A fraud of 8 days ago is one as soon as its label is known, at t itself too."""
    at = 1_600_000_000_000_000
    first = at - 8 * 86_400_000_000
    history = one_customer([first, at], amounts=[1.0, 1.0])
    labelled = History(
        source="",
        transaction_id=history.transaction_id,
        entity_id=history.entity_id,
        event_time_us=history.event_time_us,
        cents=history.cents,
        label=np.array([1, 0], np.int8),
        label_time_us=np.array([first + known_after_us, at]),
    )
    columns = feature_columns(spec.feature_names, build(spec, labelled))
    assert columns["terminal_nb_tx_7d"][1] == 1
    assert columns["terminal_risk_7d"][1] == risk


def test_more_entities_than_one_call_takes(spec: FeatureSpec) -> None:
    """Groups of entities do not mix: 4,500 customers with one purchase each."""
    count = 4_500
    history = History(
        source="",
        transaction_id=[b"%d" % n for n in range(count)],
        entity_id={
            "customer_id": [b"c%d" % n for n in range(count)],
            "terminal_id": [b"t"] * count,
        },
        event_time_us=1_600_000_000_000_000 + np.arange(count),
        cents=np.arange(count, dtype=np.int64),
        label=np.zeros(count, np.int8),
        label_time_us=np.zeros(count, np.int64),
    )
    seen: list[tuple[int, int]] = []
    features = build(spec, history, progress=lambda *done: seen.append(done))
    columns = feature_columns(spec.feature_names, features)
    assert (columns["customer_nb_tx_30d"] == 1).all()
    np.testing.assert_array_equal(
        columns["customer_avg_amount_1d"], np.arange(count) / 100
    )
    assert seen[-1] == (count + 1, count + 1)


def test_busy_instant_counts_in_the_order_of_ids(spec: FeatureSpec) -> None:
    """30,000 purchases at one instant: each sees itself and the ids before its own."""
    count = 30_000
    history = one_customer([1_600_000_000_000_000] * count, amounts=[0.5] * count)
    vectors = build(uncapped(spec), history)
    columns = feature_columns(spec.feature_names, vectors)
    np.testing.assert_array_equal(columns["customer_nb_tx_1d"], np.arange(1, count + 1))
    assert (columns["customer_avg_amount_30d"] == 0.5).all()
    assert (columns["terminal_nb_tx_30d"] == 0).all()


def test_busy_terminal_with_late_frauds_by_the_day(spec: FeatureSpec) -> None:
    """
    Twelve days of 9,999 purchases each, stamped by the day, every second a fraud.

    Each is known nine days later: a week on, the terminal's windows hold purchases
    whose frauds are hidden; two days after that the first day's are known. There
    are three customers, in turn.
    """
    day_us, per_day = 86_400_000_000, 9_999
    count = 12 * per_day
    days, place = np.divmod(np.arange(count), per_day)
    times = 1_600_000_000_000_000 + days * day_us
    plain = one_customer(times.tolist(), amounts=[1.0] * count)
    customers = [b"c", b"d", b"e"] * (count // 3)
    label = np.array([1, 0] * count, np.int8)[:count]
    history = msgspec.structs.replace(
        plain,
        entity_id={**plain.entity_id, "customer_id": customers},
        label=label,
        label_time_us=times + 9 * day_us,
    )
    vectors = build(uncapped(spec), history)
    columns = feature_columns(spec.feature_names, vectors)
    np.testing.assert_array_equal(columns["customer_nb_tx_1d"], place // 3 + 1)
    held = np.maximum(days - 6, 0) * per_day  # days that ended a week ago
    np.testing.assert_array_equal(columns["terminal_nb_tx_30d"], held)
    # Of two days one begins with a fraud: the first has one more than the second.
    known = (np.maximum(days - 8, 0) * per_day + 1) // 2
    np.testing.assert_array_equal(
        columns["terminal_risk_30d"], known / np.maximum(held, 1)
    )
    assert not columns["terminal_risk_1d"].any()


def test_empty_history_has_no_vectors(spec: FeatureSpec) -> None:
    """No rows in, no rows out, fifteen columns."""
    assert build(spec, one_customer([], amounts=[])).shape == (0, 15)


def uncapped(spec: FeatureSpec) -> FeatureSpec:
    """Let the store keep what no store keeps: here only the arithmetic counts."""
    entities = tuple(
        msgspec.structs.replace(one, cap=1_000_000) for one in spec.entities
    )
    return msgspec.structs.replace(spec, entities=entities)


def one_customer(times_us: list[int], *, amounts: list[float]) -> History:
    """A history of one customer at one terminal, without frauds."""
    count = len(times_us)
    return History(
        source="",
        transaction_id=[b"%d" % n for n in range(count)],
        entity_id={"customer_id": [b"c"] * count, "terminal_id": [b"t"] * count},
        event_time_us=np.array(times_us, np.int64),
        cents=np.array([round(amount * 100) for amount in amounts], np.int64),
        label=np.zeros(count, np.int8),
        label_time_us=np.array(times_us, np.int64),
    )


def with_pair_swapped(history: History, pair: np.ndarray) -> History:
    """Take one customer's purchases, `pair` first, these two under each other's id."""
    customers = history.entity_id["customer_id"]
    same = np.flatnonzero([one == customers[pair[0]] for one in customers])
    rest = same[~np.isin(same, pair)]
    taken = history.take(np.concatenate([pair, rest]))
    taken.transaction_id[:2] = taken.transaction_id[1::-1]
    return taken


@pytest.mark.slow
def test_equals_the_handbook_on_all_its_rows(
    spec: FeatureSpec, shared_data: Path
) -> None:
    """201,295 vectors computed by others: counts and shares exact, averages to 1e-9."""
    folder = shared_data / "handbook"
    history = read_history(folder / "transactions.parquet", spec=spec)
    reference = read_table(folder / "features_2018-07-25_2018-08-14.parquet")
    assert reference.height == 201_295
    position = {int(one): row for row, one in enumerate(history.transaction_id)}
    rows = np.array([position[one] for one in reference["TRANSACTION_ID"]])
    ours = build(spec, history)[rows]
    theirs = reference.select(map(handbook_name, spec.feature_names)).to_numpy()
    tolerance = [1e-9 if "amount" in name else 0.0 for name in spec.feature_names]
    off = np.abs(ours - theirs) > tolerance

    odd = np.flatnonzero(off.any(axis=1))
    assert reference["TRANSACTION_ID"].gather(odd).to_list() == REVERSED_PAIR
    assert off[odd, CUSTOMER].all()
    assert off.sum() == off[odd, CUSTOMER].sum()

    swapped = with_pair_swapped(history, rows[odd])
    reversed_ties = build(spec, swapped)[:2]
    np.testing.assert_allclose(
        reversed_ties[:, CUSTOMER], theirs[odd, CUSTOMER], rtol=0, atol=1e-9
    )

"""The windows of a new product fit the store, and are of numbers that help."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest

from tollgate.cli import main
from tollgate.errors import InputError
from tollgate.features.hop_choice import HopChoice
from tollgate.features.offline import build
from tollgate.features.spec.feature_spec import FeatureSpec, load_spec
from tollgate.product import creation
from tollgate.product.choices import ProductChoices
from tollgate.product.files import build_features
from tollgate.product.model import judge_windows
from tollgate.product.plan import Plan, make_plan
from tollgate.product.rows import Rows
from tollgate.product.splitting import DAY_US, split
from tollgate.product.windows import (
    earlier_means,
    entity_events,
    number_aggregates,
    window_starts,
)
from tollgate.repository.hashes import hash_tree

START = pd.Timestamp("2025-01-01")
DAYS = {"1h": 1 / 24, "1d": 1, "7d": 7, "30d": 30}


class Stop(Exception):
    """The model would be trained now."""


def plan_of(frame: pd.DataFrame, folder: Path, **choices: object) -> Plan:
    """Plan a product from a table with the outcome `bad` and the time `at`."""
    frame.to_csv(folder / "table.csv", index=False)
    return make_plan(
        ProductChoices(
            product="shop",
            table=folder / "table.csv",
            label="bad",
            time="at",
            **choices,
        )
    )


def events(minutes: list[float], ids: list[str]) -> pd.DataFrame:
    """Return rows at some minutes after the start, in no order, with outcomes."""
    random = np.random.default_rng(5)
    frame = pd.DataFrame(
        {
            "at": START + pd.to_timedelta(minutes, unit="min"),
            "who": ids,
            "size": random.integers(0, 50, len(ids)),
            "bad": random.integers(0, 2, len(ids)),
        }
    )
    return frame.sample(frac=1, random_state=1).reset_index(drop=True)


def most_events(frame: pd.DataFrame, *, days: float) -> dict[str, int]:
    """Count in loops the most rows of each id within some days up to a row."""
    found = {}
    reach_ns = int(days * 86_400 * 1e9)
    for name, own in frame.groupby("who"):
        times = sorted(own["at"].astype("datetime64[ns]").astype(np.int64).tolist())
        first, most = 0, 0
        for at, time in enumerate(times):
            while times[first] <= time - reach_ns:
                first += 1
            most = max(most, at + 1 - first)
        found[str(name)] = most
    return found


@pytest.mark.parametrize(
    ("every_minutes", "windows", "is_tiled"),
    [
        (60, ("1d", "7d", "30d"), False),  # 720 rows in 30 days
        (30, ("1d", "7d", "30d"), True),  # 1,440 in 30 days
        (5, ("1h", "1d", "7d"), True),  # 2,016 in 7 days
        (1, ("1h", "1d", "7d"), True),
        (0.02, ("1h", "1d", "7d"), True),  # 3,000 in an hour
    ],
)
def test_ids_with_many_events_get_a_hop_and_shorter_windows(
    every_minutes: float, windows: tuple[str, ...], is_tiled: bool, tmp_path: Path
) -> None:
    """The store holds what the windows count, one by one or in tiles."""
    count = min(int(35 * 1440 / every_minutes), 4000)
    minutes = [at * every_minutes for at in range(count)]
    frame = events([*minutes, 0.5, 9.5], ["busy"] * count + ["calm"] * 2)
    plan = plan_of(frame, tmp_path, entities=("who",))
    (entity,) = plan.entities
    assert entity.windows == windows
    most = most_events(frame, days=DAYS[windows[-1]])["busy"]
    assert (most > 1024) == is_tiled
    spec, _, _, (choice,) = built(plan, tmp_path)
    assert f" {most:,} events within {windows[-1]}; " in choice.text
    assert choice.text.startswith(f"who: hop: {choice.hop}, because ")
    (entity,) = spec.entities
    assert entity.windows_us == tuple(round(DAYS[one] * DAY_US) for one in windows)
    assert (entity.tiles is not None, choice.hop != "0") == (is_tiled, is_tiled)
    (since,) = [one for one in spec.features if one.name == "who_since_last"]
    assert since.default == DAYS[windows[-1]] * 86_400


@pytest.mark.parametrize(("count", "hop"), [(1024, "0"), (1025, "1s")])
def test_the_limit_is_the_one_at_which_a_history_is_refused(
    count: int, hop: str, tmp_path: Path
) -> None:
    """With one row more the windows need tiles; another id does not matter."""
    minutes = list(np.linspace(0, 30 * 1440 - 1, count))
    frame = events([*minutes, *minutes], ["7"] * count + [f"c{at}" for at in minutes])
    plan = plan_of(frame, tmp_path, entities=("who",))
    assert plan.entities[0].windows == ("1d", "7d", "30d")
    spec, rows, _, _ = built(plan, tmp_path)
    path = tmp_path / "shop_features" / "1" / "features.yaml"
    assert f"  who: {{key: who, hop: {hop}}}\n" in path.read_text()
    path.write_text(path.read_text().replace(f"hop: {hop}", "hop: 0"))
    exact = load_spec(path)
    if hop == "0":
        build(exact, rows.history)
    else:
        assert exact.state_hash != spec.state_hash
        with pytest.raises(InputError, match="'7' has 1,025 events within 30d"):
            build(exact, rows.history)


def test_command_prints_the_hop_of_an_entity(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An error after that leaves the repository as it was."""
    minutes = [at * 30.0 for at in range(1680)]
    frame = events(minutes, ["busy"] * 1680)
    frame.to_csv(tmp_path / "rows.csv", index=False)
    monkeypatch.chdir(tmp_path)
    Path("model_repository").mkdir()
    before = hash_tree(tmp_path)

    def train_model(features: Any, label: Any, **options: Any) -> Any:
        raise InputError("training rows", "are not used here")

    monkeypatch.setattr(creation, "train_model", train_model)
    command = "product new shop --from rows.csv --label bad --time at --entity who"
    monkeypatch.setattr(sys, "argv", ["tollgate", *command.split(), "--yes"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert (
        "windows: who: hop: 1s, because an id has up to 1,440 events within 30d; "
        "without a hop the store holds 1,024 of each"
    ) in " ".join(capsys.readouterr().out.split())
    assert hash_tree(tmp_path) == before


# Windows of numbers.


def odd_rows(count: int = 300) -> pd.DataFrame:
    """Return rows with numbers of every kind, some at the same time, in no order."""
    random = np.random.default_rng(8)
    value = random.normal(size=count)
    minutes = np.sort(random.integers(0, 50 * 1440, count))
    minutes[1::7] = minutes[0::7][: len(minutes[1::7])]  # two rows at one time
    frame = pd.DataFrame(
        {
            "row": [f"r{at}" for at in random.permutation(count)],
            "at": START + pd.to_timedelta(minutes, unit="min"),
            "who": random.choice(["änne", "bob, jr", "007", "x y"], count),
            "paid": np.abs(value * 20).round(2),
            "debt": np.where(random.random(count) < 0.3, None, (value * 9).round(3)),
            "items": random.integers(0, 6, count),
            "measured": random.normal(size=count) * 1e-3,
            "share": random.random(count).round(2),
            "bad": random.integers(0, 2, count),
        }
    )
    frame["debt"] = frame["debt"].astype(float)
    return frame.sample(frac=1, random_state=2).reset_index(drop=True)


def window_values(frame: pd.DataFrame, column: str, *, days: float) -> list[list[Any]]:
    """Return for each row, in plain loops, the known values within its window."""
    times = (frame["at"] - START).dt.total_seconds().tolist()
    ids, names, values = (frame[one].tolist() for one in ("who", "row", column))
    order = sorted(
        range(len(times)), key=lambda at: (times[at], len(names[at]), names[at])
    )
    found: list[list[Any]] = [[] for _ in order]
    for place, row in enumerate(order):
        for other in order[: place + 1]:
            within = times[other] > times[row] - days * 86_400
            if within and ids[other] == ids[row] and not math.isnan(values[other]):
                found[row].append((other == row, values[other]))
    return found


def built(
    plan: Plan, folder: Path
) -> tuple[FeatureSpec, Rows, np.ndarray, tuple[HopChoice, ...]]:
    """Write the features of a plan, and compute the vectors of its rows."""
    missing = {one.name: math.nan for one in plan.fields}
    return build_features(plan, folder, fields=plan.fields, missing=missing)


def test_windows_of_numbers_are_those_of_plain_loops(tmp_path: Path) -> None:
    """Sums, means, maxima and last values; a default is the mean of training rows."""
    frame = odd_rows()
    plan = plan_of(
        frame.rename(columns={"measured": "mea sured"}),
        tmp_path,
        entities=("who",),
        amount="paid",
        id="row",
        drop=("share",),
    )
    numbers = {one.name: one.aggregates for one in plan.entities[0].numbers}
    assert numbers == {
        "amount": ("max",),
        "debt": ("mean", "max"),
        "items": ("mean", "max", "sum"),
        "mea_sured": ("max", "last"),
    }
    spec, rows, vectors, _ = built(plan, tmp_path)
    assert spec.field("debt").decimals == 3
    assert spec.field("mea_sured").decimals is None
    assert spec.entities[0].columns == ("debt", "items", "mea_sured")
    names = {"amount": "paid", "mea_sured": "measured"}
    train, _ = split(rows.history.label, time_us=rows.history.event_time_us, spec=spec)
    checked = 0
    for at, feature in enumerate(spec.features):
        if feature.aggregate not in ("mean", "max", "sum", "last"):
            continue
        name = feature.of or "amount"
        days = spec.entities[0].windows_us[feature.window] / DAY_US
        values = window_values(frame, names.get(name, name), days=days)
        if feature.aggregate == "last":
            plain = [[one for own, one in row if not own][-1:] for row in values]
        else:
            plain = [[one for _, one in row] for row in values]
        of_none = {"sum": 0.0, "mean": 0.0}.get(feature.aggregate)
        fold = {"sum": math.fsum, "mean": np.mean, "max": max, "last": sum}
        known = [fold[feature.aggregate](row) for row in plain if row]
        if feature.aggregate == "sum":
            assert feature.default == 0
        else:
            usual = [
                fold[feature.aggregate](row) if row else of_none
                for row, used in zip(plain, train, strict=True)
                if used
            ]
            usual = [one for one in usual if one is not None]
            assert feature.default == pytest.approx(np.mean(usual), rel=1e-5)
        of_none = feature.default if of_none is None else of_none
        wanted = [fold[feature.aggregate](row) if row else of_none for row in plain]
        np.testing.assert_allclose(vectors[:, at], wanted, rtol=1e-6, atol=1e-7)
        assert len(set(known)) > 3
        checked += 1
    assert checked == 3 * (2 + 1 + 2 + 3 + 2)


def test_vectors_are_those_of_the_written_file(tmp_path: Path) -> None:
    """In every bit, defaults included: training reads what a server computes."""
    plan = plan_of(odd_rows(), tmp_path, entities=("who",), drop=("row", "items"))
    spec, rows, vectors, _ = built(plan, tmp_path)
    assert {"max", "last"} <= {one.aggregate for one in spec.features}
    wanted = build(spec, rows.history).astype(np.float32)
    np.testing.assert_array_equal(vectors.view(np.uint32), wanted.view(np.uint32))
    path = tmp_path / "shop_features" / "1" / "features.yaml"
    for line in path.read_text().splitlines():
        if "aggregate" in line:
            counted = "count" in line or "sum" in line
            origin = "an id without history" if counted else "training rows"
            assert line.endswith(origin), line
            assert not counted or "default: 0}" in line


@pytest.mark.parametrize(
    ("low", "high", "decimals", "aggregates"),
    [
        (0, 900, 0, ("mean", "max", "sum")),
        (0, 1, 0, ("mean", "max", "sum")),  # a flag: its sum counts
        (0, 0.75, 2, ("mean", "max")),  # shares are not added
        (-5, 900, 2, ("mean", "max")),
        (-5, 900, None, ("max", "last")),  # sums of floats depend on their order
    ],
)
def test_aggregates_suit_the_number(
    low: float, high: float, decimals: int | None, aggregates: tuple[str, ...]
) -> None:
    """A sum is only proposed where it means something."""
    assert number_aggregates(low, high, decimals=decimals) == aggregates


def test_earlier_means_are_those_of_plain_loops() -> None:
    """Of the rows before each one in its window, without its own."""
    frame = odd_rows().sort_values("at", kind="stable").drop_duplicates(["who", "at"])
    frame = frame.reset_index(drop=True)
    time_us = frame["at"].astype("datetime64[us]").astype(np.int64).to_numpy()
    events = entity_events(pl.Series(frame["who"].tolist()), time_us)
    begin = window_starts(events, DAY_US)
    found = earlier_means(frame["debt"].to_numpy(), events, begin=begin)
    frame["row"] = [f"{at:04d}" for at in range(len(frame))]
    before = [
        [one for own, one in row if not own]
        for row in window_values(frame, "debt", days=1)
    ]
    wanted = [np.mean(row) if row else math.nan for row in before]
    assert 20 < np.isnan(wanted).sum() < len(wanted) - 100
    np.testing.assert_allclose(found, wanted, rtol=1e-9)


def test_numbers_are_bounded_and_held_out_rows_do_not_count(tmp_path: Path) -> None:
    """At most 4 of an entity and 36 features; the informative one is the first."""
    random = np.random.default_rng(3)
    count = 4000
    frame = events(list(np.linspace(0, 60 * 1440, count)), ["a"] * count)
    frame = frame.sort_values("at", kind="stable").reset_index(drop=True)
    for name in ("who", "till", "shop"):
        frame[name] = [f"{name}{at}" for at in random.integers(0, 40, count)]
    risk = dict(zip(sorted(set(frame["who"])), random.normal(size=40), strict=True))
    for at in range(9):
        frame[f"noise{at}"] = random.integers(0, 100, count)
    usual = np.array([risk[one] for one in frame["who"]])
    frame["spent"] = (usual * 10 + random.normal(size=count) * 10 + 100).round()
    frame["bad"] = (random.random(count) < 1 / (1 + np.exp(1 - 2 * usual))).astype(int)
    entities = ("till", "who", "shop")
    plan = plan_of(frame, tmp_path, entities=entities)
    of_entity = {one.source: one.numbers for one in plan.entities}
    assert of_entity["who"][0].name == "spent"
    assert all(len(one) <= 4 for one in of_entity.values())
    spec, _, _, _ = built(plan, tmp_path)
    number_windows = [one for one in spec.features if one.of is not None]
    assert 27 < len(number_windows) <= 36
    held_out_rows = np.arange(count) >= count - round(0.2 * count)
    frame.loc[held_out_rows, "bad"] = 1 - frame.loc[held_out_rows, "bad"]
    again = plan_of(frame, tmp_path, entities=entities)
    assert {one.source: one.numbers for one in again.entities} == of_entity


def test_windows_of_numbers_that_do_not_help_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model with them is compared with one without, on training rows alone."""
    random = np.random.default_rng(6)
    count = 6000
    frame = events(list(np.linspace(0, 90 * 1440, count)), ["a"] * count)
    frame = frame.sort_values("at", kind="stable").reset_index(drop=True)
    frame["who"] = [f"c{at}" for at in random.integers(0, 100, count)]
    frame["till"] = [f"t{at}" for at in random.integers(0, 100, count)]
    state = random.normal(size=100)[[int(one[1:]) for one in frame["who"]]]
    frame["size"] = (300 + 20 * state + 20 * random.normal(size=count)).round()
    frame["bad"] = (random.random(count) < 1 / (1 + np.exp(2 - 2 * state))).astype(int)

    def train_model(features: Any, label: Any, *, spec: FeatureSpec, **_: Any) -> Any:
        raise Stop(spec, features)

    monkeypatch.setattr(creation, "train_model", train_model)
    plan = plan_of(frame, tmp_path, entities=("who", "till"))
    assert all(one.numbers for one in plan.entities)
    lines: list[str] = []
    with pytest.raises(Stop) as stopped:
        creation.create_product(
            plan,
            repository=tmp_path,
            model=None,
            kind="auto",
            report=lambda title, text: lines.append(f"{title}: {text}"),
        )
    spec, features = stopped.value.args
    used = {spec.entities[one.entity].name for one in spec.features if one.of}
    assert used == {"who"}
    assert features.shape[1] == len(spec.features)
    who, till = [one for one in lines if one.startswith("windows of numbers")]
    assert who.startswith("windows of numbers: who: mean, max, sum of size: used, AUC ")
    assert till.startswith(
        "windows of numbers: till: mean, max, sum of size: left out, AUC "
    )


def test_ids_that_never_repeat_have_windows_without_numbers_in_the_end(
    tmp_path: Path,
) -> None:
    """Their windows hold one row each, which says no more than the row itself."""
    random = np.random.default_rng(1)
    count = 2000
    minutes = list(np.linspace(0, 90 * 1440, count))
    frame = events(minutes, [f"c{at}" for at in range(count)])
    frame["bad"] = (random.random(count) < frame["size"] / 60).astype(int)
    frame["same"] = 7
    plan = plan_of(frame, tmp_path, entities=("who",))
    assert [one.reason for one in plan.excluded] == ["is 7 in every row"]
    spec, rows, vectors, _ = built(plan, tmp_path)
    label, time_us = rows.history.label, rows.history.event_time_us
    (gain,) = judge_windows(vectors, label, spec=spec, kind="auto", time_us=time_us)
    assert gain is not None
    assert not gain.useful
    counts = [at for at, one in enumerate(spec.features) if one.aggregate == "count"]
    assert (vectors[:, counts] == 1).all()


def test_value_that_no_training_row_has_is_0(tmp_path: Path) -> None:
    """The last number of ids that never repeat; the comment says so."""
    frame = events(
        list(np.linspace(0, 90 * 1440, 200)), [f"c{at}" for at in range(200)]
    )
    frame["size"] = frame["size"] / 3
    plan = plan_of(frame, tmp_path, entities=("who",))
    spec, _, vectors, _ = built(plan, tmp_path)
    last = [at for at, one in enumerate(spec.features) if one.aggregate == "last"]
    assert len(last) == 3
    assert (vectors[:, last] == 0).all()
    text = (tmp_path / "shop_features" / "1" / "features.yaml").read_text()
    assert text.count("default: 0}  # default: no training row has a value") == 3


def test_names_of_windows_are_valid_and_different(tmp_path: Path) -> None:
    """Long names are cut, and names that a field has already are changed."""
    frame = odd_rows()[["at", "who", "items", "debt", "bad"]]
    long = "a very long name of a column that has windows, or is in windows "
    names = {"who": long + "1", "items": long + "2", "debt": "b_count_1d"}
    frame = frame.rename(columns=names)
    frame["b"] = frame[long + "1"]
    plan = plan_of(frame, tmp_path, entities=("b", long + "1"))
    spec, _, _, _ = built(plan, tmp_path)
    assert len(set(spec.feature_names)) == len(spec.features)
    assert {"b_count_1d", "b_count_1d_w"} <= set(spec.feature_names)
    assert max(map(len, spec.feature_names)) == 64


def test_columns_may_be_named_like_entities_and_features(tmp_path: Path) -> None:
    """Two inputs of one entity name, and a column named as the calendar's feature."""
    frame = odd_rows()[["at", "who", "items", "bad"]]
    frame = frame.rename(columns={"who": "card_id", "items": "at_weekend"})
    frame["card"] = frame["card_id"]
    plan = plan_of(frame, tmp_path, entities=("card_id", "card"))
    spec, _, vectors, _ = built(plan, tmp_path)
    assert spec.entity_names == ("card", "card_2")
    assert {"at_weekend", "at_weekend_field"} <= set(spec.feature_names)
    column = vectors[:, spec.feature_names.index("at_weekend_field")]
    np.testing.assert_array_equal(column, frame["at_weekend"])


@pytest.mark.parametrize(("days", "noted"), [(20, "30d"), (31, "")])
def test_windows_longer_than_the_table_are_noted(
    days: int, noted: str, tmp_path: Path
) -> None:
    """A server's windows hold more than those of any row of such a table."""
    frame = events(list(np.linspace(0, days * 1440, 300)), ["a", "b", "c"] * 100)
    plan = plan_of(frame, tmp_path, entities=("who",))
    assert plan.entities[0].windows == ("1d", "7d", "30d")
    notes = [one for one in plan.notes if "covers" in one]
    assert bool(notes) == bool(noted)
    if noted:
        assert notes[0].startswith("the table covers 20 days, so windows of 30d hold")


@pytest.mark.slow
def test_windows_of_numbers_are_served_as_in_training(tmp_path: Path) -> None:
    """Online equals offline in every bit, with missing, negative and exact numbers."""
    random = np.random.default_rng(4)
    count = 3000
    frame = odd_rows(count)
    state = dict(zip(["änne", "bob, jr", "007", "x y"], (-2, 0, 1, 3), strict=True))
    level = np.array([state[one] for one in frame["who"]])
    level = level + 3 * random.normal(size=count)
    frame["debt"] = np.where(frame["debt"].isna(), None, (level * 9).round(3))
    frame["measured"] = level * 1e-3
    risk = np.array([state[one] for one in frame["who"]])
    frame["bad"] = (random.random(count) < 1 / (1 + np.exp(1 - risk))).astype(int)
    plan = plan_of(
        frame.drop(columns=["items", "share"]),
        tmp_path,
        entities=("who",),
        amount="paid",
        id="row",
    )
    lines: dict[str, str] = {}
    (tmp_path / "models").mkdir()
    creation.create_product(
        plan,
        repository=tmp_path / "models",
        model=None,
        kind="auto",
        report=lambda title, text: lines.update({title: text}),
    )
    assert ": used, AUC" in lines["windows of numbers"]
    assert "max, last of measured" in lines["windows of numbers"]
    assert "vectors online = offline in every bit" in lines["served and decided"]


@pytest.mark.slow
def test_an_id_with_many_events_is_served_as_in_training(tmp_path: Path) -> None:
    """Its windows are in tiles, and the server's scores are the model's."""
    random = np.random.default_rng(9)
    count = 3000
    frame = events(list(np.linspace(0, 6 * 1440, count)), ["busy"] * count)
    frame["bad"] = (random.random(count) < frame["size"] / 60).astype(int)
    lines: dict[str, str] = {}
    (tmp_path / "models").mkdir()
    creation.create_product(
        plan_of(frame, tmp_path, entities=("who",)),
        repository=tmp_path / "models",
        model=None,
        kind="logistic",
        report=lambda title, text: lines.update({title: text}),
    )
    assert "an id has up to 3,000 events within 7d" in lines["windows"]
    served = lines["served and decided"]
    assert " on 128 raw rows of table.csv" in served
    assert "2,000 vectors online = offline in every bit" in served

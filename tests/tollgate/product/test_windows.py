"""The windows of a new product fit the store."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pandas as pd
import pytest

from tollgate.cli import main
from tollgate.errors import InputError
from tollgate.product import creation
from tollgate.product.choices import ProductChoices
from tollgate.product.files import build_features
from tollgate.product.plan import Plan, make_plan
from tollgate.product.splitting import DAY_US
from tollgate.repository.hashes import hash_tree

START = pd.Timestamp("2025-01-01")
DAYS = {"1m": 1 / 1440, "10m": 1 / 144, "1h": 1 / 24, "6h": 0.25}
DAYS |= {"1d": 1, "7d": 7, "30d": 30}


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
    ("every_minutes", "windows"),
    [
        (60, ("1d", "7d", "30d")),  # 720 rows in 30 days
        (30, ("6h", "1d", "7d")),  # 1,440 in 30 days
        (5, ("1h", "6h", "1d")),  # 2,016 in 7 days
        (1, ("10m", "1h", "6h")),  # 1,440 in a day
        (0.02, ("1m", "10m")),  # 3,000 in an hour
    ],
)
def test_windows_are_the_longest_that_the_store_can_hold(
    every_minutes: float, windows: tuple[str, ...], tmp_path: Path
) -> None:
    """A note names the column, the id and its rows, and the vectors are computed."""
    count = min(int(35 * 1440 / every_minutes), 4000)
    minutes = [at * every_minutes for at in range(count)]
    frame = events([*minutes, 0.5, 9.5], ["busy"] * count + ["calm"] * 2)
    plan = plan_of(frame, tmp_path, entities=("who",))
    (entity,) = plan.entities
    assert entity.windows == windows
    for window in windows:
        assert most_events(frame, days=DAYS[window])["busy"] <= 1024
    lost = [one for one in ("1d", "7d", "30d") if one not in windows]
    if lost:
        most = most_events(frame, days=DAYS[lost[0]])["busy"]
        assert most > 1024
        (note,) = [one for one in plan.notes if one.startswith("WARNING")]
        assert f"who: 'busy' has {most:,} rows within {lost[0]};" in note
        assert "holds 1,024 events of an id, so its windows are " in note
        assert note.endswith("instead of 1d, 7d and 30d")
    else:
        assert plan.notes == ()
    missing = {one.name: math.nan for one in plan.fields}
    spec, _, _ = build_features(plan, tmp_path, fields=plan.fields, missing=missing)
    (built,) = spec.entities
    assert built.windows_us == tuple(round(DAYS[one] * DAY_US) for one in windows)
    (since,) = [one for one in spec.features if one.name == "who_since_last"]
    assert since.default == DAYS[windows[-1]] * 86_400


@pytest.mark.parametrize(("count", "fits"), [(1024, True), (1025, False)])
def test_the_limit_is_the_one_at_which_a_history_is_refused(
    count: int, fits: bool, tmp_path: Path
) -> None:
    """With one row less the usual windows fit; another id does not matter."""
    minutes = list(np.linspace(0, 30 * 1440 - 1, count))
    frame = events([*minutes, *minutes], ["7"] * count + [f"c{at}" for at in minutes])
    plan = plan_of(frame, tmp_path, entities=("who",))
    (entity,) = plan.entities
    assert entity.windows == (("1d", "7d", "30d") if fits else ("6h", "1d", "7d"))
    missing = {one.name: math.nan for one in plan.fields}
    build_features(plan, tmp_path, fields=plan.fields, missing=missing)
    if fits:
        return
    usual = msgspec.structs.replace(entity, windows=("1d", "7d", "30d"))
    plan = msgspec.structs.replace(plan, entities=(usual,))
    with pytest.raises(InputError, match="'7' has 1,025 events within 30d"):
        build_features(plan, tmp_path, fields=plan.fields, missing=missing)


def test_entity_that_no_window_fits_is_left_out(tmp_path: Path) -> None:
    """Its id has too many rows at one time; other columns still make a product."""
    frame = events([0.0] * 1200 + [5.0] * 100, ["all"] * 1300)
    frame["till"] = [f"c{at % 9}" for at in range(1300)]
    plan = plan_of(frame, tmp_path, entities=("who", "till"))
    assert [one.source for one in plan.entities] == ["till"]
    (left,) = [one for one in plan.excluded if one.source == "who"]
    assert left.reason == (
        "'all' has 1,200 rows within 1m; the store holds 1,024 events of an id: no "
        "window fits"
    )
    missing = {one.name: math.nan for one in plan.fields}
    spec, _, _ = build_features(plan, tmp_path, fields=plan.fields, missing=missing)
    assert spec.entity_names == ("till",)
    frame = frame.drop(columns=["size", "till"])
    with pytest.raises(InputError, match="no column is left"):
        plan_of(frame, tmp_path, entities=("who",))


def test_command_prints_the_windows_that_it_shortened(
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
    assert "note  WARNING: who: 'busy' has 1,440 rows within 30d;" in (
        " ".join(capsys.readouterr().out.split()).replace(
            "note WARNING", "note  WARNING"
        )
    )
    assert hash_tree(tmp_path) == before

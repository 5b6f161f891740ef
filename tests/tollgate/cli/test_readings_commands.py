"""Commands about a product of readings: tables without ids, and their own words."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from typer.testing import CliRunner

from tollgate.cli.app import app
from tollgate.errors import InputError
from tollgate.server.processes.redis_server import EmbeddedRedis
from tollgate.simulate.plant import simulate_plant

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A product of a table that has other names and times, and no ids."""
    folder = tmp_path_factory.mktemp("readings")
    (folder / "model_repository").mkdir()
    plant = simulate_plant(machines=3, days=8, interval_s=300, faults=0, seed=4)
    plant.readings.drop("reading_id").rename({"machine": "unit"}).with_columns(
        event_time=pl.col("event_time").dt.epoch("s")
    ).write_csv(folder / "plant.csv", separator=";")
    table = ["--from", folder / "plant.csv", "--time", "event_time", "--entity", "unit"]
    repository = ["--repository", folder / "model_repository"]
    done = run("product", "new", "plant", "--no-label", *table, *repository, "--yes")
    assert done[0] == 0, done[1]
    return folder


@pytest.fixture(autouse=True)
def _settings(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run each command in the folder of the product, without naming it."""
    if "folder" in request.fixturenames:
        monkeypatch.setenv("TOLLGATE_PRODUCT", "plant")
        monkeypatch.chdir(request.getfixturevalue("folder"))


@pytest.fixture(scope="module")
def store_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A store of its own."""
    with EmbeddedRedis(tmp_path_factory.mktemp("store")) as redis:
        yield redis.url


def run(*words: object) -> tuple[int, str]:
    """Run a command; return its status and everything that it printed."""
    done = CliRunner().invoke(app, [str(word) for word in words])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.exit_code, done.output


def score(rows: pl.DataFrame, store_url: str) -> list[dict[str, Any]]:
    """Score readings in this process; return their answers."""
    rows.write_csv("rows.csv")
    status, _ = run(
        *("score", "rows.csv", "--local", "--store", store_url),
        *("--store-deadline-ms", 5_000, "--out", "answers.jsonl"),
    )
    assert status == 0
    return pl.read_ndjson("answers.jsonl").to_dicts()


def readings(folder: Path) -> pl.DataFrame:
    """Return the readings of one machine after the other, in the order of time."""
    table = pl.read_csv(folder / "plant.csv", separator=";")
    return table.sort("unit", "event_time", maintain_order=True)


def test_a_replay_needs_no_ids(folder: Path) -> None:
    """Times in seconds and columns between semicolons are read, too."""
    spec = "model_repository/plant_features/1/features.yaml"
    status, printed = run("features", "replay", "plant.csv", "--spec", spec, "--json")
    assert status == 0
    found = json.loads(printed[printed.index("{") :])
    assert found == {"vectors": 6_912, "differing": 0, "late": 0}


def test_a_backlog_of_one_machine_is_scored_in_time(
    folder: Path, store_url: str
) -> None:
    """64 readings of a machine: 32 of them in a request would be late."""
    rows = readings(folder).filter(pl.col("unit") == "M01")[:64]
    answers = score(rows, store_url)
    assert len(answers) == 64
    assert [one["degraded"] & 8 for one in answers] == [0] * 64
    assert not any("CLOCK_BEHIND" in one["reason_codes"] for one in answers)


def test_a_very_late_reading_marks_only_itself(folder: Path, store_url: str) -> None:
    """Among newer ones of its own and of another machine, in one request."""
    rows = readings(folder)
    second, third = (
        rows.filter(pl.col("unit") == unit)[:40].with_columns(at=pl.int_range(40))
        for unit in ("M02", "M03")
    )
    score(pl.concat([second[:28], third[:28]]).sort("at").drop("at"), store_url)
    late = second[28:29].with_columns(event_time=pl.col("event_time") - 5 * 86_400)
    request = pl.concat([second[29:33], late, second[33:36], third[29:36]]).drop("at")
    answers = score(request, store_url)
    marked = [at for at, one in enumerate(answers) if one["degraded"] & 8]
    assert marked == [4]
    codes = [at for at, one in enumerate(answers) if "LATE" in one["reason_codes"]]
    assert codes == [4]


def test_results_speak_of_readings(folder: Path, store_url: str) -> None:
    """Not of purchases."""
    status, printed = run("materialize", "plant.csv", "--store-url", store_url)
    assert status == 0
    assert "6,912 readings" in printed
    assert "purchase" not in printed
    spec = "model_repository/plant_features/1/features.yaml"
    _, printed = run("features", "show", "readings", "--spec", spec, "--json")
    (shown,) = json.loads(printed)
    assert shown["definition"] == "number of readings, of the unit"
    assert shown["state"][0].startswith("unit: at least 8 readings of 72 bytes")


def test_evaluation_needs_faults_and_no_labels(folder: Path) -> None:
    """The line names what is missing, or what does not belong to it."""
    with pytest.raises(InputError, match="is a product of readings, without labels"):
        run("evaluate", "plant.csv")
    (folder / "none.csv").write_text("unit,begin,end\n")
    with pytest.raises(InputError, match="--expect: goes with labels"):
        run("evaluate", "plant.csv", "--faults", "none.csv", "--expect", "0.9,0.5,0.2")


def test_lists_take_a_product(
    folder: Path, store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As other commands do, whatever the settings say."""
    monkeypatch.setenv("TOLLGATE_PRODUCT", "fraud")
    named = ["--product", "plant", "--store-url", store_url]
    assert run("lists", "add", "maintenance", "M02", *named)[0] == 0
    _, printed = run("lists", "show", "maintenance", *named)
    assert printed.split() == ["M02"]


@pytest.mark.parametrize("product", ["fraud", "credit", "sensors"])
def test_a_simulation_names_its_file_before_the_work(
    product: str, tmp_path: Path
) -> None:
    """Every command that reads a table asks for a suffix."""
    out = tmp_path / "plant"
    with pytest.raises(InputError, match=r"write plant\.parquet"):
        run("simulate", out, "--product", product)
    assert list(tmp_path.iterdir()) == []

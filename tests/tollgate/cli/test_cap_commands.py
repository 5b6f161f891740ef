"""Commands that compute features offline refuse what the store cannot hold."""

from __future__ import annotations

import bisect
import datetime
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from tollgate.repository.hashes import hash_tree

REPOSITORY = Path(__file__).parents[3] / "model_repository"
START_US = 1_532_476_800_000_000  # 2018-07-25
MINUTE_US = 60_000_000

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run `tollgate` in a folder that has a copy of the repository."""
    shutil.copytree(REPOSITORY, tmp_path / "model_repository")
    environment = {
        name: one
        for name, one in os.environ.items()
        if not name.startswith("TOLLGATE_")
    }

    def run_(*words: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [
                *(sys.executable, "-c", "from tollgate.cli import main; main()"),
                *map(str, words),
            ],
            cwd=tmp_path,
            env=environment | {"COLUMNS": "200"},
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )

    return run_


def history(path: Path, *, busy: int) -> Path:
    """Write purchases of three weeks; customer c buys `busy` times in one of them."""
    rows = [
        (f"r{row}", f"d{row % 40}", f"m{row % 50}", START_US + row * 30 * MINUTE_US)
        for row in range(1_008)
    ]
    rows += [
        (f"b{row}", "c", f"n{row}", START_US + row * MINUTE_US) for row in range(busy)
    ]
    names = ("transaction_id", "customer_id", "terminal_id", "event_time")
    frame = pl.DataFrame(rows, schema=names, orient="row").with_columns(
        amount=pl.lit(25.0),
        label=(pl.int_range(len(rows)) % 40 < 4).cast(pl.Int8),
        event_time=pl.col("event_time").cast(pl.Datetime("us")),
    )
    frame.write_parquet(path)
    return path


COMMANDS = {
    "build": ("features", "build", "h.parquet", "out.parquet"),
    "replay": (
        *("features", "replay", "h.parquet"),
        *("--from", "2018-07-25", "--until", "2018-08-15"),
    ),
    "evaluate": ("evaluate", "h.parquet", "--train-from", "2018-07-25"),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_customer_beyond_the_cap_is_named_and_nothing_is_written(
    run: Run, tmp_path: Path, command: str
) -> None:
    """One line, exit status 2: the id, its purchases, the cap, and the time."""
    history(tmp_path / "h.parquet", busy=1_025)
    before = hash_tree(tmp_path)
    done = run(*COMMANDS[command])
    assert done.returncode == 2, done.stderr
    line = done.stderr.splitlines()[-1]
    assert line.startswith("tollgate: h.parquet: customer_id: 'c' has 1,025 events")
    assert "at 2018-07-25T17:04:00.000000 (transaction 'b1024')" in line
    assert "the store keeps 1,024 of an id, so served vectors would differ" in line
    assert "set hop: 1s for customer, shorten the windows of customer" in line
    assert hash_tree(tmp_path) == before


def test_as_many_as_are_stored_are_built_and_replayed(run: Run, tmp_path: Path) -> None:
    """1,024 purchases of one customer: every vector is the same online."""
    history(tmp_path / "h.parquet", busy=1_024)
    done = run(*COMMANDS["build"])
    assert done.returncode == 0, done.stderr
    done = run(*COMMANDS["replay"])
    assert done.stdout == "2,032 vectors read online, 0 differ from offline\n"


def test_sensors_that_report_every_five_minutes_need_a_hop(
    run: Run, tmp_path: Path, shared_data: Path
) -> None:
    """
    A machine's temperature with windows of 1 and 7 days: 2,016 readings a week.

    Counted in the file itself, by plain arithmetic. With `hop: auto` every vector of
    four days is the same online.
    """
    frame = pl.read_parquet(shared_data / "sensors" / "nab.parquet").filter(
        pl.col("series").cast(pl.String).str.contains("machine_temperature")
    )
    times = frame["timestamp"].sort().to_list()
    week = datetime.timedelta(days=7)
    first = next(
        at for at in range(1_024, len(times)) if times[at] - times[at - 1_024] < week
    )
    frame.select(
        machine=pl.lit("press"),
        event_time=pl.col("timestamp").cast(pl.Datetime("us")),
        transaction_id=pl.int_range(len(frame)).cast(pl.String),
        celsius=pl.col("value"),
        label=pl.col("in_window").cast(pl.Int8),
    ).write_parquet(tmp_path / "temperature.parquet")
    (tmp_path / "plant.yaml").write_text(PLANT)
    done = run(
        *("features", "build", "temperature.parquet", "out.parquet"),
        *("--spec", "plant.yaml"),
    )
    assert done.returncode == 2
    line = done.stderr.splitlines()[-1]
    assert line.startswith(
        "tollgate: temperature.parquet: machine: 'press' has 1,025 events within 7d "
        f"at {times[first].isoformat()}.000000 "
    )
    assert ", up to 2,0" in line
    (tmp_path / "plant.yaml").write_text(PLANT.replace("{key: m", "{hop: auto, key: m"))
    done = run(
        *("features", "replay", "temperature.parquet", "--spec", "plant.yaml"),
        *("--from", "2014-01-01", "--until", "2014-01-05"),
    )
    assert done.returncode == 0, done.stderr
    days = [one for one in times if (one.year, one.month) == (2014, 1) and one.day < 5]
    assert done.stdout == f"{len(days):,} vectors read online, 0 differ from offline\n"
    most = max(
        bisect.bisect_right(times, one) - bisect.bisect_right(times, one - week)
        for one in times
    )
    assert done.stderr.splitlines()[0].startswith(
        f"machine: hop: 1s, because an id has up to {most:,} events within 7d; without "
        "a hop the store holds 1,024 of each"
    )


PLANT = """\
version: 1
product: plant
amount: false
entities: {machine: {key: machine}}
fields:
  - {name: celsius, type: number, decimals: 2, range: [-100, 200]}
features:
  - {name: celsius, field: celsius}
  - {name: mean_1d, entity: machine, aggregate: mean, of: celsius, window: 1d}
  - {name: mean_7d, entity: machine, aggregate: mean, of: celsius, window: 7d}
"""


def test_an_open_hop_is_chosen_from_the_history(run: Run, tmp_path: Path) -> None:
    """Beyond the cap with tiles, within it without; both equal online."""
    history(tmp_path / "h.parquet", busy=1_025)
    spec = tmp_path / "model_repository/fraud_features/1/features.yaml"
    text = spec.read_text()
    assert text.count("    hop: 0\n") == 2
    spec.write_text(text.replace("    hop: 0", "    hop: auto"))
    done = run(*COMMANDS["build"])
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[:2] == [
        "customer: hop: 1s, because an id has up to 1,025 events within 30d; without a "
        f"hop the store holds 1,024 of each; write it into {spec} to serve these "
        "features",
        "terminal: hop: 0, because no id has more than 21 events within 30d and a "
        f"delay of 7d; the store holds 1,024 of each; write it into {spec} to serve "
        "these features",
    ]
    chosen = pl.read_parquet(tmp_path / "out.parquet")
    done = run(*COMMANDS["replay"])
    assert done.stdout == "2,033 vectors read online, 0 differ from offline\n"
    for command in (("check",), COMMANDS["evaluate"], ("features", "diff", spec, spec)):
        done = run(*command)
        assert done.returncode == 2
        assert "entities.customer.hop: auto cannot be served: write hop: 0, or" in (
            done.stdout + done.stderr
        )
    spec.write_text(text.replace("    hop: 0\n", "    hop: 1s\n", 1))
    done = run(*COMMANDS["build"])
    assert done.returncode == 0, done.stderr
    assert pl.read_parquet(tmp_path / "out.parquet").equals(chosen)


@pytest.mark.slow
def test_features_with_an_open_hop_are_evaluated(run: Run, tmp_path: Path) -> None:
    """With the hop that `features build` prints; the repository stays as it was."""
    path = history(tmp_path / "h.parquet", busy=1_025)
    frauds = (pl.int_range(pl.len()) % 97 == 0).cast(pl.Int8)
    pl.read_parquet(path).with_columns(label=frauds).write_parquet(path)
    released = tmp_path / "model_repository/fraud_features/1/features.yaml"
    (tmp_path / "new.yaml").write_text(
        released.read_text().replace(
            "    hop: 0\n", "    hop: auto  # a history decides\n", 1
        )
    )
    before = hash_tree(tmp_path)
    command = (*COMMANDS["evaluate"], "--spec", "new.yaml", "--json")
    done = run(*command)
    assert done.returncode == 0, done.stderr
    lines = done.stderr.splitlines()
    assert lines[0].startswith("customer: hop: 1s, because an id has up to 1,025 ")
    assert lines[0].endswith("write it into new.yaml to serve these features")
    assert "serves fraud-2" in lines[1]
    found = json.loads(done.stdout)
    assert (found["release"], found["degraded"]) == ("fraud-2", 0)
    (tmp_path / "other.yaml").write_text(
        released.read_text().replace("product: fraud", "product: shop", 1)
    )
    refused = run(*COMMANDS["evaluate"], "--spec", "other.yaml")
    assert refused.returncode == 2
    assert "other.yaml: product: is 'shop'; 'fraud' is evaluated" in refused.stderr
    (tmp_path / "other.yaml").unlink()
    assert hash_tree(tmp_path) == before

"""`features show` and `features diff` as a person types them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
import yaml

CHECKOUT = Path(__file__).parents[3]
REPOSITORY = CHECKOUT / "model_repository"
SPEC = "model_repository/fraud_features/1/features.yaml"

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run `tollgate features` in a folder that has a copy of the repository."""
    shutil.copytree(REPOSITORY, tmp_path / "model_repository")
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("TOLLGATE_")
    }

    def run_(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [
                sys.executable,
                "-c",
                "from tollgate.cli import main; main()",
                "features",
                *words,
            ],
            cwd=tmp_path,
            env=environment | {"COLUMNS": "200"},
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )

    return run_


@pytest.fixture
def new(tmp_path: Path) -> Callable[[str, str], str]:
    """Write the committed spec with a text replaced."""

    def new_(old: str, text: str) -> str:
        source = (CHECKOUT / SPEC).read_text()
        assert old in source
        (tmp_path / "new.yaml").write_text(source.replace(old, text, 1))
        return "new.yaml"

    return new_


def test_show_is_a_table_of_what_each_feature_is(run: Run) -> None:
    """Definition, window, default, state, and the release that uses it."""
    shown = run("show").stdout
    (line,) = [one for one in shown.splitlines() if one.startswith("terminal_risk_7d")]
    for words in (
        "purchases known as fraud / purchases, of the terminal",
        "7d, until 7d before",
        "terminal",
        "fraud-1 (active)",
    ):
        assert words in line
    assert "state of customer: 48 bytes a purchase, for 31d" in shown


def test_show_of_one_feature_as_json(run: Run) -> None:
    """Every part under its name."""
    (row,) = json.loads(run("show", "customer_avg_amount_7d", "--json").stdout)
    assert row == {
        "feature": "customer_avg_amount_7d",
        "definition": "mean of amount, of the customer",
        "window": "7d",
        "default": 50.0,
        "essential": False,
        "state": ["customer: 48 bytes a purchase, for 31d"],
        "releases": ["fraud-1 (active)"],
    }


def test_a_feature_no_release_has_is_used_by_none(
    run: Run, new: Callable[[str, str], str]
) -> None:
    """The same name with another window is another feature."""
    file = new("window: 7d,  default: 14", "window: 8d,  default: 14")
    (row,) = json.loads(
        run("show", "customer_nb_tx_7d", "--spec", file, "--json").stdout
    )
    assert row["releases"] == []
    done = run("show", "nope")
    assert (done.returncode, done.stdout) == (2, "")
    assert "nope: no such feature; there are amount" in done.stderr


@pytest.mark.parametrize(
    ("old", "text", "status", "words"),
    [
        ("version: 1", "version: 1 #", 0, "the same vector from the same state"),
        ("window: 7d,  default: 14", "window: 8d,  default: 14", 0, "compatible: the"),
        ("window: 30d, default: 60", "window: 60d, default: 60", 1, "another state: "),
    ],
)
def test_diff_says_what_a_change_asks_for(
    run: Run,
    new: Callable[[str, str], str],
    old: str,
    text: str,
    status: int,
    words: str,
) -> None:
    """0 when one read of the store serves both, 1 when it cannot."""
    done = run("diff", SPEC, new(old, text))
    assert done.returncode == status
    assert done.stdout.splitlines()[-1].startswith(words)
    assert done.stderr == ""


def test_diff_names_features_and_states(
    run: Run, new: Callable[[str, str], str]
) -> None:
    """As a table, and as JSON."""
    file = new("window: 30d, default: 60", "window: 60d, default: 60")
    shown = run("diff", SPEC, file).stdout
    assert "window: 30d → 60d" in shown
    assert "state of customer: retained for: 31d → 61d" in shown
    found = json.loads(run("diff", SPEC, file, "--json").stdout)
    assert found == {
        "changes": [
            {
                "feature": "customer_nb_tx_30d",
                "what": "changed",
                "kind": "state",
                "details": ["window: 30d → 60d"],
            }
        ],
        "state": ["customer: retained for: 31d → 61d"],
        "same_state": False,
        "same_vector": False,
    }


def test_diff_of_a_file_that_is_none_is_status_2(run: Run) -> None:
    """One line that names it."""
    done = run("diff", SPEC, "nowhere.yaml")
    assert done.returncode == 2
    assert done.stderr.strip() == (
        "tollgate: nowhere.yaml: cannot be read: No such file or directory"
    )


def test_arrivals_are_a_column_of_the_history(run: Run, tmp_path: Path) -> None:
    """
    A purchase that arrived an hour late is not in the windows before that.

    By hand: five purchases of anna, every half hour; the first arrives with the fourth.
    """
    times = [f"2025-03-04T{hour}:00" for hour in ("10:00", "10:30", "11:00", "11:30")]
    pl.DataFrame(
        {
            "transaction_id": ["a", "b", "c", "d", "e"],
            "customer_id": ["anna"] * 5,
            "terminal_id": ["till"] * 5,
            "amount": [1.0] * 5,
            "event_time": [*times, "2025-03-04T12:00:00"],
            "received": [times[3], *times[1:], None],
        }
    ).write_csv(tmp_path / "late.csv")
    assert run("build", "late.csv", "out.parquet", "--arrival", "received").stderr
    table = pl.read_parquet(tmp_path / "out.parquet")
    assert table["customer_nb_tx_1d"].to_list() == [1, 1, 2, 4, 5]
    days = ("--from", "2025-03-04", "--until", "2025-03-05", "--arrival", "received")
    assert run("replay", "late.csv", *days).stdout == (
        "5 vectors read online, 0 differ from offline\n"
    )
    refused = run("build", "late.csv", "out.parquet", "--arrival", "recieved")
    assert refused.returncode == 2
    assert "late.csv: recieved: column missing; the file has" in refused.stderr


def test_features_of_another_product_are_those_of_its_release(run: Run) -> None:
    """As its features.yaml lists them; without the option, those of fraud."""
    done = run("show", "--product", "sensors", "--json")
    assert done.returncode == 0, done.stderr
    spec = REPOSITORY / "sensors_features" / "1" / "features.yaml"
    wanted = [one["name"] for one in yaml.safe_load(spec.read_text())["features"]]
    assert [one["feature"] for one in json.loads(done.stdout)] == wanted
    fraud = yaml.safe_load((CHECKOUT / SPEC).read_text())["features"]
    usual = [one["feature"] for one in json.loads(run("show", "--json").stdout)]
    assert usual == [one["name"] for one in fraud]
    unknown = run("show", "--product", "sensor")
    assert unknown.returncode == 2
    assert "did you mean sensors?" in unknown.stderr

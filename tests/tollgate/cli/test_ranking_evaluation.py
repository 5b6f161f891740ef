"""`tollgate evaluate` judges a ranking on a table of users' events with items."""

from __future__ import annotations

import json
import re
from pathlib import Path

import polars as pl
import pytest
from typer.testing import CliRunner

from tests.support.products.small_shop import release_shop, write_shop
from tests.support.small_grids import search_less
from tollgate.cli.app import app
from tollgate.errors import InputError
from tollgate.simulate.shop import simulate_shop

pytestmark = pytest.mark.slow

COLUMNS = ("--user", "user_id", "--item", "item", "--time", "event_time")
PAGE = (Path(__file__).parents[3] / "docs" / "commands.md").read_text()


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    shop = simulate_shop(users=60, items=40, weeks=2, views_per_user=20, seed=1)
    path = tmp_path_factory.mktemp("evaluate") / "events.parquet"
    shop.events.write_parquet(path)
    return path


@pytest.fixture(autouse=True)
def _small_grids(monkeypatch: pytest.MonkeyPatch) -> None:
    search_less(monkeypatch)


def run(*words: object) -> tuple[int, str, str]:
    """Run a command; return its status, standard output and standard error."""
    done = CliRunner().invoke(app, [str(word) for word in words])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.exit_code, done.stdout, done.stderr


def test_the_report_has_the_keys_that_the_page_states(
    table: Path, tmp_path: Path
) -> None:
    write = write_shop(tmp_path)
    release_shop(tmp_path, write)
    named = ("--product", "shop", "--repository", tmp_path, "--action", "action")
    status, printed, _ = run("evaluate", table, *COLUMNS, *named, "--json")
    assert status == 0
    found = json.loads(printed)
    sentence = next(
        line for line in PAGE.splitlines() if line.startswith("With `--user`")
    )
    keys, parts = sentence.split("instead: ")
    assert set(found) == set(re.findall(r"`(\w+)`", keys)) - {"evaluate"}
    assert {name for one in found["rankings"] for name in one} == set(
        re.findall(r"`(\w+)`", parts.split(".")[0])
    )
    by_name = {one["name"]: one for one in found["rankings"]}
    assert by_name["policy"]["settings"].endswith("weight 0, rules 1")
    assert found["events"] == len(pl.read_parquet(table))


def test_the_tables_have_every_ranking_and_measure(table: Path) -> None:
    status, printed, said = run("evaluate", table, *COLUMNS)
    assert status == 0
    heads = [" ".join(line.split()) for line in printed.splitlines()]
    measures = "recall@200 NDCG@10 coverage diversity novelty"
    assert heads.count(f"ranking {measures}") == 1
    assert heads.count(f"difference {measures}") == 1
    # A row of each table, and its settings.
    for name in ("diverse", "popularity", "item-kNN", "ALS"):
        assert len(re.findall(rf"^{name}\b", printed, re.M)) == 3
    assert "choose settings of ALS" in said


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (COLUMNS[:4], "--user, --item, --time: are needed together"),
        ((*COLUMNS, "--expect", "1,1,1"), "--expect: does not go with --user"),
        (("--action", "action"), "--action: goes with --user"),
        ((*COLUMNS[:5], "at"), "at: column missing; the file has"),
        ((*COLUMNS, "--product", "fraud"), "--product: fraud ranks no items"),
    ],
)
def test_wrong_options_are_refused(
    table: Path, words: tuple[str, ...], problem: str
) -> None:
    with pytest.raises(InputError) as refused:
        run("evaluate", table, *words)
    assert problem in str(refused.value)

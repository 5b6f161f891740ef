"""`tollgate product new` and `remove` on the command line."""

from __future__ import annotations

import csv
import os
import pty
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import joblib
import numpy as np
import polars as pl
import pytest
from sklearn.linear_model import LinearRegression, LogisticRegression

from tollgate.cli import main
from tollgate.product import creation
from tollgate.product.choices import ProductChoices
from tollgate.product.plan import make_plan
from tollgate.repository.hashes import hash_tree
from tollgate.repository.releases.release_file import read_release

CHECKOUT = Path(__file__).parents[3]
PROGRAM = (sys.executable, "-c", "from tollgate.cli import main; main()")

Run = Callable[..., subprocess.CompletedProcess[str]]


def environment() -> dict[str, str]:
    """Return an environment with a wide terminal and without settings."""
    others = {
        name: one
        for name, one in os.environ.items()
        if not name.startswith("TOLLGATE_")
    }
    return {**others, "COLUMNS": "200"}


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run `tollgate product` in a folder with a repository of another model."""
    (tmp_path / "model_repository" / "other" / "1").mkdir(parents=True)
    other = 'name: "other" platform: "ensemble"'
    (tmp_path / "model_repository" / "other" / "config.pbtxt").write_text(other)

    def run_(*words: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*PROGRAM, "product", *map(str, words)],
            cwd=tmp_path,
            env=environment(),
            capture_output=True,
            text=True,
            check=False,
        )

    return run_


@pytest.fixture
def loans(tmp_path: Path) -> Path:
    """Write a small table: two numbers, words, an outcome."""
    chance = random.Random(3)
    with (tmp_path / "loans.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["income", "debt ratio", "purpose", "bad"])
        for _ in range(400):
            debt, purpose = round(chance.random(), 3), chance.choice(["car", "home"])
            risk = debt + chance.gauss(0, 0.3) + 0.2 * (purpose == "car")
            table.writerow([chance.randint(1, 9000), debt, purpose, int(risk > 0.8)])
    return tmp_path / "loans.csv"


def staging_folders(folder: Path) -> list[str]:
    """List the staging folders that remain."""
    return sorted(path.name for path in folder.rglob(".publish-*"))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("shop",), "--label: name the column with the outcome"),
        (("shop", "--label", "income"), "income: has "),
        (("shop", "--label", "purpose", "--positive", "boat"), "no row is 'boat'"),
        (
            ("shop", "--label", "bad", "--entity", "purpose"),
            "--entity: windows need times",
        ),
        (("shop", "--label", "bad", "--time", "debt ratio"), "holds no times"),
        (("shop", "--label", "bad", "--amount", "debt ratio"), "is not whole cents"),
        (("shop", "--label", "bad", "--model", "no.json"), "no.json: cannot be read"),
        (("other", "--label", "bad"), "there already; tollgate product remove other"),
        (("Shop!", "--label", "bad"), "'Shop!' is no name of up to 40 small letters"),
    ],
)
@pytest.mark.usefixtures("run")
def test_invalid_options_are_refused_in_one_line_and_nothing_is_written(
    loans: Path,
    words: tuple[str, ...],
    says: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The exit status is 2; repository and working folder do not change."""
    before = hash_tree(loans.parent)
    monkeypatch.chdir(loans.parent)
    command = ["tollgate", "product", "new", words[0], "--from", str(loans), *words[1:]]
    monkeypatch.setattr(sys, "argv", command)
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("tollgate: ")
    assert says in line
    assert hash_tree(loans.parent) == before


@pytest.mark.slow
def test_model_of_other_columns_is_refused(
    run: Run, loans: Path, tmp_path: Path
) -> None:
    """A pickle without --trust-pickle is refused, too."""
    chance = np.random.default_rng(0)
    rows, label = chance.random((50, 5)), np.arange(50) % 2
    joblib.dump(LogisticRegression().fit(rows, label), tmp_path / "five.pkl")
    words = ("new", "shop", "--from", loans, "--label", "bad", "--model", "five.pkl")
    assert "loading it runs whatever code is in it" in run(*words).stderr
    done = run(*words, "--trust-pickle")
    assert "five.pkl has 5 features without names: name the table" in done.stderr
    assert done.returncode == 2
    joblib.dump(LinearRegression().fit(rows, label), tmp_path / "five.pkl")
    done = run(*words, "--trust-pickle")
    assert "five.pkl: answers a number, and a new product has a model" in done.stderr
    assert done.returncode == 2
    assert staging_folders(tmp_path) == []


@pytest.mark.slow
def test_interrupted_creation_leaves_the_repository_unchanged(
    run: Run, loans: Path, tmp_path: Path
) -> None:
    """The product was already published and checked in staging."""
    repository = tmp_path / "model_repository"
    before = hash_tree(tmp_path)
    plan = make_plan(ProductChoices(product="shop", table=loans, label="bad"))

    def report(title: str, text: str) -> None:
        if title == "checked":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        creation.create_product(
            plan,
            repository=repository,
            model=None,
            kind="logistic",
            report=report,
        )
    assert hash_tree(tmp_path) == before
    assert staging_folders(tmp_path) == []


def test_removal_needs_confirmation_and_a_second_one_fails(
    run: Run, tmp_path: Path
) -> None:
    """Without a terminal it needs --yes; an unknown product is an error."""
    done = run("remove", "other")
    assert (done.returncode, "with --yes" in done.stderr) == (2, True)
    done = run("remove", "other", "--yes")
    assert done.returncode == 0
    assert "store and the journal" in done.stdout
    done = run("remove", "other", "--yes")
    assert (done.returncode, "has no product 'other'" in done.stderr) == (2, True)
    assert list((tmp_path / "model_repository").iterdir()) == []


def test_terminal_prompts_for_roles(run: Run, loans: Path, tmp_path: Path) -> None:
    """An unknown column is prompted for again; Enter means none."""
    ours, theirs = pty.openpty()
    answers = b"worse\nbad\n\n\npurpose, income, debt ratio\n\n"
    with subprocess.Popen(
        [*PROGRAM, "product", "new", "shop", "--from", str(loans)],
        cwd=tmp_path,
        env=environment(),
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=theirs,
    ) as child:
        os.close(theirs)
        os.write(ours, answers)
        said = b""
        while child.poll() is None or said == b"":
            try:
                said += os.read(ours, 4096)
            except OSError:  # the other end is closed
                break
        status = child.wait()
    os.close(ours)
    text = said.decode()
    assert status == 2  # all columns were left out
    assert "'worse' is none of them" in text
    assert "no column is left that a model could learn from" in text


@pytest.mark.slow
def test_public_table_becomes_a_served_product(
    run: Run, shared_data: Path, tmp_path: Path
) -> None:
    """From table to served decision without edits, and removed again."""
    table = shared_data / "credit" / "bank_marketing.parquet"
    before = hash_tree(tmp_path)
    done = run("new", "bank", "--from", table, "--label", "y", "--sensitive", "marital")
    assert done.returncode == 0, done.stderr
    assert "served = source (" in done.stdout
    repository = tmp_path / "model_repository"
    release = read_release(repository, product="bank")
    assert release.versions == {
        "bank_features": 1,
        "bank_model": 1,
        "bank_decision": 1,
    }
    card = (repository / "bank_model" / "1" / "card.md").read_text()
    assert "By `marital`" in card
    (rule,) = [
        one for one in done.stdout.splitlines() if one.startswith("thresholds  ")
    ]
    assert rule.startswith("thresholds  No cost and no rate was stated: about as many")
    assert "--review-rate and --decline-rate, or --cost-missed and" in rule
    (auc,) = [one for one in done.stdout.splitlines() if one.startswith("AUC ")]
    assert 0.90 < float(auc.split()[1]) < 0.95
    assert run("remove", "bank", "--yes").returncode == 0
    assert hash_tree(tmp_path) == before


@pytest.mark.slow
def test_windows_are_served_as_in_training(
    run: Run, simulated: pl.DataFrame, tmp_path: Path
) -> None:
    """
    Scores over the store are the model's own (to 1e-5), else `new` fails.

    A name that is not ASCII reaches the steps, whose interpreter knows no locale.
    """
    table = tmp_path / "purchases.parquet"
    size = pl.Series("größe", ["groß", "mäßig", "klein"])
    sizes = pl.int_range(len(simulated), eager=True).map_elements(
        lambda row: size[row * row % 3], return_dtype=pl.String
    )
    simulated.with_columns(sizes.alias("größe")).write_parquet(table)
    done = run(
        *("new", "shop", "--from", table, "--label", "label", "--kind", "logistic"),
        *("--entity", "customer_id", "--entity", "terminal_id"),
        *("--time", "event_time", "--amount", "amount", "--id", "transaction_id"),
    )
    assert done.returncode == 0, done.stderr
    assert "rows of 24" in done.stdout
    assert "served scores are at most" in done.stdout

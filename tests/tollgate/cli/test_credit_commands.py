"""From made-up applications to a card with errors by group, on the command line."""

from __future__ import annotations

from pathlib import Path

import joblib
import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner, Result

from converters.baseline import train_baseline
from tollgate.cli.app import app
from tollgate.features.spec.feature_spec import load_spec

REPOSITORY = Path(__file__).parents[3] / "model_repository"
SPEC = REPOSITORY / "credit_features/1/features.yaml"


def run(*arguments: object) -> Result:
    """Run `tollgate`."""
    return CliRunner().invoke(app, [str(one) for one in arguments])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Applications, their vectors, and a model that was trained on the first ones."""
    found = tmp_path_factory.mktemp("credit")
    table, rows = found / "applications.parquet", found / "all.parquet"
    done = run("simulate", table, "--product", "credit", "--rows", 3000)
    assert done.exit_code == 0, done.output
    keep = ["--keep", "sex", "--keep", "age"]
    options = ["--spec", SPEC, "--dtype", "float32", *keep]
    done = run("features", "build", table, rows, *options)
    assert done.exit_code == 0, done.output
    frame, spec = pl.read_parquet(rows), load_spec(SPEC)
    train = frame[:2000]
    model = train_baseline(
        train.select(spec.feature_names).to_numpy().astype(np.float32),
        train["label"].to_numpy(),
        spec=spec,
        seed=0,
        kind="logistic",
    )
    joblib.dump(model, found / "model.pkl")
    frame[2000:].write_parquet(found / "rows.parquet")
    return found


def convert(folder: Path, *more: object, out: str = "out") -> Result:
    """Convert the model for the product."""
    options = ["--trust-pickle", "--product", "credit", "--repository", REPOSITORY]
    return run(
        *("convert", folder / "model.pkl", *options),
        *("--sample", folder / "rows.parquet", "--out", folder / out, *more),
    )


def test_copied_columns_stand_next_to_the_features_of_their_rows(folder: Path) -> None:
    """In the order of the file; one that is there already is refused."""
    table = pl.read_parquet(folder / "applications.parquet")
    rows = pl.read_parquet(folder / "rows.parquet")
    for name in ("sex", "age", "transaction_id"):
        assert rows[name].to_list() == table[name][2000:].to_list()
    build = ["features", "build", folder / "applications.parquet", folder / "x.parquet"]
    for name, words in (
        ("income", "'income' is there already"),
        ("x", "no column 'x'"),
    ):
        done = run(*build, "--spec", SPEC, "--keep", name)
        assert words in str(done.exception)
    assert not (folder / "x.parquet").exists()


def test_the_card_tells_errors_by_what_is_sensitive(folder: Path) -> None:
    """By group; and which of the policy's attributes nobody handed in."""
    done = convert(
        folder, "--label", "label", "--sensitive", "sex", "--sensitive", "age"
    )
    assert done.exit_code == 0, done.output
    card = (folder / "out/card.md").read_text()
    section = card.split("## Errors by sensitive attribute")[1].split("\n## ")[0]
    assert "By `sex`" in section
    assert "| `female` |" in section
    assert "nobody handed in: `marital_status`, `nationality`." in section
    assert "Errors by sensitive attribute" in (folder / "out/card.html").read_text()


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--label", "label", "--sensitive", "income"], "income: is a feature of the"),
        (["--sensitive", "sex"], "--sensitive: is judged by labels"),
        (["--label", "label", "--sensitive", "race"], "race: lacks the column"),
    ],
)
def test_what_cannot_be_sensitive_is_refused(
    folder: Path, more: list[str], words: str
) -> None:
    """In one line, and nothing is written."""
    done = convert(folder, *more, out="refused")
    assert words in str(done.exception)
    assert not (folder / "refused").exists()

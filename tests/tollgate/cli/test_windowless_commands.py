"""Commands about a product without windows: what works, and what has nothing to do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

from tests.support.products.plain_product import release_simple_model, write_product
from tollgate.cli.app import app
from tollgate.errors import InputError

FIELDS = ("n0", "n1", "n2", "w3", "w4")  # three numbers, two words
WORDS = ("a", "b", "c", "d", "e")
PRODUCT = "declared"
SPEC = """\
version: 1
product: declared
amount: false
fields:
  - {name: n0, type: number, decimals: 2}
  - {name: n1, type: number, decimals: 2}
  - {name: n2, type: number, decimals: 2}
  - {name: w3, type: category, vocabulary: [a, b, c, d, e]}
  - {name: w4, type: category, vocabulary: [a, b, c, d, e]}
features:
  - {name: n0, field: n0, default: .nan}
  - {name: n1, field: n1, default: .nan}
  - {name: n2, field: n2, default: .nan}
  - {name: w3, category: w3}
  - {name: w4, category: w4}
"""
POLICY = """\
version: 1
product: declared
labels: [fine, bad]
score: bad
thresholds: {review: 0.4, decline: 0.7}
fallback: {model_output: review}
rules: []
reasons: {SCORE_REVIEW: review, SCORE_DECLINE: decline, MODEL_UNAVAILABLE: none}
"""


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A product of five fields, as the settings' one."""
    folder = tmp_path / "model_repository"
    spec = write_product(
        folder, spec_text=SPEC, policy_text=POLICY, store_deadline_ms=2_000
    )
    release_simple_model(folder, spec)
    monkeypatch.setenv("TOLLGATE_PRODUCT", PRODUCT)
    monkeypatch.chdir(tmp_path)
    return folder


@pytest.fixture
def history(tmp_path: Path) -> Path:
    """A table of fields and labels; neither ids nor times, one number missing."""
    chance = np.random.default_rng(20)
    columns = {
        name: np.round(chance.random(20) * 100, 2)
        if name.startswith("n")
        else [WORDS[word] for word in chance.integers(0, len(WORDS), 20)]
        for name in FIELDS
    }
    columns["n0"][3] = np.nan
    path = tmp_path / "rows.parquet"
    pl.DataFrame(columns | {"label": [0, 1] * 10}).write_parquet(path)
    return path


def spec_of(repository: Path) -> str:
    """Name its features.yaml."""
    return str(repository / f"{PRODUCT}_features/1/features.yaml")


def test_features_of_a_bare_table_are_built_and_replayed(
    repository: Path, history: Path, tmp_path: Path
) -> None:
    """Numbers as they are, NaN for what is missing; and the online path agrees."""
    out = tmp_path / "features.parquet"
    spec = ("--spec", spec_of(repository))
    done = CliRunner().invoke(app, ["features", "build", str(history), str(out), *spec])
    assert done.exit_code == 0, done.output
    built, rows = pl.read_parquet(out), pl.read_parquet(history)
    np.testing.assert_array_equal(built["n0"], rows["n0"])
    assert built["transaction_id"].to_list() == [str(row) for row in range(1, 21)]
    done = CliRunner().invoke(app, ["features", "replay", str(history), *spec])
    assert done.exit_code == 0, done.output
    assert "20" in done.output


@pytest.mark.parametrize(
    "command",
    [
        ["materialize", "HISTORY"],
        ["rebuild", "HISTORY"],
        ["feed", "HISTORY"],
        ["stream"],
        ["evaluate", "HISTORY"],
    ],
    ids=lambda command: command[0],
)
@pytest.mark.usefixtures("repository")
def test_what_fills_or_needs_windows_is_refused(
    history: Path, command: list[str]
) -> None:
    """In one line, before any store is asked."""
    given = [str(history) if one == "HISTORY" else one for one in command]
    done = CliRunner().invoke(app, [*given])
    assert isinstance(done.exception, InputError)
    assert str(done.exception) == (
        "features.yaml: entities: declared has none: the store keeps nothing of its "
        "purchases"
    )

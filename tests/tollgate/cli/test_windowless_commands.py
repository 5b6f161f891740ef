"""Commands about a product without windows: what works, and what has nothing to do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

from loadtests.declared_fields import columns_of, fields_of, make
from tollgate.cli.app import app
from tollgate.errors import InputError

FIELDS = fields_of(5)
PRODUCT = "declared"


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A product of five fields, as the settings' one."""
    folder = tmp_path / "model_repository"
    make(folder, FIELDS)
    monkeypatch.setenv("TOLLGATE_PRODUCT", PRODUCT)
    monkeypatch.chdir(tmp_path)
    return folder


@pytest.fixture
def history(tmp_path: Path) -> Path:
    """A table of fields and labels; neither ids nor times, one number missing."""
    columns = columns_of(FIELDS, 20, tag="t")
    columns["n0"][3] = np.nan
    del columns["transaction_id"], columns["event_time"]
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
    days = ("--from", "2000-01-01", "--until", "2000-01-02")
    done = CliRunner().invoke(app, ["features", "replay", str(history), *days, *spec])
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

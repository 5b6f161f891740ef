"""The table of claims is measured by one command."""

import numpy as np
import polars as pl
import pytest
from xgboost import XGBClassifier

from converters import claims
from converters.compression import distill


def test_the_command_prints_a_row_for_every_claim(tmp_path, capsys, monkeypatch):
    """From a file of trees and labelled rows; small here, so that it is quick."""
    monkeypatch.setattr(distill, "ROWS", 1000)
    monkeypatch.setattr(claims, "WIDE", (8,))
    random = np.random.default_rng(0)
    rows = random.normal(size=(600, 3)).astype(np.float32)
    label = (rows[:, 0] + random.normal(size=600) > 0.5).astype(int)
    XGBClassifier(n_estimators=10, max_depth=2, n_jobs=1).fit(rows, label).save_model(
        tmp_path / "model.json"
    )
    table = pl.DataFrame(rows, schema=["a", "b", "c"])
    table.with_columns(fraud=pl.Series(label)).write_parquet(tmp_path / "rows.parquet")
    arguments = [
        str(tmp_path / "model.json"),
        "--sample",
        str(tmp_path / "rows.parquet"),
    ]
    assert claims.main([*arguments, "--label", "fraud", "--thresholds", "0.3,0.6"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 12
    assert "| 30 % pruned costs nothing | 7 of 10 trees | AUC 0." in lines[2]
    assert lines[-1].endswith("TensorRT on GPUs |")


@pytest.mark.parametrize("label", ["none", "a"])
def test_a_wrong_label_column_is_one_line(tmp_path, capsys, label):
    """Exit status 2 and the name of the column."""
    rows = np.zeros((4, 1), dtype=np.float32)
    model = XGBClassifier(n_estimators=1, max_depth=1, n_jobs=1).fit(rows, [0, 1, 0, 1])
    model.get_booster().feature_names = ["a"]
    model.save_model(tmp_path / "model.json")
    pl.DataFrame(rows, schema=["a"]).write_csv(tmp_path / "rows.csv")
    arguments = [str(tmp_path / "model.json"), "--sample", str(tmp_path / "rows.csv")]
    assert claims.main([*arguments, "--label", label]) == 2
    shown = capsys.readouterr().err
    assert label in shown
    assert shown.count("\n") == 1

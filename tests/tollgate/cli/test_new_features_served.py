"""A feature that features.yaml gains reaches a release by commands alone."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest
from xgboost import XGBClassifier

from tests.support.products.committed_product import copy_product
from tollgate.features.spec.feature_spec import load_spec
from tollgate.server.address import find_server

CLI = [sys.executable, "-c", "from tollgate.cli import main; main()"]
NEW = "customer_most_7d"
PORTS = ("--grpc-port=0", "--metrics-port=0", "--side-port=0")
ROWS = 32  # one request: its rows are decided in their order
_KEYS = ("transaction_id", "customer_id", "terminal_id", "event_time", "label")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A repository with the committed product, and a features.yaml with one more."""
    models = copy_product(tmp_path / "model_repository")
    text = (models / "fraud_features/1/features.yaml").read_text()
    before = "  - {name: terminal_nb_tx_1d,"
    line = f"  - {{name: {NEW}, entity: customer, aggregate: max, window: 7d}}\n"
    assert text.count(before) == 1
    (tmp_path / "features.yaml").write_text(text.replace(before, line + before))
    return tmp_path


def run(folder: Path, *words: str, status: int = 0) -> str:
    """Run a command in a folder; what it wrote."""
    done = subprocess.run(
        [*CLI, *words], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == status, done.stderr[-2000:]
    return done.stdout + done.stderr


def trained(folder: Path) -> tuple[XGBClassifier, list[str]]:
    """Train on the rows that `features build` wrote."""
    rows = pl.read_parquet(folder / "rows.parquet")
    names = [name for name in rows.columns if name not in _KEYS]
    model = XGBClassifier(n_estimators=20, max_depth=4, n_jobs=1)
    model.fit(frame_of(rows, names), rows["label"].to_numpy())
    model.save_model(folder / "model.json")
    return model, names


def frame_of(rows: pl.DataFrame, names: list[str]) -> pd.DataFrame:
    """Take the features of rows."""
    return pd.DataFrame({name: rows[name].to_numpy() for name in names})


def most_of_a_week(rows: pl.DataFrame) -> np.ndarray:
    """Compute the new feature by pandas: the largest amount of 7 days; [N]."""
    frame = pd.DataFrame({name: rows[name].to_list() for name in (*_KEYS, "amount")})
    frame.index = pd.to_datetime(frame["event_time"])
    found = np.empty(len(frame))
    for _, at in frame.groupby("customer_id").indices.items():
        amounts = frame["amount"].iloc[at]
        found[at] = amounts.rolling(pd.Timedelta(days=7), closed="right").max()
    return found


@pytest.mark.slow
def test_a_new_window_is_built_trained_converted_published_and_served(
    folder: Path,
) -> None:
    """The scores of the release are the model's, on vectors with the new feature."""
    run(
        folder, "simulate", "h.parquet", "--customers=60", "--terminals=40", "--days=45"
    )
    build = ("features", "build", "--spec", "features.yaml")
    run(folder, *build, "h.parquet", "rows.parquet")
    rows = pl.read_parquet(folder / "rows.parquet")
    np.testing.assert_allclose(rows[NEW].to_numpy(), most_of_a_week(rows), rtol=1e-6)
    model, names = trained(folder)
    assert len(names) == 16

    convert = ("convert", "model.json", "--product=fraud", "--spec=features.yaml")
    convert = (*convert, "--sample=rows.parquet", "--label=label", "--out=out")
    said = run(folder, *convert, status=2)
    assert "[16] (model) does not fit TYPE_FP32 [15] (config.pbtxt)" in said
    for path in folder.glob("model_repository/fraud_*/config.pbtxt"):
        path.write_text(path.read_text().replace("dims: [ 15 ]", "dims: [ 16 ]"))
    run(folder, *convert)
    publish = ("publish", "out", "--product=fraud")
    run(folder, *publish, status=2)  # its features are nowhere
    versions = folder / "model_repository" / "fraud_features"
    assert not (versions / "2").exists()
    said = run(folder, *publish, "--spec=features.yaml")
    assert "features   version 2; release both: " in said
    assert (versions / "2/features.yaml").read_text() == (
        folder / "features.yaml"
    ).read_text()
    assert (versions / "2/model.py").exists()
    run(
        folder,
        *("release", "activate", "--product=fraud", "--set=features=2"),
        *("--set=model=2", "--reason=a new window"),
    )

    # One customer's last purchases, to a store that knows nothing yet.
    history = pl.read_parquet(folder / "h.parquet")
    busiest = history["customer_id"].mode().sort()[0]
    few = history.filter(pl.col("customer_id") == busiest).tail(ROWS)
    few = few.with_columns(label=pl.lit(0).cast(history["label"].dtype))
    few.write_parquet(folder / "few.parquet")
    run(folder, *build, "few.parquet", "vectors.parquet")
    vectors = pl.read_parquet(folder / "vectors.parquet")
    assert vectors[NEW].n_unique() > 3
    scored = folder / "scored.parquet"
    with (folder / "up.log").open("w") as log:
        up = subprocess.Popen(
            [*CLI, "up", "--product=fraud", *PORTS],
            cwd=folder,
            stdout=log,
            stderr=log,
            env={**os.environ, "TOLLGATE_STATE": str(folder / ".tollgate")},
        )
    try:
        while (server := find_server(folder / ".tollgate")) is None:
            assert up.poll() is None, (folder / "up.log").read_text()[-2000:]
            time.sleep(0.1)
        run(
            folder,
            "score",
            "few.parquet",
            f"--url={server.grpc_url}",
            f"--out={scored}",
        )
    finally:
        up.terminate()
        up.wait()
    found = pl.read_parquet(scored)
    assert set(found["release"]) == {"fraud-2"}
    expected = model.predict_proba(frame_of(vectors, names))[:, 1]
    np.testing.assert_allclose(found["score"].to_numpy(), expected, atol=1e-6)


def test_a_failed_publish_takes_its_features_out_again(folder: Path) -> None:
    """A model of other features, and one that does not fit, leave nothing."""
    shutil.copytree(folder / "model_repository/fraud_model/1", folder / "out")
    publish = ("publish", "out", "--product=fraud", "--spec=features.yaml")
    said = run(folder, *publish, status=2)
    assert "out/artifact.json: spec_hash: was converted for " in said
    assert said.endswith(": convert it for features.yaml\n")
    wanted = load_spec(folder / "features.yaml").spec_hash
    record = folder / "out" / "artifact.json"
    changed = json.loads(record.read_text()) | {"spec_hash": f"{wanted:016x}"}
    record.write_text(json.dumps(changed))
    run(folder, *publish, status=2)  # its 15 features are not these 16
    step = folder / "model_repository" / "fraud_features"
    assert sorted(one.name for one in step.iterdir() if one.name.isdigit()) == ["1"]


def test_features_of_another_product_are_refused(folder: Path) -> None:
    """One line names file, key, and both products."""
    path = folder / "features.yaml"
    path.write_text(path.read_text().replace("product: fraud", "product: shop", 1))
    (folder / "model.json").write_text("{}")
    said = run(
        folder,
        *("convert", "model.json", "--product=fraud", "--spec=features.yaml"),
        "--out=out",
        status=2,
    )
    assert said == (
        "tollgate: features.yaml: product: is 'shop'; the model is for 'fraud'\n"
    )
    said = run(folder, "convert", "model.json", f"--spec={path}", "--out=o", status=2)
    assert said == "tollgate: --spec: belongs to a product: --product NAME\n"

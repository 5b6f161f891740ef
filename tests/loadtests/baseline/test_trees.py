"""Tests of the served model as XGBoost's own file."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import xgboost

from loadtests.baseline.trees import write_xgboost
from tollgate.errors import RepositoryError
from tollgate.explanation.explanation_file import (
    EXPLAIN_FILE,
    encode_explanation,
    read_explanation,
    unexplained,
)

CHECKOUT = Path(__file__).resolve().parents[3]
VERSION = CHECKOUT / "model_repository" / "fraud_model" / "1"


def test_xgboost_answers_as_onnxruntime_does(tmp_path: Path) -> None:
    """On rows at every threshold of the trees, and one step below and above each."""
    path = tmp_path / "model.json"
    write_xgboost(VERSION, path)
    model = xgboost.XGBClassifier()
    model.load_model(path)
    trees = read_explanation(VERSION / EXPLAIN_FILE).trees
    assert trees is not None
    inner = trees.left >= 0
    columns, edges = trees.feature[inner], trees.threshold[inner]
    up = np.nextafter(edges, np.float32(np.inf))
    rows = np.random.default_rng(0).choice(edges, (3 * len(edges), 15))
    for place, values in enumerate((edges, up, np.nextafter(up, np.float32(np.inf)))):
        at = np.arange(len(edges)) + place * len(edges)
        rows[at, columns] = values
    session = onnxruntime.InferenceSession(str(VERSION / "model.onnx"))
    (wanted,) = session.run(["probabilities"], {"features": rows})
    assert np.abs(model.predict_proba(rows) - wanted).max() < 5e-7
    assert wanted[:, 1].min() < 0.01 < 0.99 < wanted[:, 1].max()


def test_a_model_without_trees_is_refused(tmp_path: Path) -> None:
    """The message names the file."""
    features = read_explanation(VERSION / EXPLAIN_FILE).features
    content = encode_explanation(
        unexplained("is a network", features=features, classes=(0, 1))
    )
    shutil.copy(VERSION / "model.onnx", tmp_path)
    (tmp_path / EXPLAIN_FILE).write_bytes(content)
    record = {"files": {EXPLAIN_FILE: hashlib.sha256(content).hexdigest()}}
    (tmp_path / "artifact.json").write_text(json.dumps(record))
    with pytest.raises(RepositoryError, match=r"explain\.npz.*numeric trees"):
        write_xgboost(tmp_path, tmp_path / "model.json")
    assert not (tmp_path / "model.json").exists()

"""Ways to spoil a candidate, and the words that publishing has for each."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper, numpy_helper


def linear_onnx(weights: np.ndarray) -> bytes:
    """softmax(features x weights) over float32 [N, F]."""
    value = helper.make_tensor_value_info
    count, classes = weights.shape
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["features", "weights"], ["margin"]),
            helper.make_node("Softmax", ["margin"], ["probabilities"]),
        ],
        "linear",
        [value("features", TensorProto.FLOAT, ["n", count])],
        [value("probabilities", TensorProto.FLOAT, ["n", classes])],
        [numpy_helper.from_array(weights.astype(np.float32), "weights")],
    )
    opsets = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    content: bytes = model.SerializeToString()
    return content


def set_model(folder: Path, model: bytes) -> None:
    """Put a model into a candidate, and its checksum into the record."""
    (folder / "model.onnx").write_bytes(model)
    _edit(folder, sha256=hashlib.sha256(model).hexdigest())


def _edit(folder: Path, **fields: object) -> None:
    """Change fields of a candidate's record."""
    path = folder / "artifact.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def _truncate(folder: Path) -> None:
    path = folder / "model.onnx"
    path.write_bytes(path.read_bytes()[:1000])


def _link(folder: Path) -> None:
    (folder / "card.md").unlink()
    (folder / "card.md").symlink_to("/etc/hostname")


def _pipe(folder: Path) -> None:
    os.mkfifo(folder / "pipe.json")


def _narrow(folder: Path) -> None:
    set_model(folder, linear_onnx(np.zeros((14, 2))))


def _names(folder: Path) -> list[str]:
    found: list[str] = json.loads((folder / "artifact.json").read_text())["features"]
    return found


def _proof(folder: Path, **changed: object) -> None:
    """Change fields of a candidate's only proof."""
    (proof,) = json.loads((folder / "artifact.json").read_text())["parity"]
    _edit(folder, parity=[proof | changed])


def _costly(folder: Path) -> None:
    figures = {"average_precision": 0.6, "us_per_row": {"1": 9.0}, "size_bytes": 10}
    trade = {
        "kind": "prune",
        "detail": "5 of 100 trees",
        "rows": 1000,
        "flips": 0,
        "max_delta": 0.1,
        "before": figures | {"auc": 0.86},
        "after": figures | {"auc": 0.80},
    }
    _edit(folder, trades=[trade])


def explain(folder: Path, data: bytes, *, named: bytes) -> None:
    """Put an explain.npz into a candidate, and a checksum into the record."""
    (folder / "explain.npz").write_bytes(data)
    _edit(folder, files={"explain.npz": hashlib.sha256(named).hexdigest()})


BAD: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing folder": (shutil.rmtree, ": is not a folder"),
    "no model": (
        lambda folder: (folder / "model.onnx").unlink(),
        ": has no model.onnx: not a converted model",
    ),
    "no record": (
        lambda folder: (folder / "artifact.json").unlink(),
        ": has no artifact.json: not a converted model",
    ),
    "library": (
        lambda folder: (folder / "libtriton_onnxruntime.so").touch(),
        "/libtriton_onnxruntime.so: is no part of a model version",
    ),
    "code": (
        lambda folder: (folder / "model.py").touch(),
        "/model.py: is no part of a model version",
    ),
    "link": (_link, "/card.md: is not a plain file"),
    "pipe": (_pipe, "/pipe.json: is not a plain file"),
    "truncated": (_truncate, "/model.onnx: has SHA-256 "),
    "truncated before it was recorded": (
        lambda folder: set_model(folder, (folder / "model.onnx").read_bytes()[:999]),
        "/model.onnx: is not an ONNX model, or only a part of one",
    ),
    "reasons of another model": (
        lambda folder: explain(folder, b"one", named=b"other"),
        "/explain.npz: has SHA-256 7692c3ad3540…, artifact.json says d9298a10d1b0…: ",
    ),
    "reasons that are missing": (
        lambda folder: _edit(folder, files={"reasons.npz": "0" * 64}),
        "/reasons.npz: is missing: artifact.json names it",
    ),
    "a file outside the folder": (
        lambda folder: _edit(folder, files={"../explain.npz": "0" * 64}),
        "/artifact.json: Expected `str` matching regex",
    ),
    "no JSON": (
        lambda folder: (folder / "artifact.json").write_text("{"),
        "/artifact.json: ",
    ),
    "no text": (
        lambda folder: (folder / "artifact.json").write_bytes(b"\xff\xfe"),
        "/artifact.json: ",
    ),
    "another spec": (
        lambda folder: _edit(folder, spec_hash="0123456789abcdef"),
        "/artifact.json: spec_hash: 0123456789abcdef is not features.yaml's ",
    ),
    "too few names": (
        lambda folder: _edit(folder, features=_names(folder)[:-1]),
        "/artifact.json: features: 14 names, features.yaml has 15",
    ),
    "names in another order": (
        lambda folder: _edit(folder, features=_names(folder)[::-1]),
        '/artifact.json: features[0]: "terminal_risk_30d" is "amount" in features.yaml',
    ),
    "no proof": (
        lambda folder: _edit(folder, parity=[]),
        "/artifact.json: parity: has no proof for onnxruntime 1.19.2, only for: none",
    ),
    "proof in another runtime alone": (
        lambda folder: _proof(folder, runtime="onnxruntime 1.27.0"),
        "/artifact.json: parity: has no proof for onnxruntime 1.19.2, only for: onnxr",
    ),
    "decisions that flip": (
        lambda folder: _proof(folder, flips=1),
        "/artifact.json: parity: says that it does not answer as its source: onnxr",
    ),
    "differences too large": (
        lambda folder: _proof(folder, max_delta=2e-5),
        "/artifact.json: parity: says that it does not answer as its source: onnxr",
    ),
    "a tolerance of somebody's own": (
        lambda folder: _proof(folder, max_delta=0.5, tolerance=1.0),
        "/artifact.json: parity: says that it does not answer as its source: onnxr",
    ),
    "smaller at too high a price": (
        _costly,
        "/artifact.json: trades: prune (5 of 100 trees) costs too much: the AUC falls",
    ),
    "model of another width": (
        _narrow,
        "/model.onnx: input features: TYPE_FP32 [14] (model) does not fit",
    ),
    "three classes": (
        lambda folder: set_model(folder, linear_onnx(np.zeros((15, 3)))),
        "/model.onnx: output probabilities: TYPE_FP32 [3] (model) does not fit",
    ),
    "no probabilities": (
        lambda folder: set_model(folder, linear_onnx(np.full((15, 2), np.nan))),
        "/model.onnx: probabilities: [nan, nan] for an ordinary row",
    ),
}

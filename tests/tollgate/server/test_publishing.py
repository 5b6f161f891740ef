"""Publishing adds a whole version or nothing, and never touches the release."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from tollgate.errors import RepositoryError, ServerError
from tollgate.repository.check import check
from tollgate.repository.versions import list_versions
from tollgate.server.control import Endpoint
from tollgate.server.model_trial import try_model
from tollgate.server.publishing import Published, publish

CHECKOUT = Path(__file__).resolve().parents[3]
STEP = "fraud_model"
FAST = {1: 10.0, 8: 2.0, 32: 1.0}

Publish = Callable[..., Published]


def _linear_onnx(weights: np.ndarray) -> bytes:
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


def _set_model(folder: Path, model: bytes) -> None:
    """Put a model into a candidate, and its checksum into the record."""
    (folder / "model.onnx").write_bytes(model)
    _edit(folder, sha256=hashlib.sha256(model).hexdigest())


def _edit(folder: Path, **fields: object) -> None:
    """Change fields of a candidate's record."""
    path = folder / "artifact.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def _files(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A copy of the committed repository."""
    bytecode = shutil.ignore_patterns("__pycache__")
    copy = tmp_path / "models"
    shutil.copytree(CHECKOUT / "model_repository", copy, ignore=bytecode)
    return copy


@pytest.fixture
def candidate(tmp_path: Path) -> Path:
    """A converted model to publish: the committed one, with a model card."""
    folder = tmp_path / "candidate"
    shutil.copytree(CHECKOUT / "model_repository" / STEP / "1", folder)
    (folder / "card.md").write_text("# A model\n")
    return folder


@pytest.fixture
def add(models: Path, candidate: Path) -> Publish:
    """Publish the candidate without a server, as if it were fast."""

    def add_(**changed: object) -> Published:
        arguments: dict[str, object] = {
            "repository": models,
            "product": "fraud",
            "dry_load": False,
            "measure": lambda model: FAST,
        }
        return publish(candidate, **(arguments | changed))  # type: ignore[arg-type]

    return add_


def test_published_version_is_the_folder_and_the_release_stays(
    models: Path, candidate: Path, add: Publish
) -> None:
    """Version 2 has the same bytes, records included; all else is as it was."""
    before = _files(models)
    published = add()
    assert (published.step, published.version, published.release) == (STEP, 2, "")
    after = _files(models)
    new = {name: after.pop(name) for name in after.keys() - before.keys()}
    assert after == before
    wanted = _files(candidate)
    assert new == {f"{STEP}/2/{name}": text for name, text in wanted.items()}
    assert check(models, product="fraud") == []


def _truncate(folder: Path) -> None:
    path = folder / "model.onnx"
    path.write_bytes(path.read_bytes()[:1000])


def _link(folder: Path) -> None:
    (folder / "card.md").unlink()
    (folder / "card.md").symlink_to("/etc/hostname")


def _pipe(folder: Path) -> None:
    os.mkfifo(folder / "pipe.json")


def _narrow(folder: Path) -> None:
    _set_model(folder, _linear_onnx(np.zeros((14, 2))))


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


def _explained(folder: Path, data: bytes, *, named: bytes) -> None:
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
        lambda folder: _set_model(folder, (folder / "model.onnx").read_bytes()[:999]),
        "/model.onnx: is not an ONNX model, or only a part of one",
    ),
    "reasons of another model": (
        lambda folder: _explained(folder, b"one", named=b"other"),
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
        lambda folder: _set_model(folder, _linear_onnx(np.zeros((15, 3)))),
        "/model.onnx: output probabilities: TYPE_FP32 [3] (model) does not fit",
    ),
    "no probabilities": (
        lambda folder: _set_model(folder, _linear_onnx(np.full((15, 2), np.nan))),
        "/model.onnx: probabilities: [nan, nan] for an ordinary row",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_folder_is_one_line_and_nothing_is_written(
    models: Path, candidate: Path, add: Publish, name: str
) -> None:
    """File, field and value, in words of the folder that was handed in."""
    spoil, words = BAD[name]
    spoil(candidate)
    before = sorted(models.parent.rglob("*"))
    with pytest.raises(RepositoryError) as caught:
        add()
    assert str(caught.value).startswith(f"{candidate}{words}"), str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_status == 2
    assert sorted(models.parent.rglob("*")) == before


def test_released_features_count_not_the_newest(models: Path, add: Publish) -> None:
    """A features version that is there but not released changes nothing."""
    step = models / "fraud_features"
    shutil.copytree(step / "1", step / "2")
    draft = step / "2" / "features.yaml"
    draft.write_text(draft.read_text().replace("window: 30d", "window: 31d", 1))
    assert add().version == 2


def test_first_model_needs_no_release(models: Path, add: Publish) -> None:
    """A product without a release and without a model gets version 1."""
    (models / "fraud" / "release.json").unlink()
    shutil.rmtree(models / STEP / "1")
    assert add().version == 1
    assert not (models / "fraud" / "release.json").exists()


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("file", ["model.onnx", "artifact.json"])
def test_changed_version_stops_publishing(
    models: Path, add: Publish, number: int, file: str
) -> None:
    """Versions are immutable: changed bytes are named, released (1) or not (2)."""
    assert add().version == 2
    path = models / STEP / str(number) / file
    path.write_bytes(path.read_bytes().replace(b"0", b"1", 1))
    with pytest.raises(
        RepositoryError, match=rf"{STEP}/{number}/model\.onnx: has SHA-256 "
    ):
        add()
    assert list_versions(models, STEP) == [1, 2]


def test_changed_reasons_stop_publishing(
    models: Path, candidate: Path, add: Publish
) -> None:
    """What is read later is as immutable as the model, in versions not released too."""
    _explained(candidate, b"trees", named=b"trees")
    assert add().version == 2
    (models / STEP / "2" / "explain.npz").write_bytes(b"other trees")
    with pytest.raises(RepositoryError, match=rf"{STEP}/2/explain\.npz: has SHA-256 "):
        add()


def test_file_that_the_release_does_not_mean_stops_publishing(
    models: Path, add: Publish
) -> None:
    """Of a released version every byte of every file counts."""
    (models / STEP / "1" / "card.md").write_text("written later")
    with pytest.raises(RepositoryError, match=r"release\.json: hashes: .*/1/card\.md"):
        add()
    assert list_versions(models, STEP) == [1]


def test_model_over_budget_is_refused(models: Path, add: Publish) -> None:
    """A measured 800 µs per row at 32 breaks 616; the figures are in the line."""
    with pytest.raises(RepositoryError) as caught:
        add(measure=lambda model: {1: 950.0, 8: 900.0, 32: 800.0})
    said = str(caught.value)
    assert "candidate/model.onnx: budget: takes 800 µs per row in batches of 32" in said
    assert (
        "the budget is 616 µs (19.7 ms; 20 ms of 50 are the model's, less 0.3" in said
    )
    assert list_versions(models, STEP) == [1]


def test_trial_is_what_arithmetic_says(candidate: Path) -> None:
    """softmax(x w) of the made-up rows, computed with NumPy; the first row is zeros."""
    weights = np.random.default_rng(1).normal(0, 0.01, (15, 2)).astype(np.float32)
    _set_model(candidate, _linear_onnx(weights))
    trial = try_model(candidate / "model.onnx")
    assert trial.features.shape == (32, 15)
    assert not trial.features[0].any()
    assert len(np.unique(trial.features, axis=0)) == 32
    power = np.exp(trial.features.astype(np.float64) @ weights)
    wanted = power / power.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(trial.probabilities, wanted, atol=1e-6)


def test_server_that_does_not_answer_stops_before_anything_is_written(
    models: Path, add: Publish
) -> None:
    """The server is asked first."""
    before = _files(models.parent)
    with pytest.raises(ServerError, match=r"no server answers at 127\.0\.0\.1:1"):
        add(server=Endpoint("127.0.0.1:1"))
    assert _files(models.parent) == before


def test_two_publishers_get_two_versions(models: Path, candidate: Path) -> None:
    """Two processes at once: versions 2 and 3, both whole."""
    program = """
import sys
from pathlib import Path
from tollgate.server.publishing import publish
print(publish(Path(sys.argv[1]), repository=Path(sys.argv[2]), product="fraud",
              dry_load=False).version)
"""
    command = [sys.executable, "-c", program, str(candidate), str(models)]
    running = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    said = sorted(one.communicate()[0].strip() for one in running)
    assert said == ["2", "3"]
    wanted = _files(candidate)
    assert _files(models / STEP / "2") == _files(models / STEP / "3") == wanted
    assert not list(models.parent.glob(".publish-*"))


def test_kill_at_any_moment_leaves_the_old_or_the_new() -> None:
    """20 publishers killed at random moments: no half version, nothing left over."""
    script = Path(__file__).parent / "kill_publishers.py"
    done = subprocess.run(
        [sys.executable, str(script), "--kills", "20"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["kills"], found["old"] + found["new"]) == (20, 20)
    assert (found["half"], found["unsound"], found["left_at_the_end"]) == (0, 0, [])
    assert found["leftovers"] > 0  # the kills did come in between

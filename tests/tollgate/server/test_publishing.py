"""Publishing adds a whole version or nothing, and never touches the release."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.support.server.invalid_candidates import BAD, explain, linear_onnx, set_model
from tollgate.errors import RepositoryError, ServerError
from tollgate.repository.lint.product_rules import check
from tollgate.repository.snapshot import RepositorySnapshot
from tollgate.repository.versions import list_versions
from tollgate.server.model_trial import try_model
from tollgate.server.publishing import Published, publish
from tollgate.server.triton.control import Endpoint

CHECKOUT = Path(__file__).resolve().parents[3]
STEP = "fraud_model"
FAST = {1: 10.0, 8: 2.0, 32: 1.0}

Publish = Callable[..., Published]


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
    assert check(RepositorySnapshot(models), product="fraud") == []


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
    explain(candidate, b"trees", named=b"trees")
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
    set_model(candidate, linear_onnx(weights))
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

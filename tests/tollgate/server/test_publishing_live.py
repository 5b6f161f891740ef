"""A running server takes a new version beside the serving one, or keeps what it has."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from tollgate.errors import ServerError
from tollgate.repository.product_models import read_product
from tollgate.repository.versions import list_versions
from tollgate.schema import FEATURES, PROBABILITIES
from tollgate.server.address import ADDRESS_FILE
from tollgate.server.model_trial import try_model
from tollgate.server.publishing import publish, side_load
from tollgate.server.serving.embedded import Embedded, serve
from tollgate.server.triton import control
from tollgate.server.triton.control import Endpoint
from tollgate.server.triton.probe import probe

pytestmark = pytest.mark.slow

CHECKOUT = Path(__file__).resolve().parents[3]
STEP = "fraud_model"
WEIGHTS = np.random.default_rng(1).normal(0, 0.01, (15, 2)).astype(np.float32)


def _copy(folder: Path) -> Path:
    bytecode = shutil.ignore_patterns("__pycache__")
    shutil.copytree(CHECKOUT / "model_repository", folder, ignore=bytecode)
    return folder


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which a person works: repository and state by their usual names."""
    folder = tmp_path_factory.mktemp("home")
    _copy(folder / "model_repository")
    return folder


@pytest.fixture(scope="module")
def served(home: Path) -> Iterator[Embedded]:
    """The product, served as `tollgate up` does."""
    with serve(home / "model_repository", state=home / ".tollgate") as server:
        yield server
    assert not (home / ".tollgate" / ADDRESS_FILE).exists()


@pytest.fixture(scope="module")
def candidate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another model than the served one: softmax(features x WEIGHTS)."""
    folder = tmp_path_factory.mktemp("candidate")
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["features", "weights"], ["margin"]),
            helper.make_node("Softmax", ["margin"], ["probabilities"]),
        ],
        "linear",
        [value("features", TensorProto.FLOAT, ["n", 15])],
        [value("probabilities", TensorProto.FLOAT, ["n", 2])],
        [numpy_helper.from_array(WEIGHTS, "weights")],
    )
    opsets = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    content = model.SerializeToString()
    (folder / "model.onnx").write_bytes(content)
    record = CHECKOUT / "model_repository" / STEP / "1" / "artifact.json"
    fields = json.loads(record.read_text())
    fields["sha256"] = hashlib.sha256(content).hexdigest()
    fields.pop("files", None)  # what explains the served model explains no other
    (folder / "artifact.json").write_text(json.dumps(fields))
    return folder


class Trickle(threading.Thread):
    """Asks for a decision again and again, and keeps what went wrong."""

    def __init__(self, server: Embedded) -> None:
        super().__init__()
        self._server = server
        self._done = threading.Event()
        self.answered = 0
        self.problems: list[str] = []

    def run(self) -> None:
        """Ask until stopped."""
        while not self._done.wait(0.01):
            try:
                probe(self._server.triton, "fraud", rows=(1,))
                self.answered += 1
            except ServerError as error:
                self.problems.append(str(error))

    def __enter__(self) -> Trickle:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self.join()


def test_command_finds_the_server_and_no_request_fails(
    home: Path, served: Embedded, candidate: Path
) -> None:
    """
    `tollgate publish DIR` alone: tried in a server of its own, then loaded beside.

    Every request in the meantime is answered by the release as it was, by the very
    processes that served before; the new version answers by its number alone.
    """
    secret = home / ".tollgate" / ADDRESS_FILE
    assert secret.stat().st_mode & 0o777 == 0o600
    release = (home / "model_repository" / "fraud" / "release.json").read_bytes()
    model = control.ready_versions(served.triton, STEP)
    assert model == [1]
    with Trickle(served) as trickle:
        done = subprocess.run(
            [
                *(sys.executable, "-c", "from tollgate.cli import main; main()"),
                *("publish", str(candidate)),
            ],
            cwd=home,
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    answers = served.serving["fraud"].release
    assert done.stdout == (
        f"published  {STEP} version 2\nserving    {answers}, as before\n"
    )
    assert trickle.problems == []
    assert trickle.answered > 0
    assert control.ready_versions(served.triton, STEP) == [1, 2]
    policy = control.model_config(served.triton, STEP)["version_policy"]
    assert policy == {"specific": {"versions": ["1", "2"]}}
    assert (home / "model_repository" / "fraud" / "release.json").read_bytes() == (
        release
    )
    rows = np.random.default_rng(2).uniform(0, 50, (5, 15)).astype(np.float32)
    power = np.exp(rows.astype(np.float64) @ WEIGHTS)
    answer = control.infer(
        served.triton,
        STEP,
        inputs={FEATURES: rows},
        parameters={},
        timeout_s=10,
        version=2,
    )
    wanted = power / power.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(answer[PROBABILITIES], wanted, atol=1e-6)


def test_another_version_starts_one_process_and_ends_none(
    home: Path, served: Embedded, candidate: Path
) -> None:
    """Versions that serve are not started again for a new one."""
    before = control.ready_versions(served.triton, STEP)
    log = served.triton.log
    lines = len(log.read_text().splitlines())
    published = publish(
        candidate,
        repository=home / "model_repository",
        product="fraud",
        server=served.triton,
        dry_load=False,
    )
    opened = [
        line
        for line in log.read_text().splitlines()[lines:]
        if "model.onnx in onnxruntime" in line
    ]
    assert len(opened) == 1
    assert f"/{STEP}/{published.version}/model.onnx" in opened[0]
    assert control.ready_versions(served.triton, STEP) == [*before, published.version]


def test_server_of_another_repository_undoes_the_version(
    served: Embedded, candidate: Path, tmp_path: Path
) -> None:
    """What a server cannot load is not published: the new directory is gone again."""
    other = _copy(tmp_path / "models")
    for _ in control.ready_versions(served.triton, STEP):
        publish(candidate, repository=other, product="fraud", dry_load=False)
    there = list_versions(other, STEP)
    loaded = control.ready_versions(served.triton, STEP)
    with pytest.raises(ServerError) as caught:
        publish(
            candidate,
            repository=other,
            product="fraud",
            server=served.triton,
            dry_load=False,
        )
    assert caught.value.exit_status == 1
    assert STEP in str(caught.value)
    assert list_versions(other, STEP) == there
    assert not list(tmp_path.glob(".publish-*"))
    assert control.ready_versions(served.triton, STEP) == loaded
    assert probe(served.triton, "fraud").release == served.serving["fraud"].release


def test_version_that_does_not_load_leaves_the_others_serving(
    home: Path, served: Embedded, candidate: Path
) -> None:
    """A damaged file on the server's side: the failure is told, nothing else moves."""
    repository = home / "model_repository"
    number = list_versions(repository, STEP)[-1] + 1
    broken = repository / STEP / str(number)
    shutil.copytree(candidate, broken)
    (broken / "model.onnx").write_bytes(b"damaged")
    loaded = control.ready_versions(served.triton, STEP)
    try:
        with pytest.raises(ServerError, match=rf"{STEP}: did not load: .*onnxruntime"):
            side_load(
                served.triton,
                models=read_product(repository, "fraud"),
                version=number,
                trial=try_model(candidate / "model.onnx"),
            )
    finally:
        shutil.rmtree(broken)
    assert control.ready_versions(served.triton, STEP) == loaded
    assert probe(served.triton, "fraud").release == served.serving["fraud"].release


def test_wrong_secret_is_told_before_anything_is_written(
    home: Path, served: Embedded, candidate: Path
) -> None:
    """The control API is closed to whoever has not read the file."""
    before = list_versions(home / "model_repository", STEP)
    with pytest.raises(ServerError, match="the admin header is missing or wrong"):
        publish(
            candidate,
            repository=home / "model_repository",
            product="fraud",
            server=Endpoint(served.grpc_url),
            dry_load=False,
        )
    assert list_versions(home / "model_repository", STEP) == before


def test_model_that_no_server_loads_is_not_published(
    candidate: Path, tmp_path: Path
) -> None:
    """The dry load alone stands in the way; its message names the step."""
    models = _copy(tmp_path / "models")
    config = models / STEP / "config.pbtxt"
    text = config.read_text()
    assert 'string_value: "1"' in text
    config.write_text(text.replace('string_value: "1"', 'string_value: "one"'))
    with pytest.raises(ServerError, match=rf'{STEP}: did not load: .*"one"'):
        publish(candidate, repository=models, product="fraud")
    assert list_versions(models, STEP) == [1]
    assert not list(tmp_path.glob(".publish-*"))

"""A real server runs the configuration that was chosen by name."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tollgate.repository.configs import read_config, to_json
from tollgate.repository.product_models import read_product
from tollgate.server.model_trial import try_model
from tollgate.server.publishing import side_load
from tollgate.server.serving.embedded import serve
from tollgate.server.triton import control
from tollgate.server.triton.launcher import TritonServer

REPOSITORY = Path(__file__).parents[3] / "model_repository"
MODEL = "fraud_model"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A copy whose model has a configuration `quick`: no delay, two instances."""
    copy = tmp_path / "repository"
    shutil.copytree(REPOSITORY, copy)
    text = (copy / MODEL / "config.pbtxt").read_text()
    for old, new in (
        ("max_queue_delay_microseconds: 300", "max_queue_delay_microseconds: 100"),
        ("count: 1 kind: KIND_CPU", "count: 2 kind: KIND_CPU"),
    ):
        assert old in text
        text = text.replace(old, new)
    (copy / MODEL / "configs" / "quick.pbtxt").write_text(text)
    return copy


def delay_and_instances(server: control.Reachable) -> tuple[int, int]:
    """Ask what the model runs with."""
    running = control.model_config(server, MODEL)
    delay = running["dynamic_batching"].get("max_queue_delay_microseconds", 0)
    return int(delay), int(running["instance_group"][0]["count"])


@pytest.mark.slow
def test_the_product_runs_the_chosen_configuration(
    repository: Path, tmp_path: Path
) -> None:
    """The model takes the named file, a step without one its config.pbtxt."""
    with serve(
        repository, state=tmp_path / "state", model_config_name="quick"
    ) as product:
        assert delay_and_instances(product.triton) == (100, 2)
        decision = control.model_config(product.triton, "fraud_decision")
        assert decision["instance_group"][0]["count"] == 1
        assert product.serving["fraud"].release


@pytest.mark.slow
def test_triton_itself_follows_the_same_rule(repository: Path, tmp_path: Path) -> None:
    """
    Triton's option acts on an explicit load without a configuration, and a load that
    brings one of its own goes first: what `serve` sends is what runs.
    """
    with TritonServer(
        repository,
        state=tmp_path / "state",
        store_url="unix:///nowhere",
        model_config_name="quick",
    ) as server:
        control.load_model(server, MODEL, config=None)
        assert delay_and_instances(server) == (100, 2)
        control.load_model(
            server, MODEL, config=to_json(read_config(repository, MODEL))
        )
        assert delay_and_instances(server) == (300, 1)


@pytest.mark.slow
def test_a_new_version_is_loaded_with_the_chosen_configuration(
    repository: Path, tmp_path: Path
) -> None:
    """Published beside, it runs as its neighbours do, and those are not restarted."""
    with serve(
        repository, state=tmp_path / "state", model_config_name="quick"
    ) as product:
        versions = repository / MODEL
        shutil.copytree(versions / "1", versions / "2")
        log = product.triton.log
        lines = len(log.read_text().splitlines())
        side_load(
            product.triton,
            models=read_product(repository, "fraud"),
            version=2,
            trial=try_model(versions / "2" / "model.onnx"),
        )
        opened = [
            line
            for line in log.read_text().splitlines()[lines:]
            if "model.onnx in onnxruntime" in line
        ]
        assert len(opened) == 2  # one per instance
        assert all(f"/{MODEL}/2/model.onnx" in line for line in opened)
        assert control.ready_versions(product.triton, MODEL) == [1, 2]
        assert delay_and_instances(product.triton) == (100, 2)


@pytest.mark.slow
def test_the_low_latency_configuration_serves(tmp_path: Path) -> None:
    """As it was found and committed: no delay, and all else as in config.pbtxt."""
    with serve(
        REPOSITORY, state=tmp_path / "state", model_config_name="low-latency"
    ) as product:
        assert delay_and_instances(product.triton) == (0, 1)
    named = read_config(REPOSITORY, MODEL, config_name="low-latency")
    named.dynamic_batching.max_queue_delay_microseconds = 300
    assert named == read_config(REPOSITORY, MODEL)

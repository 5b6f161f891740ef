"""A real Triton takes the plan, the next release and the rendered text."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.server.published_version import publish_version
from tollgate.repository.configs import CONFIG_FILE, to_json
from tollgate.repository.releases.activation import compose_release
from tollgate.repository.releases.release_file import (
    Release,
    read_release,
    write_release,
)
from tollgate.repository.releases.rendering import merged_configs, render
from tollgate.repository.snapshot import RepositorySnapshot
from tollgate.server.processes.redis_server import EmbeddedRedis
from tollgate.server.triton import control
from tollgate.server.triton.launcher import TritonServer
from tollgate.server.triton.probe import probe

pytestmark = pytest.mark.slow

CHECKOUT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the committed repository, shared by the tests of this file."""
    copy = tmp_path_factory.mktemp("served") / "models"
    shutil.copytree(CHECKOUT / "model_repository", copy)
    return copy


@pytest.fixture(scope="module")
def served(models: Path) -> Iterator[TritonServer]:
    """A plain Triton that runs the release of the copy."""
    state = models.parent / "state"
    with (
        EmbeddedRedis(state) as redis,
        TritonServer(models, state=state, store_url=redis.url) as triton,
    ):
        for load in merged_configs(models, product="fraud"):
            control.load_model(triton, load.name, config=to_json(load))
        yield triton


def _release_same_model_again(repository: Path) -> Release:
    """Pin another version of the model, with the same content."""
    current = read_release(repository, product="fraud")
    source = repository / "fraud_model" / str(current.versions["fraud_model"])
    number = publish_version(repository, step="fraud_model", source=source)
    release = compose_release(
        RepositorySnapshot(repository),
        product="fraud",
        versions={**current.versions, "fraud_model": number},
        actor="test",
        reason="the same model as another version",
        spec_hash=current.spec_hash,
    )
    write_release(repository, release)
    return release


def _assert_runs(triton: TritonServer, release: Release) -> None:
    """Answers carry the release's name; versions are loaded and pinned as it says."""
    assert probe(triton, "fraud").release == release.name
    for step in release.versions:
        versions = [str(version) for version in release.loaded_versions(step)]
        policy = control.model_config(triton, step)["version_policy"]
        assert policy == {"specific": {"versions": versions}}
    ensemble = control.model_config(triton, "fraud")["ensemble_scheduling"]
    pins = {step["model_name"]: int(step["model_version"]) for step in ensemble["step"]}
    assert pins == release.versions


def test_running_server_moves_to_the_next_release(
    models: Path, served: TritonServer
) -> None:
    """The versions of both releases stay loaded, the ensemble pins the new one."""
    release = _release_same_model_again(models)
    for load in merged_configs(models, product="fraud"):
        control.load_model(served, load.name, config=to_json(load))
    assert len(release.loaded_versions("fraud_model")) == 2
    _assert_runs(served, release)


def test_rendered_files_load_without_an_override(
    models: Path, served: TritonServer
) -> None:
    """A Triton that is given the rendered text as files runs the same release."""
    release = _release_same_model_again(models)
    for model, text in render(models, "fraud").items():
        (models / model / CONFIG_FILE).write_text(text)
        control.load_model(served, model, config=None)
    _assert_runs(served, release)

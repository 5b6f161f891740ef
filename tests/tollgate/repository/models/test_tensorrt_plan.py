"""What is loaded is the files merged with the release, in the order of the data."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from tollgate.features.spec.feature_spec import load_spec
from tollgate.repository.configs import to_json
from tollgate.repository.releases.activation import compose_release
from tollgate.repository.releases.release_file import (
    Challenger,
    read_release,
    release_path,
    write_release,
)
from tollgate.repository.releases.rendering import merged_configs, render
from tollgate.repository.snapshot import RepositorySnapshot

STEPS = ("fraud_features", "fraud_model", "fraud_decision")


def _change(repository: Path, **fields: Any) -> Path:
    path = release_path(repository, "fraud")
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))
    return path


@pytest.fixture
def second(repository: Path) -> Path:
    """A repository whose release pins version 2 of the model and keeps version 1."""
    shutil.copytree(repository / "fraud_model/1", repository / "fraud_model/2")
    release = compose_release(
        RepositorySnapshot(repository),
        product="fraud",
        versions=dict.fromkeys(STEPS, 1) | {"fraud_model": 2},
        actor="test",
        reason="second model",
        spec_hash=read_release(repository, product="fraud").spec_hash,
    )
    write_release(repository, release)
    return repository


def test_plan_is_the_merge_in_load_order(second: Path) -> None:
    """Steps in the order of the data, then the ensemble, each with its merge."""
    release = read_release(second, product="fraud")
    spec = load_spec(second / "fraud_features/1/features.yaml")
    plan = merged_configs(second, product="fraud")
    assert [load.name for load in plan] == [*STEPS, "fraud"]
    configs = {load.name: load for load in plan}
    kept = {
        step: list(configs[step].version_policy.specific.versions) for step in STEPS
    }
    assert kept == {"fraud_features": [1], "fraud_model": [1, 2], "fraud_decision": [1]}
    pins = configs["fraud"].ensemble_scheduling.step
    assert {pin.model_name: pin.model_version for pin in pins} == release.versions
    parameters = {
        key: value.string_value
        for key, value in configs["fraud_decision"].parameters.items()
    }
    assert parameters["release"] == release.name
    assert parameters["expected_spec_hash"] == f"{spec.spec_hash:016x}"
    assert not configs["fraud"].HasField("version_policy")
    assert "release" not in configs["fraud_features"].parameters
    assert configs["fraud_model"].dynamic_batching.max_queue_delay_microseconds == 300


def test_challenger_is_kept_loaded(second: Path) -> None:
    """The union has the versions of active, previous and challenger release."""
    shutil.copytree(second / "fraud_model/1", second / "fraud_model/5")
    release = read_release(second, product="fraud")
    more = {
        name.replace("fraud_model/1/", "fraud_model/5/"): digest
        for name, digest in release.hashes.items()
        if name.startswith("fraud_model/1/")
    }
    challenger = Challenger(
        release="fraud-9",
        versions=dict.fromkeys(STEPS, 1) | {"fraud_model": 5},
        spec_hash=release.spec_hash,
        mode="shadow",
        actor="test",
        reason="test",
        time="2026-01-01T00:00:00Z",
    )
    trial = msgspec.to_builtins(challenger)
    _change(second, challenger=trial, hashes=release.hashes | more)
    assert read_release(second, product="fraud").loaded_versions("fraud_model") == [
        1,
        2,
        5,
    ]
    model = merged_configs(second, product="fraud")[1]
    assert list(model.version_policy.specific.versions) == [1, 2, 5]


def test_planning_writes_nothing(second: Path) -> None:
    """The configurations belong to their owners: planning leaves every file alone."""
    before = {path: path.read_bytes() for path in second.rglob("*") if path.is_file()}
    merged_configs(second, product="fraud")
    rendered = render(second, "fraud")
    after = {path: path.read_bytes() for path in second.rglob("*") if path.is_file()}
    assert after == before
    assert list(rendered) == [*STEPS, "fraud"]


def test_rendered_text_is_the_plan(second: Path) -> None:
    """What a plain Triton is given is what ours is given."""
    rendered = render(second, "fraud")
    for load in merged_configs(second, product="fraud"):
        planned = load
        assert text_format.Parse(rendered[load.name], ModelConfig()) == planned


def test_plan_is_the_same_text_each_time(second: Path) -> None:
    """Equal state gives equal strings, so that a change can be told."""
    assert render(second, "fraud") == render(second, "fraud")


def test_roles_come_from_tensors_not_names(repository: Path) -> None:
    """A product whose steps have other names is planned all the same."""
    renamed = {
        "fraud_features": "alpha",
        "fraud_model": "beta",
        "fraud_decision": "gamma",
    }
    for old, new in renamed.items():
        (repository / old).rename(repository / new)
    files = [*repository.glob("*/config.pbtxt"), release_path(repository, "fraud")]
    for path in files:
        text = path.read_text()
        for old, new in renamed.items():
            text = text.replace(old, new)
        path.write_text(text)
    plan = merged_configs(repository, product="fraud")
    assert [load.name for load in plan] == ["alpha", "beta", "gamma", "fraud"]
    assert ["expected_spec_hash" in to_json(load) for load in plan] == [
        False,
        False,
        True,
        False,
    ]

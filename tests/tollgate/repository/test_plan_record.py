"""A TensorRT plan counts when its record ties it to the published model."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tollgate.repository.hashes import PLAN_FILE, hash_file, plan_record
from tollgate.repository.lint.product_rules import check
from tollgate.repository.models.model_files import PlanRecord
from tollgate.repository.releases.rendering import merged_configs
from tollgate.repository.snapshot import RepositorySnapshot


@pytest.fixture
def plan(repository: Path) -> Path:
    """A file in the place of a plan, with a record that fits it and the model."""
    version = repository / "fraud_model" / "1"
    path = version / PLAN_FILE
    path.write_bytes(b"what TensorRT built")
    write_record(path, onnx_sha256=hash_file(version / "model.onnx"))
    return path


def write_record(plan: Path, *, onnx_sha256: str) -> None:
    """Write the record of a plan."""
    record = PlanRecord(
        plan_sha256=hash_file(plan),
        onnx_sha256=onnx_sha256,
        tensorrt="10.15.1",
        gpu="a GPU",
        precision="fp32",
        profiles=((1, 32, 32),),
        created="2026-01-01T00:00:00Z",
    )
    plan_record(plan).write_bytes(msgspec.json.encode(record))


def found(repository: Path) -> list[str]:
    """Print what is wrong with the product when it runs the plan."""
    findings = check(
        RepositorySnapshot(repository, config_name="tensorrt"), product="fraud"
    )
    return [str(one).partition("fraud_model/1/")[2] for one in findings]


def test_a_plan_of_this_model_is_sound(repository: Path, plan: Path) -> None:
    """Plan and record belong to no release, so the release still holds."""
    assert found(repository) == []
    assert check(RepositorySnapshot(repository), product="fraud") == []
    assert merged_configs(repository, product="fraud", config_name="tensorrt")


def test_without_a_plan_the_command_that_builds_it_is_named(repository: Path) -> None:
    """The default configuration needs none."""
    (missing,) = found(repository)
    assert missing.startswith("model.plan: is missing: build it on the machine")
    assert "tollgate engine" in missing
    assert check(RepositorySnapshot(repository), product="fraud") == []


def test_a_plan_of_another_model_is_refused(repository: Path, plan: Path) -> None:
    """A new model.onnx needs a new plan: the old one would go on deciding."""
    write_record(plan, onnx_sha256="0" * 64)
    (finding,) = found(repository)
    assert finding.startswith(
        "model.plan.json: onnx_sha256: model.onnx is another: record 000000000000…"
    )


def test_a_changed_plan_is_refused(repository: Path, plan: Path) -> None:
    """What is loaded is what was built."""
    plan.write_bytes(b"something else")
    (finding,) = found(repository)
    assert "plan_sha256: model.plan is another" in finding


def test_a_plan_without_a_record_is_refused(repository: Path, plan: Path) -> None:
    """Nobody can say what it was built from."""
    plan_record(plan).unlink()
    (finding,) = found(repository)
    assert finding.startswith("model.plan.json: cannot be read")
    plan_record(plan).write_text("{}")
    (finding,) = found(repository)
    assert "missing required field" in finding

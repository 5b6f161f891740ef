"""A named configuration stands in for config.pbtxt, model by model."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelInstanceGroup

from tollgate.errors import InputError, RepositoryError
from tollgate.repository.configs import config_path, read_config
from tollgate.repository.lint.product_rules import check
from tollgate.repository.product_models import read_product
from tollgate.repository.releases.rendering import merged_configs, render
from tollgate.repository.snapshot import RepositorySnapshot

MODEL = "fraud_model"


def name_config(repository: Path, name: str, *, delay_us: int) -> Path:
    """Write a named configuration of the model that differs in its delay."""
    path = repository / MODEL / "configs" / f"{name}.pbtxt"
    path.parent.mkdir(exist_ok=True)
    text = (repository / MODEL / "config.pbtxt").read_text()
    old = "max_queue_delay_microseconds: 300"
    assert old in text
    path.write_text(text.replace(old, f"max_queue_delay_microseconds: {delay_us}"))
    return path


def test_it_replaces_the_whole_file_where_there_is_one(repository: Path) -> None:
    """The model with the file takes it, the others keep config.pbtxt."""
    name_config(repository, "slow", delay_us=9_000)
    product = read_product(repository, "fraud", config_name="slow")
    batching = product.steps[MODEL].dynamic_batching
    assert batching.max_queue_delay_microseconds == 9_000
    plain = read_product(repository, "fraud")
    assert plain.steps[MODEL].dynamic_batching.max_queue_delay_microseconds == 300
    for name in ("fraud_features", "fraud_decision"):
        assert product.steps[name] == plain.steps[name]
    assert product.ensemble == plain.ensemble


def test_nothing_of_the_default_file_is_kept(repository: Path) -> None:
    """What the named file leaves out is out: warm-up, delay, parameters."""
    path = name_config(repository, "bare", delay_us=1)
    path.write_text('backend: "onnxruntime"\nmax_batch_size: 32\n')
    config = read_config(repository, MODEL, config_name="bare")
    assert config == ModelConfig(name=MODEL, backend="onnxruntime", max_batch_size=32)


def test_the_plan_pins_the_release_into_it(repository: Path) -> None:
    """Configuration by name, versions by release: both are in what is loaded."""
    name_config(repository, "slow", delay_us=9_000)
    loads = merged_configs(repository, product="fraud", config_name="slow")
    (load,) = (one for one in loads if one.name == MODEL)
    config = load
    assert config.dynamic_batching.max_queue_delay_microseconds == 9_000
    assert list(config.version_policy.specific.versions) == [1]
    rendered = render(repository, "fraud", config_name="slow")
    assert "max_queue_delay_microseconds: 9000" in rendered[MODEL]


def test_a_name_that_no_model_has_is_a_typing_error(repository: Path) -> None:
    """Triton would take config.pbtxt for all of them and say nothing."""
    name_config(repository, "slow", delay_us=9_000)
    with pytest.raises(RepositoryError, match=r"configs/slwo\.pbtxt; there are .*slow"):
        read_product(repository, "fraud", config_name="slwo")
    for folder in repository.glob("fraud_*/configs"):
        shutil.rmtree(folder)
    with pytest.raises(RepositoryError, match=r"has configs/slow\.pbtxt$"):
        read_product(repository, "fraud", config_name="slow")


@pytest.mark.parametrize("name", ["../x", "a b", "a/b", "-x", ".x"])
def test_a_name_leads_nowhere_else(repository: Path, name: str) -> None:
    """A name is part of a path, so it must not be one."""
    with pytest.raises(InputError, match="is not the name of a file"):
        read_product(repository, "fraud", config_name=name)


def test_findings_name_the_file_that_was_read(repository: Path) -> None:
    """A broken named configuration is found, and it is the one that is named."""
    path = name_config(repository, "wrong", delay_us=9_000)
    text = path.read_text().replace("dims: [ 15 ]", "dims: [ 14 ]")
    path.write_text(text.replace("max_batch_size: 32", "max_batch_size: 16"))
    assert check(RepositorySnapshot(repository), product="fraud") == []
    found = check(RepositorySnapshot(repository, config_name="wrong"), product="fraud")
    assert any("features" in one.where and "14" in one.problem for one in found)
    (batch,) = (one for one in found if one.where == "max_batch_size")
    assert batch.file == str(path)
    path.write_text("max_batch_size: many")
    (broken,) = check(
        RepositorySnapshot(repository, config_name="wrong"), product="fraud"
    )
    assert broken.file == str(path)
    assert broken.where == "line 1"


def test_the_gpu_configuration_is_wired_as_the_default(repository: Path) -> None:
    """Same tensors, same batches, the same rules kept; only the place differs."""
    assert (
        check(RepositorySnapshot(repository, config_name="gpu"), product="fraud") == []
    )
    gpu = read_config(repository, MODEL, config_name="gpu")
    assert [one.kind for one in gpu.instance_group] == [ModelInstanceGroup.KIND_GPU]
    del gpu.instance_group[:]
    cpu = read_config(repository, MODEL)
    del cpu.instance_group[:]
    assert gpu == cpu


def test_the_tensorrt_configuration_runs_the_plan(repository: Path) -> None:
    """Same tensors and batches; a plan beside the model, all its profiles."""
    config = read_config(repository, MODEL, config_name="tensorrt")
    cpu = read_config(repository, MODEL)
    assert (config.platform, config.backend) == ("tensorrt_plan", "")
    assert config.default_model_filename == "model.plan"
    assert (config.input, config.output) == (cpu.input, cpu.output)
    assert config.max_batch_size == cpu.max_batch_size
    assert config.dynamic_batching == cpu.dynamic_batching
    assert config.model_warmup == cpu.model_warmup
    (group,) = config.instance_group
    assert group.kind == ModelInstanceGroup.KIND_GPU
    assert list(group.profile) == ["0", "1", "2"]
    assert config_path(repository, MODEL, config_name="tensorrt").name == (
        "tensorrt.pbtxt"
    )

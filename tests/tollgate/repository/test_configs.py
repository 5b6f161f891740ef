"""Configurations are read, merged and printed as protobuf, and never written."""

from __future__ import annotations

from pathlib import Path

import pytest
from google.protobuf import json_format, text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from tollgate.errors import RepositoryError
from tollgate.repository.configs import merge, read_config, to_json, to_text


def _write(repository: Path, content: bytes) -> Path:
    (repository / "m").mkdir()
    path = repository / "m" / "config.pbtxt"
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    ("content", "where", "problem"),
    [
        (b'name: "m"\n\nfoo: 3\n', "line 3", 'no field named "foo"'),
        (b'name: "m"\ninput [ { dims: [ 1 }\n', "line 2", 'Expected ","'),
        (b"max_batch_size: many", "line 1", "Couldn't parse integer: many"),
        (b'name: "m"\n# \xff\n', "line 2", "byte 0xff is not UTF-8"),
        (b'name: "n"\n', "name", 'is "n" but the directory is "m"'),
    ],
)
def test_bad_text_is_named_by_file_and_line(
    tmp_path: Path, content: bytes, where: str, problem: str
) -> None:
    """What is not a Triton configuration is refused with its line."""
    path = _write(tmp_path, content)
    with pytest.raises(RepositoryError) as raised:
        read_config(tmp_path, "m")
    assert (raised.value.source, raised.value.where) == (str(path), where)
    assert problem in raised.value.problem
    assert "\n" not in str(raised.value)


def test_missing_file_is_named(tmp_path: Path) -> None:
    """A model without a config.pbtxt says which file was looked for."""
    with pytest.raises(RepositoryError, match=r"m/config\.pbtxt: cannot be read: No"):
        read_config(tmp_path, "m")


def test_name_may_be_left_out(tmp_path: Path) -> None:
    """As in Triton, the directory names the model when the file does not."""
    _write(tmp_path, b"max_batch_size: 4")
    config = read_config(tmp_path, "m")
    assert (config.name, config.max_batch_size) == ("m", 4)


def test_merge_changes_only_what_it_is_told(repository: Path) -> None:
    """Versions and parameters are set; every other field is as in the file."""
    config = read_config(repository, "fraud_features")
    before = config.SerializeToString(deterministic=True)
    merged = merge(config, versions=[3, 1, 3], parameters={"store_deadline_ms": "7"})
    assert list(merged.version_policy.specific.versions) == [1, 3]
    assert merged.parameters["store_deadline_ms"].string_value == "7"
    assert config.SerializeToString(deterministic=True) == before
    merged.ClearField("version_policy")
    merged.parameters["store_deadline_ms"].string_value = "5"
    assert merged == config


def test_merge_replaces_another_version_policy() -> None:
    """A policy in the file gives way: the two are alternatives in protobuf."""
    config = text_format.Parse(
        "version_policy { latest { num_versions: 2 } }", ModelConfig()
    )
    merged = merge(config, versions=[4])
    assert merged.version_policy.WhichOneof("policy_choice") == "specific"
    assert merge(config).version_policy.latest.num_versions == 2


def test_pins_reach_every_step_of_the_ensemble(repository: Path) -> None:
    """The ensemble's steps get the version of their own model."""
    pins = {"fraud_features": 2, "fraud_model": 30, "fraud_decision": 4}
    merged = merge(read_config(repository, "fraud"), pins=pins)
    steps = merged.ensemble_scheduling.step
    assert {step.model_name: step.model_version for step in steps} == pins


@pytest.mark.parametrize(
    "model", ["fraud", "fraud_features", "fraud_model", "fraud_decision"]
)
def test_printed_forms_read_back_the_same(repository: Path, model: str) -> None:
    """JSON and text lose nothing; enumerations are names and 64-bit are strings."""
    config = merge(read_config(repository, model), versions=[1, 2**40])
    printed = to_json(config)
    assert json_format.Parse(printed, ModelConfig()) == config
    assert f'"versions": ["1", "{2**40}"]' in printed
    assert '"data_type": "TYPE_' in printed
    assert text_format.Parse(to_text(config), ModelConfig()) == config

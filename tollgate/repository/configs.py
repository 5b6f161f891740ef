"""
Read, merge and print model configurations, always as protobuf.

A config.pbtxt belongs to the people who run the server. This module reads it and never
writes it: settings of a release are merged into the message that is sent to Triton.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from google.protobuf import json_format, text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from tollgate.errors import InputError, RepositoryError
from tollgate.schema import CHALLENGER_OUTPUTS

CONFIG_FILE = "config.pbtxt"
NAMED_CONFIGS = "configs"
_CONFIG_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def config_path(repository: Path, model: str, *, config_name: str = "") -> Path:
    """
    Return the path of the file that configures a model.

    A named configuration replaces config.pbtxt as a whole; a model without one of that
    name uses config.pbtxt. That is Triton's rule for --model-config-name.
    """
    named = repository / model / NAMED_CONFIGS / f"{config_name}.pbtxt"
    if config_name and named.exists():
        return named
    return repository / model / CONFIG_FILE


def require_config_name(name: str) -> None:
    """Raise InputError unless a name is valid for a named configuration."""
    if name and not _CONFIG_NAME.fullmatch(name):
        raise InputError(
            "model config name",
            f"{name!r} is not the name of a file configs/NAME.pbtxt without its end: "
            "letters, digits, dots, dashes and underscores",
        )


def read_config(repository: Path, model: str, *, config_name: str = "") -> ModelConfig:
    """
    Read the configuration of one model.

    Args:
        config_name: Named configuration that takes precedence; empty for none.

    Raises:
        RepositoryError: The file is missing, is not protobuf text of a Triton
            configuration (with the line), or names another model.
    """
    path = config_path(repository, model, config_name=config_name)
    try:
        text = path.read_bytes().decode("utf-8")
    except OSError as exc:
        raise RepositoryError(path, f"cannot be read: {exc.strerror}") from exc
    except UnicodeDecodeError as exc:
        problem = f"byte 0x{exc.object[exc.start]:02x} is not UTF-8"
        line = exc.object.count(b"\n", 0, exc.start) + 1
        raise RepositoryError(path, problem, where=f"line {line}") from exc
    try:
        config = text_format.Parse(text, ModelConfig())
    except text_format.ParseError as exc:
        raise _parse_problem(path, exc) from exc
    if config.name not in ("", model):
        problem = f'is "{config.name}" but the directory is "{model}"'
        raise RepositoryError(path, problem, where="name")
    config.name = model
    return config


def _parse_problem(path: Path, exc: text_format.ParseError) -> RepositoryError:
    """Split "2:1 : message" of the parser into file, line and message."""
    line = exc.GetLine()
    message = " ".join(str(exc).split())
    if line is None:
        return RepositoryError(path, message)
    message = message.partition(" : ")[2] or message
    return RepositoryError(path, message, where=f"line {line}")


def merge(
    config: ModelConfig,
    *,
    versions: Iterable[int] = (),
    pins: Mapping[str, int] | None = None,
    parameters: Mapping[str, str] | None = None,
) -> ModelConfig:
    """
    Return a configuration with the settings of a release added.

    Args:
        config: The configuration as its file has it; not changed.
        versions: Versions to load; if empty, the version policy is not changed.
        pins: Version per step of an ensemble, for every step it has.
        parameters: Parameters to set, replacing those of the same key.
    """
    merged = ModelConfig()
    merged.CopyFrom(config)
    # A version policy of "latest" or "all" unloads a pinned version as soon as a new
    # one is added, and takes the ensemble down with it.
    if specific := sorted(set(versions)):
        merged.version_policy.specific.versions[:] = specific
    if pins is not None:
        for step in merged.ensemble_scheduling.step:
            step.model_version = pins[step.model_name]
    for key, value in (parameters or {}).items():
        merged.parameters[key].string_value = value
    return merged


def add_canary(ensemble: ModelConfig, *, step: str, version: int) -> None:
    """
    Wire a second version of an ensemble's model into it, for a challenger.

    A step that reads the model's output in the ensemble also receives the other output,
    under its name of CHALLENGER_OUTPUTS; nothing else changes.

    Args:
        ensemble: Changed in place; its versions are pinned already.
    """
    steps = ensemble.ensemble_scheduling.step
    (model,) = (one for one in steps if one.model_name == step)
    (name,) = (one for one in CHALLENGER_OUTPUTS if one in model.output_map)
    challenger, output = CHALLENGER_OUTPUTS[name], model.output_map[name]
    readers = [one for one in steps if output in one.input_map.values()]
    for reader in readers:
        reader.input_map[challenger] = challenger
    second = steps.add()
    second.CopyFrom(model)
    second.model_version = version
    second.output_map.clear()
    second.output_map[name] = challenger


def to_json(config: ModelConfig) -> str:
    """
    Print a configuration in the form `load_model(config=...)` takes.

    Protobuf's own JSON: field names as in config.pbtxt, enumerations by name, 64-bit
    integers as strings. Triton reads it with the same library.
    """
    # Sorted, so that equal configurations are equal strings, and a caller can compare
    # them.
    text: str = json_format.MessageToJson(
        config, preserving_proto_field_name=True, indent=None, sort_keys=True
    )
    return text


def to_text(config: ModelConfig) -> str:
    """Print a configuration as protobuf text, the form of a config.pbtxt."""
    text: str = text_format.MessageToString(config)
    return text

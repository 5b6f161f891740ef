"""
Give models that only an ensemble may call a name that callers cannot guess.

A server draws a suffix of 128 bits at each start. It serves each step of a product as
`NAME--SUFFIX`, a link next to the step's folder of copies. Under the step's public name
stands an ensemble that passes every request to a Python step as a direct call; that
step counts, logs and refuses it. docs/threat-model.md describes what this protects.
"""

from __future__ import annotations

import secrets
from pathlib import Path

from tritonclient.grpc.model_config_pb2 import ModelConfig

from tollgate.schema import DIRECT_CALL, public_name

REFUSING_VERSION = 2**31 - 1  # of the refusing ensemble; no copy of a step has it


def draw_suffix() -> str:
    """Draw the random suffix of one server start."""
    return secrets.token_hex(16)


def private_name(name: str, suffix: str) -> str:
    """Return the name under which a step or a trial ensemble is served."""
    return f"{name}--{suffix}" if suffix else name


def link_private(repository: Path, name: str, *, suffix: str) -> str:
    """
    Make a model loadable under its private name, and return that name.

    Args:
        suffix: Suffix of this start; empty for a server without private names.
    """
    private = private_name(name, suffix)
    link = repository / private
    if private != name and not link.is_symlink():
        link.symlink_to(name)
    return private


def unlink_private(repository: Path) -> None:
    """Remove the private names of an earlier start."""
    for path in repository.iterdir():
        if path.is_symlink() and public_name(path.name) != path.name:
            path.unlink()


def mark_direct_calls(step: ModelConfig) -> None:
    """
    Make a Python step accept direct calls, so that it can refuse them.

    The step gets an optional input that marks such a call, and an output that it never
    fills, for the ensembles of models that cannot refuse calls themselves. Its own
    inputs become optional: the ensemble of its product provides all of them.
    """
    kind = step.input[0].data_type
    for one in step.input:
        one.optional = True
    # Ragged: otherwise the batcher wakes for each request, to compare the shapes of an
    # input that none of them has.
    step.input.add(
        name=DIRECT_CALL,
        data_type=kind,
        dims=[-1],
        optional=True,
        allow_ragged_batch=True,
    )
    step.output.add(name=DIRECT_CALL, data_type=kind, dims=[-1])


def hide_instances(step: ModelConfig, name: str) -> None:
    """Name a step's instances after its public name: errors to callers show it."""
    if not step.instance_group:
        step.instance_group.add()
    for number, group in enumerate(step.instance_group):
        if not group.name:
            group.name = f"{name}_{number}"


def refusing_ensemble(
    step: ModelConfig, *, by: ModelConfig, private: str, version: int
) -> ModelConfig:
    """
    Build the ensemble that makes a Python step refuse requests to a public name.

    Args:
        step: Configuration, as in the repository, of the step that has the name.
        by: Configuration of the Python step that refuses; the same, or one with an
            input and an output of the same type as the first of `step`.
        private: The private name of the latter.
    """
    ensemble = ModelConfig(
        name=step.name, platform="ensemble", max_batch_size=step.max_batch_size
    )
    ensemble.version_policy.specific.versions.append(REFUSING_VERSION)
    only = ensemble.ensemble_scheduling.step.add(
        model_name=private, model_version=version
    )
    for one in step.input:
        ensemble.input.add(
            name=one.name,
            data_type=one.data_type,
            dims=one.dims,
            optional=one.optional,
        )
        if by.name == step.name:
            only.input_map[one.name] = one.name
    only.input_map[DIRECT_CALL] = step.input[0].name
    for output in step.output:
        ensemble.output.add(
            name=output.name, data_type=output.data_type, dims=output.dims
        )
        inner = output.name if by.name == step.name else DIRECT_CALL
        only.output_map[inner] = output.name
    return ensemble


def can_refuse(by: ModelConfig, step: ModelConfig) -> bool:
    """Return whether a Python step can refuse a step's calls, by tensor types."""
    if by.name == step.name:
        return True
    kind = by.input[0].data_type
    alone = len(step.input) == len(step.output) == 1
    # The input that marks a direct call has one dimension, as features have.
    return (
        alone
        and len(step.input[0].dims) == 1
        and {step.input[0].data_type, step.output[0].data_type} == {kind}
    )

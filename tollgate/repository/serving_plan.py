"""
What a server of ours serves of a release: its parts, and what each part is told.

A part is one version of one step. A step learns from the release what the version
itself cannot know (its name, the lists of the policy), so the same version is another
part in another release, and two releases can be loaded side by side without one
answering in the name of the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec
from tritonclient.grpc.model_config_pb2 import ModelConfig

from tollgate.errors import RepositoryError
from tollgate.repository.plan import plan_findings
from tollgate.repository.product import Product, read_product
from tollgate.repository.release import (
    Release,
    release_path,
    require_steps,
    verify_active,
)
from tollgate.repository.rendering import released_spec
from tollgate.repository.rules import PYTHON_BACKEND
from tollgate.repository.told import (
    decision_parameters,
    features_parameters,
    load_policy_of,
)


class Part(msgspec.Struct, frozen=True):
    """
    One version of one step, as one release serves it.

    Attributes:
        step: The model.
        version: Its version in the repository.
        hashes: SHA-256 of each of its files, by path below the version directory.
        told: What the release tells a Python step; None for a step that is told
            nothing by anybody, such as an ONNX model.
    """

    step: str
    version: int
    hashes: Mapping[str, str]
    told: Mapping[str, str] | None


class ServingPlan(msgspec.Struct, frozen=True):
    """
    A release, ready to be served.

    Attributes:
        repository: Where its files are.
        product: Name of the ensemble.
        release: The release.
        parts: Part per step, in the order in which data flows.
        configs: Configuration per step, as its file has it.
        ensemble: Configuration of the ensemble, likewise.
    """

    repository: Path
    product: str
    release: Release
    parts: dict[str, Part]
    configs: dict[str, ModelConfig]
    ensemble: ModelConfig


def plan_serving(
    repository: Path, release: Release, *, config_name: str = ""
) -> ServingPlan:
    """
    Plan how a release is served, after verifying its files.

    Args:
        repository: The model repository.
        release: One of its releases, not only the one in release.json.
        config_name: Named configuration to take where a model has it.

    Raises:
        RepositoryError: A file cannot be read, or the release does not fit what is
            in the repository.
        SpecError: The features.yaml cannot be used.
        PolicyError: The policy.yaml cannot be used.
    """
    models = read_product(repository, release.product, config_name=config_name)
    require_steps(
        release_path(repository, release.product), release.versions, product=models
    )
    verify_active(repository, release)
    return ServingPlan(
        repository=repository,
        product=release.product,
        release=release,
        parts=_parts(models, release),
        configs=dict(models.steps),
        ensemble=models.ensemble,
    )


def _parts(models: Product, release: Release) -> dict[str, Part]:
    spec = released_spec(release, models)
    step = models.decision_step
    directory = models.repository / step / str(release.versions[step])
    policy = load_policy_of(directory, spec)
    told: dict[str, Mapping[str, str]] = {
        models.features_step: features_parameters(policy, release.product),
        step: decision_parameters(release.name, spec, release.spec_hash),
    }
    parts = {}
    for name, config in models.steps.items():
        version = release.versions[name]
        _require_plan(models.repository / name / str(version), config)
        prefix = f"{name}/{version}/"
        parts[name] = Part(
            step=name,
            version=version,
            hashes={
                path.removeprefix(prefix): digest
                for path, digest in release.hashes_of({name: version}).items()
            },
            told=told.get(name, {}) if config.backend == PYTHON_BACKEND else None,
        )
    return parts


def _require_plan(version: Path, config: ModelConfig) -> None:
    """Demand that a TensorRT plan is one of its model, where one is to be run."""
    for finding in plan_findings(version, config):
        raise RepositoryError(finding.file, finding.problem, where=finding.where)

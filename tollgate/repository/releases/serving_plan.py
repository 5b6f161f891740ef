"""
List the parts of a release that our server serves, and the parameters of each part.

A part is one version of one step. A step receives from the release what the version
itself cannot know (the release's name, the lists of the policy). So the same version is
another part in another release, and two releases can be loaded side by side without one
answering in the name of the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec
from msgspec import structs
from tritonclient.grpc.model_config_pb2 import ModelConfig

from tollgate.errors import RepositoryError
from tollgate.repository.lint.product_rules import PYTHON_BACKEND
from tollgate.repository.models.model_files import plan_findings
from tollgate.repository.product_models import Product
from tollgate.repository.releases.release_file import (
    Challenger,
    Release,
    release_path,
    require_steps,
    verify_active,
)
from tollgate.repository.releases.rendering import (
    canary_parameters,
    step_parameters,
)
from tollgate.repository.releases.served_versions import load_policy_of, released_spec
from tollgate.repository.serving_form import require_form
from tollgate.repository.slo import Form
from tollgate.repository.snapshot import RepositorySnapshot


class Part(msgspec.Struct, frozen=True):
    """
    One version of one step, as one release serves it.

    Attributes:
        version: Its version in the repository.
        hashes: SHA-256 of each of its files, by path below the version directory.
        parameters: Parameters that a Python step receives from the release; None for a
            step that receives none, such as an ONNX model.
    """

    step: str
    version: int
    hashes: Mapping[str, str]
    parameters: Mapping[str, str] | None


class ServingPlan(msgspec.Struct, frozen=True):
    """
    A release, ready to be served.

    Attributes:
        parts: Part per step, in the order in which data flows.
        canary: The challenger's model, if one answers a share of the customers.
        configs: Configuration per step, as in its file.
        ensemble: Configuration of the ensemble, as in its file.
        form: Form in which it is served.
    """

    repository: Path
    product: str
    release: Release
    parts: dict[str, Part]
    canary: Part | None
    configs: dict[str, ModelConfig]
    ensemble: ModelConfig
    form: Form = "ensemble"


def plan_serving(
    snapshot: RepositorySnapshot, release: Release, *, form: Form = "ensemble"
) -> ServingPlan:
    """
    Verify a release's files and plan how it is served.

    Args:
        snapshot: The model repository, with the named configuration to use.
        release: One of its releases, not only the one in release.json.
        form: Form in which to serve it.

    Raises:
        RepositoryError: A file cannot be read, the release does not fit the repository,
            or the product cannot be served in this form.
        SpecError: The features.yaml cannot be used.
        PolicyError: The policy.yaml cannot be used.
    """
    models = snapshot.product(release.product)
    path = release_path(snapshot.folder, release.product)
    require_steps(path, release.versions, product=models)
    require_form(models, form)
    verify_active(snapshot.folder, release)
    canary = canary_of(release)
    return ServingPlan(
        repository=snapshot.folder,
        product=release.product,
        release=release,
        parts=_parts(models, release),
        canary=_canary_part(models, release, canary) if canary else None,
        configs=dict(models.steps),
        ensemble=models.ensemble,
        form=form,
    )


def canary_of(release: Release) -> Challenger | None:
    """Return the challenger that answers a share of the customers, if there is one."""
    challenger = release.challenger
    return challenger if challenger and challenger.mode == "canary" else None


def _canary_part(models: Product, release: Release, canary: Challenger) -> Part:
    """Describe the challenger's model; its other steps are the release's own."""
    path = release_path(models.repository, release.product)
    step = models.model_step
    others = {name for name in models.steps if name != step}
    same = all(canary.versions.get(one) == release.versions[one] for one in others)
    if canary.spec_hash != release.spec_hash or not same:
        problem = "a canary has the features and the policy of the release"
        raise RepositoryError(path, problem, where="challenger")
    if canary.interleaved and not models.ranks:
        problem = f"{models.name} decides: only lists can be interleaved"
        raise RepositoryError(path, problem, where="challenger.interleaved")
    decision, wanted = models.steps[models.decision_step], models.challenger_output
    if wanted not in {one.name for one in decision.input}:
        file = models.config_path(models.decision_step)
        problem = f"has no optional input {wanted}, for a canary"
        raise RepositoryError(file, problem, where="input")
    verify_active(models.repository, structs.replace(release, versions=canary.versions))
    return _part(models, release, step, canary.versions[step], parameters=None)


def _part(
    models: Product,
    release: Release,
    step: str,
    version: int,
    *,
    parameters: Mapping[str, str] | None,
) -> Part:
    """Describe one version of one step."""
    _require_plan(models.repository / step / str(version), models.steps[step])
    prefix = f"{step}/{version}/"
    return Part(
        step=step,
        version=version,
        hashes={
            path.removeprefix(prefix): digest
            for path, digest in release.hashes_of({step: version}).items()
        },
        parameters=parameters,
    )


def _parts(models: Product, release: Release) -> dict[str, Part]:
    spec = released_spec(release, models)
    step = models.decision_step
    directory = models.repository / step / str(release.versions[step])
    policy = load_policy_of(directory, spec)
    canary = canary_of(release)
    parameters = step_parameters(policy, models, release=release, spec=spec)
    if canary:
        parameters[step] |= canary_parameters(canary)
        if models.ranks:  # nothing is prepared with the challenger's model
            parameters[models.features_step] |= canary_parameters(canary)
    return {
        name: _part(
            models,
            release,
            name,
            release.versions[name],
            parameters=parameters.get(name, {})
            if config.backend == PYTHON_BACKEND
            else None,
        )
        for name, config in models.steps.items()
    }


def _require_plan(version: Path, config: ModelConfig) -> None:
    """Check that the TensorRT plan to be run, if any, belongs to its model."""
    for finding in plan_findings(version, config):
        raise RepositoryError(finding.file, finding.problem, where=finding.where)

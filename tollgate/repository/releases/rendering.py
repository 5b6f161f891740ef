"""
Render a release for a Triton that Tollgate does not run: models and configurations.

On such a server a step has one set of parameters for all its versions. Our own server
has one set per release (tollgate/repository/releases/serving_plan.py).
"""

from __future__ import annotations

from pathlib import Path

import msgspec
from tritonclient.grpc.model_config_pb2 import ModelConfig

from tollgate.errors import RepositoryError
from tollgate.features.spec.feature_spec import SPEC_FILE, FeatureSpec, load_spec
from tollgate.policy import Policy
from tollgate.repository.configs import merge, to_json, to_text
from tollgate.repository.product_models import Product, read_product
from tollgate.repository.releases.release_file import (
    Release,
    read_release,
    release_path,
    require_steps,
    spec_hash_text,
    verify_release,
)
from tollgate.repository.releases.step_parameters import (
    decision_parameters,
    features_parameters,
    load_policy_of,
)


class PlannedLoad(msgspec.Struct, frozen=True):
    """A model to load, and the configuration to load it with (JSON)."""

    name: str
    config_json: str


def released_spec(release: Release, models: Product) -> FeatureSpec:
    """Read the spec of the pinned feature version; fail if it is not the release's."""
    step = models.features_step
    version = str(release.versions[step])
    spec = load_spec(models.repository / step / version / SPEC_FILE)
    actual = spec_hash_text(spec.spec_hash)
    if actual != release.spec_hash:
        path = release_path(models.repository, release.product)
        problem = f"is {release.spec_hash} but version {version} of {step} has {actual}"
        raise RepositoryError(path, problem, where="spec_hash")
    return spec


def served_policy(repository: Path, *, product: str) -> Policy:
    """
    Read the policy of a product's release.

    Raises:
        RepositoryError: The release cannot be read, or does not fit the repository.
        PolicyError: The policy cannot be used.
    """
    release = read_release(repository, product=product)
    models = read_product(repository, product)
    step = models.decision_step
    spec = released_spec(release, models)
    return load_policy_of(repository / step / str(release.versions[step]), spec)


def _merged_configs(
    repository: Path, product: str, *, config_name: str
) -> list[ModelConfig]:
    """Merge release and configurations, in the order in which models are loaded."""
    release = read_release(repository, product=product)
    models = read_product(repository, product, config_name=config_name)
    require_steps(release_path(repository, product), release.versions, product=models)
    verify_release(repository, release)
    spec = released_spec(release, models)
    step = models.decision_step
    policy = load_policy_of(repository / step / str(release.versions[step]), spec)
    parameters = {
        models.features_step: features_parameters(policy, product),
        step: decision_parameters(release.name, spec, release.spec_hash),
    }
    merged = [
        merge(
            config,
            versions=release.loaded_versions(name),
            parameters=parameters.get(name),
        )
        for name, config in models.steps.items()
    ]
    return [*merged, merge(models.ensemble, pins=release.versions)]


def plan_load(
    repository: Path, *, product: str, config_name: str = ""
) -> list[PlannedLoad]:
    """
    Verify a product's release and list the models to load for it.

    Args:
        repository: The model repository.
        product: Name of the ensemble.
        config_name: Named configuration to use if a model has it.

    Returns:
        The steps in the order in which data flows, then the ensemble.

    Raises:
        RepositoryError: A file cannot be read, or the release does not fit the
            repository.
        SpecError: The features.yaml cannot be used.
        PolicyError: The policy.yaml cannot be used.
    """
    return [
        PlannedLoad(name=config.name, config_json=to_json(config))
        for config in _merged_configs(repository, product, config_name=config_name)
    ]


def render(repository: Path, product: str, *, config_name: str = "") -> dict[str, str]:
    """
    Print the merged configurations, for a Triton that Tollgate does not run.

    Returns:
        Text of a config.pbtxt per model, in the order of `plan_load`.

    Raises:
        RepositoryError: As `plan_load`.
    """
    return {
        config.name: to_text(config)
        for config in _merged_configs(repository, product, config_name=config_name)
    }

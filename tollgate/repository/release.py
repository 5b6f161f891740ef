"""
The release: which version of each step answers, and what those versions contain.

One small file beside the ensemble's configuration, replaced as a whole. It is the
desired state: every server converges to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import msgspec
from tritonclient.grpc.model_config_pb2 import ModelConfig

from tollgate.errors import RepositoryError
from tollgate.features.spec import SPEC_FILE, FeatureSpec, load_spec
from tollgate.policy import Policy
from tollgate.repository.atomic import replace_file
from tollgate.repository.configs import merge, to_json, to_text
from tollgate.repository.hashes import SHORT_DIGITS, hash_version
from tollgate.repository.product import Product, read_product
from tollgate.repository.told import (
    decision_parameters,
    features_parameters,
    load_policy_of,
)

RELEASE_FILE = "release.json"

Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
Version = Annotated[int, msgspec.Meta(ge=1, le=999_999_999)]
Versions = dict[str, Version]
Sha256 = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}$")]
SpecHash = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{16}$")]
UtcTime = Annotated[
    str, msgspec.Meta(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z$")
]


class Release(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """
    One combination of features, model and policy.

    Attributes:
        name: What answers call it, for example fraud-1.
        product: Name of the ensemble.
        versions: Version per step.
        hashes: SHA-256 of every file of every version that is to be loaded, by its
            path in the repository.
        spec_hash: Hash of the feature spec, 16 hexadecimal digits.
        previous: Versions of the release before it; kept loaded for a roll-back.
        challenger: Versions of a release on trial; loaded too.
        actor: Who made it.
        reason: Why.
        time: When, RFC 3339 in UTC.
    """

    name: Name
    product: Name
    versions: Versions
    hashes: dict[str, Sha256]
    spec_hash: SpecHash
    previous: Versions | None = None
    challenger: Versions | None = None
    actor: str
    reason: str
    time: UtcTime

    def loaded_versions(self, step: str) -> list[int]:
        """List the versions of a step that stay loaded, ascending."""
        sets = (self.versions, self.previous or {}, self.challenger or {})
        return sorted({versions[step] for versions in sets if step in versions})


def spec_hash_text(spec_hash: int) -> str:
    """Print the hash of a feature spec (0 … 2**64 - 1) as 16 hexadecimal digits."""
    return f"{spec_hash:016x}"


class PlannedLoad(msgspec.Struct, frozen=True):
    """A model to load, and the configuration to load it with (JSON)."""

    name: str
    config_json: str


def release_path(repository: Path, product: str) -> Path:
    """Name the file that holds a product's release."""
    return repository / product / RELEASE_FILE


def read_release(repository: Path, *, product: str) -> Release:
    """
    Read the release of a product.

    Raises:
        RepositoryError: The file is missing, is not JSON of a release, or belongs to
            another product.
    """
    path = release_path(repository, product)
    try:
        release = msgspec.json.decode(path.read_bytes(), type=Release)
    except OSError as exc:
        raise RepositoryError(path, f"cannot be read: {exc.strerror}") from exc
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise RepositoryError(path, _decode_problem(exc)) from exc
    if release.product != product:
        problem = f'is "{release.product}" but the ensemble is "{product}"'
        raise RepositoryError(path, problem, where="product")
    return release


def _decode_problem(exc: Exception) -> str:
    """Say what msgspec found, with the field instead of a JSON path."""
    return str(exc).replace(" - at `$.", " - at `").replace(" - at `$`", "")


def write_release(repository: Path, release: Release) -> Path:
    """
    Replace the release of a product; readers see the old one or the new one.

    Raises:
        RepositoryError: A field has a value that no reader accepts, or the file cannot
            be written; the old release is untouched.
    """
    path = release_path(repository, release.product)
    encoded = msgspec.json.encode(release)
    try:
        msgspec.json.decode(encoded, type=Release)  # what is written can be read
        replace_file(path, msgspec.json.format(encoded, indent=2) + b"\n")
    except msgspec.DecodeError as exc:
        raise RepositoryError(path, _decode_problem(exc)) from exc
    except OSError as exc:
        raise RepositoryError(path, f"cannot be written: {exc.strerror}") from exc
    return path


def verify_release(repository: Path, release: Release) -> None:
    """
    Prove that what is to be loaded is what the release was made of.

    Covers the versions of the active, the previous and the challenger release.

    Raises:
        RepositoryError: A version is missing, a file is missing, changed or extra.
    """
    path = release_path(repository, release.product)
    actual: dict[str, str] = {}
    for step in release.versions:
        for version in release.loaded_versions(step):
            if not (repository / step / str(version)).is_dir():
                problem = f"version {version} is not in the repository"
                raise RepositoryError(path, problem, where=step)
            actual |= hash_version(repository, step, version=version)
    for name in sorted(actual.keys() | release.hashes.keys()):
        if problem := _hash_problem(actual.get(name), release.hashes.get(name)):
            raise RepositoryError(path, problem, where=f"hashes: {name}")


def _hash_problem(actual: str | None, named: str | None) -> str:
    """Compare a file with what the release says of it; empty when they agree."""
    if actual is None:
        return "the file is not there"
    if named is None:
        return "the file is there but the release does not name it"
    if actual != named:
        was, found = named[:SHORT_DIGITS], actual[:SHORT_DIGITS]
        return f"the file has changed: release {was}…, file {found}…"
    return ""


def require_steps(
    source: object, versions: Mapping[str, int], *, product: Product
) -> None:
    """
    Demand a version for every step of the product and for nothing else.

    Raises:
        RepositoryError: A step has no version, or a version has no step.
    """
    for step in product.steps:
        if step not in versions:
            raise RepositoryError(
                source, f'names no version of "{step}"', where="versions"
            )
    for name in versions:
        if name not in product.steps:
            problem = f'"{name}" is not a step of "{product.name}"'
            raise RepositoryError(source, problem, where="versions")


def _released_spec(release: Release, models: Product) -> FeatureSpec:
    """Read the spec of the pinned feature version; it must be the release's."""
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
    spec = _released_spec(release, models)
    return load_policy_of(repository / step / str(release.versions[step]), spec)


def _merged_configs(
    repository: Path, product: str, *, config_name: str
) -> list[ModelConfig]:
    """Merge release and configurations, in the order in which models are loaded."""
    release = read_release(repository, product=product)
    models = read_product(repository, product, config_name=config_name)
    require_steps(release_path(repository, product), release.versions, product=models)
    verify_release(repository, release)
    spec = _released_spec(release, models)
    step = models.decision_step
    policy = load_policy_of(repository / step / str(release.versions[step]), spec)
    told = {
        models.features_step: features_parameters(policy, product),
        step: decision_parameters(release.name, spec, release.spec_hash),
    }
    merged = [
        merge(
            config,
            versions=release.loaded_versions(name),
            parameters=told.get(name),
        )
        for name, config in models.steps.items()
    ]
    return [*merged, merge(models.ensemble, pins=release.versions)]


def plan_load(
    repository: Path, *, product: str, config_name: str = ""
) -> list[PlannedLoad]:
    """
    Plan what to load for a product's release, after verifying it.

    Args:
        repository: The model repository.
        product: Name of the ensemble.
        config_name: Named configuration to take where a model has it.

    Returns:
        The steps in the order in which data flows, then the ensemble.

    Raises:
        RepositoryError: A file cannot be read, or the release does not fit what is
            in the repository.
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

"""Read the versions that a product is served with, which a new model must fit."""

from __future__ import annotations

from pathlib import Path

import msgspec

from tollgate.errors import RepositoryError
from tollgate.features.spec.feature_spec import SPEC_FILE, FeatureSpec, load_spec
from tollgate.policy import POLICY_FILE, Policy, load_policy
from tollgate.repository.product_models import Product, read_product
from tollgate.repository.releases.release_file import (
    Release,
    read_release,
    release_path,
    spec_hash_text,
)
from tollgate.repository.versions import list_versions


class Served(msgspec.Struct, frozen=True):
    """
    The versions that a repository serves of a product.

    Attributes:
        product: The ensemble and its steps.
        versions: Version per step; a step without any is left out.
    """

    repository: Path
    product: Product
    versions: dict[str, int]

    def file(self, step: str, *, name: str) -> Path:
        """
        Return the path of a file of a step's served version.

        Raises:
            RepositoryError: The step has no version.
        """
        if step not in self.versions:
            raise RepositoryError(self.repository / step, f"no version has a {name}")
        return self.repository / step / str(self.versions[step]) / name


def read_served(repository: Path, product: str) -> Served:
    """
    Read the released version per step; without a release, the newest versions.

    Raises:
        RepositoryError: A configuration or the release cannot be read.
    """
    steps = read_product(repository, product)
    if release_path(repository, product).exists():
        versions = dict(read_release(repository, product=product).versions)
    else:
        newest = {
            step: max(list_versions(repository, step), default=0)
            for step in steps.steps
        }
        versions = {step: number for step, number in newest.items() if number}
    return Served(repository=repository, product=steps, versions=versions)


def served_spec(repository: Path, *, product: str) -> FeatureSpec:
    """Read the feature spec of a product's release."""
    step = read_product(repository, product).features_step
    version = read_release(repository, product=product).versions[step]
    return load_spec(repository / step / str(version) / SPEC_FILE)


def require_spec(served: Served, spec: FeatureSpec) -> None:
    """
    Check that features are served as a model was trained with them.

    Raises:
        RepositoryError: The served features.yaml has another hash.
        SpecError: It cannot be read.
    """
    path = served.file(served.product.features_step, name=SPEC_FILE)
    found = load_spec(path).spec_hash
    if found != spec.spec_hash:
        raise RepositoryError(
            path,
            f"is served with hash {found:016x}, the model was trained with "
            f"{spec.spec_hash:016x}; build the training features with this file",
            where="spec_hash",
        )


def load_policy_of(directory: Path, spec: FeatureSpec) -> Policy:
    """
    Read the policy of a version of the decision step, by the spec it is served with.

    Raises:
        PolicyError: It cannot be used.
    """
    return load_policy(
        directory / POLICY_FILE,
        feature_names=spec.feature_names,
        fields=spec.fields,
        id_names=spec.id_names,
        amount=spec.amount,
    )


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

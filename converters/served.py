"""Read what a new model must fit: the versions that the repository serves."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import msgspec

from converters.quality_record import HALVES, Levels
from tollgate.errors import RepositoryError
from tollgate.features.spec import SPEC_FILE, FeatureSpec, load_spec
from tollgate.policy.document import POLICY_FILE, SCORE, Level, load_policy
from tollgate.repository.product import Product, read_product
from tollgate.repository.release import read_release, release_path, spec_hash_text
from tollgate.repository.versions import list_versions


class Served(msgspec.Struct, frozen=True):
    """
    What the repository serves of a product.

    Attributes:
        repository: The model repository.
        product: The ensemble and its steps.
        versions: Version per step; a step without any is left out.
    """

    repository: Path
    product: Product
    versions: dict[str, int]

    def file(self, step: str, *, name: str) -> Path:
        """
        Name a file of a step's served version.

        Raises:
            RepositoryError: The step has no version.
        """
        if step not in self.versions:
            raise RepositoryError(self.repository / step, f"no version has a {name}")
        return self.repository / step / str(self.versions[step]) / name


def read_served(repository: Path, product: str) -> Served:
    """
    Read the released version per step; without a release, the newest there is.

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


class Purpose(msgspec.Struct, frozen=True, eq=False):
    """
    What a converted model is for, and has to fit.

    Attributes:
        thresholds: Scores at which a decision changes; 0.5 without a product.
        names: Of the features, in order; None without a product.
        spec_hash: Of the features, 16 hexadecimal digits; None without a product.
        config: Configuration of the model step, a ModelConfig; None without.
        levels: What its policy turns scores into, rules aside.
    """

    thresholds: tuple[float, ...] = (0.5,)
    names: tuple[str, ...] | None = None
    spec_hash: str | None = None
    config: Any = None
    levels: Levels = HALVES


def purpose_of(repository: Path, product: str) -> Purpose:
    """
    Read what a model must fit to be served in a product.

    Raises:
        RepositoryError: The repository does not fit together, or lacks a version.
        SpecError: The served features.yaml cannot be read.
        PolicyError: The served policy.yaml cannot be read.
    """
    served = read_served(repository, product)
    spec = load_spec(served.file(served.product.features_step, name=SPEC_FILE))
    path = served.file(served.product.decision_step, name=POLICY_FILE)
    policy = load_policy(path, feature_names=spec.feature_names)
    return Purpose(
        thresholds=decision_thresholds(served, spec),
        names=spec.feature_names,
        spec_hash=spec_hash_text(spec.spec_hash),
        config=served.product.steps[served.product.model_step],
        levels=Levels(
            names=get_args(Level), thresholds=(policy.review, policy.decline)
        ),
    )


def require_spec(served: Served, spec: FeatureSpec) -> None:
    """
    Demand that features are served as a model was trained with them.

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


def decision_thresholds(served: Served, spec: FeatureSpec) -> tuple[float, ...]:
    """
    List the scores at which the served policy decides otherwise, ascending.

    Raises:
        PolicyError: The policy cannot be read.
    """
    path = served.file(served.product.decision_step, name=POLICY_FILE)
    policy = load_policy(path, feature_names=spec.feature_names)
    conditions = (one for rule in policy.rules for one in rule.conditions)
    of_rules = {one.value for one in conditions if one.field == SCORE}
    return tuple(sorted({policy.review, policy.decline} | of_rules))

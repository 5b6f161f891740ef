"""State what a product requires of a converted model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from tritonclient.grpc.model_config_pb2 import DataType

from converters.card.quality_record import HALVES, Levels
from tollgate.features.spec.feature_spec import SPEC_FILE, FeatureSpec, load_spec
from tollgate.policy import POLICY_FILE
from tollgate.ranking.candidates import feature_names
from tollgate.ranking.catalogue import CATALOGUE_FILE, Catalogue
from tollgate.repository.models.features_version import load_spec_of
from tollgate.repository.releases.release_file import spec_hash_text
from tollgate.repository.releases.served_versions import load_policy_of, read_served


class Purpose(msgspec.Struct, frozen=True, eq=False):
    """
    Requirements of a product on a converted model.

    Attributes:
        thresholds: Scores at which a decision changes; 0.5 without a product.
        names: Names of the features, in order; None without a product.
        spec_hash: Hash of the features, 16 hexadecimal digits; None without a product.
        config: Configuration of the model step, a ModelConfig; None without.
        levels: Decisions that its policy derives from scores; segments and rules are
            left out.
        sensitive: Attributes that, by its policy, must not influence a decision.
        spec: Feature spec; None without a product.
        number: True if its policy reads a number; None without a product.
        ranks: True if the product ranks: the model scores candidates.
    """

    thresholds: tuple[float, ...] = (0.5,)
    names: tuple[str, ...] | None = None
    spec_hash: str | None = None
    config: Any = None
    levels: Levels = HALVES
    sensitive: tuple[str, ...] = ()
    spec: FeatureSpec | None = None
    number: bool | None = None
    ranks: bool = False

    @property
    def wide(self) -> bool:
        """Return whether the model step takes float64 features."""
        given = () if self.config is None else self.config.input
        return any(DataType.Name(one.data_type) == "TYPE_FP64" for one in given)


def purpose_of(
    repository: Path, product: str, *, new_spec: Path | None = None
) -> Purpose:
    """
    Read the requirements of a product on a model that it serves.

    Args:
        new_spec: A features.yaml that is not in the repository yet, to use instead of
            the served one.

    Raises:
        RepositoryError: The repository does not fit together, or lacks a version.
        SpecError: The served features.yaml cannot be read.
        PolicyError: The served policy.yaml cannot be read.
    """
    served = read_served(repository, product)
    if new_spec is None:
        spec = load_spec(served.file(served.product.features_step, name=SPEC_FILE))
    else:
        spec = load_spec_of(new_spec, product=product)
    step = served.product.decision_step
    policy = load_policy_of(served.file(step, name=POLICY_FILE).parent, spec)
    usual = policy.thresholds[0]
    cuts = (usual.review,) if usual.decline is None else (usual.review, usual.decline)
    names = spec.feature_names
    if served.product.ranks:
        file = served.file(served.product.features_step, name=CATALOGUE_FILE)
        names = feature_names(Catalogue.load(file.parent))
    return Purpose(
        thresholds=policy.score_cuts,
        names=names,
        spec_hash=spec_hash_text(spec.spec_hash),
        config=served.product.steps[served.product.model_step],
        levels=Levels(names=policy.outcomes.words[: len(cuts) + 1], thresholds=cuts),
        sensitive=policy.sensitive,
        spec=spec,
        number=policy.score.number,
        ranks=served.product.ranks,
    )

"""Read of a release what the door needs: its inputs, its words, and their meaning."""

from __future__ import annotations

from pathlib import Path

import msgspec

from tollgate.features.spec.feature_spec import all_fields, wire_inputs
from tollgate.features.spec.spec_definition import FeatureSpec
from tollgate.policy import Policy
from tollgate.ranking.catalogue import Catalogue
from tollgate.repository.product_models import read_product
from tollgate.repository.releases.release_file import read_release
from tollgate.repository.releases.served_versions import served_policy, served_spec
from tollgate.schema import (
    EXCLUDE,
    MAX_EXCLUDED,
    MAX_LIST_SIZE,
    REQUEST_ID,
    TRANSACTION_ID,
)
from tollgate_client import FallbackItems

# Items that answer for a server: the longest list, and as many as a request excludes.
_OWN_ITEMS = MAX_LIST_SIZE + MAX_EXCLUDED


class DoorRanking(msgspec.Struct, frozen=True):
    """
    What the door needs besides of a product that ranks.

    Attributes:
        items: Number of items of a request without `count`.
        own_lists: Popular items of the release, for when no server answers: those of
            everyone, and by the name of each segment.
        segment_field: Field of a request that names the segment; empty for none.
    """

    items: int
    own_lists: FallbackItems
    segment_field: str


class DoorProduct(msgspec.Struct, frozen=True):
    """
    A product as callers of the door see it.

    Attributes:
        name: Name of the ensemble.
        release: Active release.
        inputs: Inputs that every row has: name -> BYTES, FP64 or INT64.
        fields: Optional inputs: name -> BYTES or FP64.
        outcomes: Words of its decisions, the mildest first.
        reasons: Reason code -> sentence.
        ranking: Its items if it ranks; None if it decides.
    """

    name: str
    release: str
    inputs: dict[str, str]
    fields: dict[str, str]
    outcomes: tuple[str, ...]
    reasons: dict[str, str]
    ranking: DoorRanking | None = None

    @property
    def id_name(self) -> str:
        """Return the input with the id of a row."""
        return TRANSACTION_ID if self.ranking is None else REQUEST_ID

    @property
    def kinds(self) -> dict[str, str]:
        """Return all inputs, the optional ones last."""
        return {**self.inputs, **self.fields}


def read_door_product(repository: Path, *, product: str) -> DoorProduct:
    """
    Read a product's active release.

    Raises:
        RepositoryError: The release cannot be read, or does not fit the repository.
        InputError: Its features or its policy cannot be used.
    """
    release = read_release(repository, product=product)
    spec = served_spec(repository, product=product)
    policy = served_policy(repository, product=product)
    found = describe_product(release.name, spec, policy)
    if policy.ranking is None:
        return found
    step = read_product(repository, product).features_step
    version = repository / step / str(release.versions[step])
    return msgspec.structs.replace(
        found,
        inputs={
            REQUEST_ID if name == TRANSACTION_ID else name: kind
            for name, kind in found.inputs.items()
        },
        fields={**found.fields, EXCLUDE: "BYTES"},
        ranking=_ranking_of(Catalogue.load(version), items=policy.ranking.items),
    )


def describe_product(release: str, spec: FeatureSpec, policy: Policy) -> DoorProduct:
    """Describe a release that decides, by its features and its policy."""
    return DoorProduct(
        name=policy.product,
        release=release,
        inputs=wire_inputs(spec),
        fields=all_fields(spec),
        outcomes=policy.outcomes.words,
        reasons=dict(policy.reasons),
    )


def _ranking_of(catalogue: Catalogue, *, items: int) -> DoorRanking:
    everyone, *others = (
        tuple(
            catalogue.item_ids[at].decode()
            for at in popular[popular >= 0][:_OWN_ITEMS].tolist()
        )
        for popular in catalogue.popular
    )
    named = zip(catalogue.segments[1:], others, strict=True)
    return DoorRanking(
        items=items,
        own_lists=FallbackItems(everyone, {name: one for name, one in named if one}),
        segment_field=catalogue.segment_field,
    )

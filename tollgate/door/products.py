"""Read of a release what the door needs: its inputs, its words, and their meaning."""

from __future__ import annotations

from pathlib import Path

import msgspec

from tollgate.features.spec.feature_spec import all_fields, wire_inputs
from tollgate.repository.releases.release_file import read_release
from tollgate.repository.releases.served_versions import served_policy, served_spec


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
    """

    name: str
    release: str
    inputs: dict[str, str]
    fields: dict[str, str]
    outcomes: tuple[str, ...]
    reasons: dict[str, str]

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
    return DoorProduct(
        name=product,
        release=release.name,
        inputs=wire_inputs(spec),
        fields=all_fields(spec),
        outcomes=policy.outcomes.words,
        reasons=dict(policy.reasons),
    )

"""Route a share of the entities to the challenger's model inside the decision step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from tollgate.features.share import in_share
from tollgate.schema import (
    CANARY_PERCENT_PARAMETER,
    CANARY_SEED_PARAMETER,
    CHALLENGER_PARAMETER,
    TRANSACTION,
)


class Canary(msgspec.Struct, frozen=True):
    """
    Describe the share of entities for which the challenger's model decides.

    Attributes:
        release: Release name in these answers.
        percent: Share of the ids, 0 to 100.
        seed: Seed of the hash that assigns ids to the share.
        entity: Entity whose ids are hashed: the first of the spec, or the transaction
            if the spec has no entities.
    """

    release: str
    percent: float
    seed: int
    entity: str

    def rows(self, context: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        """Return which rows of a batch the challenger answers; bool [N]."""
        name = f"{self.entity}_id"
        lengths = context[f"{name}_length"].tolist()
        raw = context[name].tobytes()
        width = context[name].dtype.itemsize
        ids = [
            raw[row * width : row * width + length]
            for row, length in enumerate(lengths)
        ]
        return in_share(ids, percent=self.percent, seed=self.seed)


def read_canary(
    parameters: Mapping[str, str], entities: Sequence[str]
) -> Canary | None:
    """Read the challenger from the release's parameters; None when there is none."""
    release = parameters.get(CHALLENGER_PARAMETER, "")
    if not release:
        return None
    return Canary(
        release=release,
        percent=float(parameters[CANARY_PERCENT_PARAMETER]),
        seed=int(parameters[CANARY_SEED_PARAMETER]),
        entity=entities[0] if entities else TRANSACTION,
    )

"""A challenger that answers a share of the customers, inside the decision step."""

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
    Whose answers come from the challenger's model.

    Attributes:
        release: What these answers call their release.
        percent: Share of the ids, 0 to 100.
        seed: What decides who is in it.
        entity: Entity by whose ids it goes; the first of the spec, or where there is
            none the transaction.
    """

    release: str
    percent: float
    seed: int
    entity: str

    def rows(self, context: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        """Tell which rows of a batch are the challenger's; bool [N]."""
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
    """Read what the release says of a challenger; None when there is none."""
    release = parameters.get(CHALLENGER_PARAMETER, "")
    if not release:
        return None
    return Canary(
        release=release,
        percent=float(parameters[CANARY_PERCENT_PARAMETER]),
        seed=int(parameters[CANARY_SEED_PARAMETER]),
        entity=entities[0] if entities else TRANSACTION,
    )

"""Whose answers a canary gives: by the first entity, or else by the transaction."""

from __future__ import annotations

import numpy as np
import pytest

from tollgate.engine.decision_stage import in_share, read_canary
from tollgate.schema import (
    CANARY_PERCENT_PARAMETER,
    CANARY_SEED_PARAMETER,
    CHALLENGER_PARAMETER,
    MAX_ID_BYTES,
    context_dtype,
)

TOLD = {
    CHALLENGER_PARAMETER: "loans-2",
    CANARY_PERCENT_PARAMETER: "30.0",
    CANARY_SEED_PARAMETER: "7",
}
ROWS = 200


@pytest.mark.parametrize(
    ("entities", "owner"), [((), "transaction"), (("author", "forum"), "author")]
)
def test_the_share_goes_by_whose_the_row_is(
    entities: tuple[str, ...], owner: str
) -> None:
    """Ids of the others, and empty bytes behind an id, do not matter."""
    context = np.zeros(ROWS, context_dtype(entities))
    columns = {
        name: [f"{name}-{row % 37}".encode() for row in range(ROWS)]
        for name in ("transaction", *entities)
    }
    for name, ids in columns.items():
        context[f"{name}_id_length"] = list(map(len, ids))
        packed = np.array(ids, f"S{MAX_ID_BYTES}")
        context[f"{name}_id"] = packed.view(f"V{MAX_ID_BYTES}")
    canary = read_canary(TOLD, entities)
    assert canary is not None
    expected = in_share(columns[owner], percent=30.0, seed=7)
    assert 0 < expected.sum() < ROWS
    assert canary.rows(context).tolist() == expected.tolist()

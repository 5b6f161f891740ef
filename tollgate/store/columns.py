"""Build the columns that an entry holds beyond the amount: fields and entity ids."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tollgate.features.entries import COLUMN_BYTES, ENTRY, MISSING
from tollgate.features.fields import Fields, field_values, hash_words
from tollgate.features.spec import FeatureSpec

I64 = npt.NDArray[np.int64]


def entity_columns(
    spec: FeatureSpec, entity_id: Sequence[Sequence[bytes]], *, fields: Fields
) -> list[I64]:
    """
    Build, per entity of the spec, the columns that its features need.

    Args:
        spec: Names the columns of each entity.
        entity_id: Per entity its ids, of N purchases.
        fields: Declared fields that were sent; int64 [N] each.

    Returns:
        Per entity int64 [N, K], in the order of its `columns`; ids as their hash.
    """
    rows = len(entity_id[0])
    keys = {entity.key: at for at, entity in enumerate(spec.entities)}
    made: dict[str, I64] = {}
    for name in {name for entity in spec.entities for name in entity.columns}:
        if name in keys:
            made[name] = hash_words(entity_id[keys[name]])
        else:
            made[name] = field_values(fields, name, rows)
    return [
        np.stack([made[name] for name in entity.columns], axis=1)
        if entity.columns
        else np.empty((rows, 0), np.int64)
        for entity in spec.entities
    ]


def widened(
    entries: npt.NDArray[np.void], columns: I64 | None, *, width: int
) -> npt.NDArray[np.void]:
    """
    Append columns to entries.

    Args:
        entries: ENTRY [N].
        columns: int64 [N, K]; None for events without values.
        width: K.

    Returns:
        Raw entries of 48 + 8 · K bytes [N].
    """
    if not width:
        return entries
    words = ENTRY.itemsize // COLUMN_BYTES
    whole = np.full((len(entries), words + width), MISSING)
    whole[:, :words] = entries.view("<i8").reshape(-1, words)
    if columns is not None:
        whole[:, words:] = columns
    return whole.view(f"V{whole.shape[1] * COLUMN_BYTES}")[:, 0]

"""Give columns names that are valid for inputs, features and policies."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tollgate import schema
from tollgate.features.document import LABEL, LABEL_TIME
from tollgate.schema import AMOUNT, EVENT_TIME, TRANSACTION_ID

_MOST = 60  # of 64: leaves room for a number at the end
_OWN_FIELD = "_field"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")

# Columns of every product: no column of a file may have these names.
OWN_COLUMNS = (TRANSACTION_ID, AMOUNT, EVENT_TIME, LABEL, LABEL_TIME)
# Tensors of the ensemble, and words with a special meaning in conditions.
_TAKEN = {
    *OWN_COLUMNS,
    *schema.ANSWER_TYPES,
    *(bit.name for bit in schema.Degraded),
    schema.FEATURES,
    schema.CONTEXT,
    schema.PROBABILITIES,
    schema.CHALLENGER_PROBABILITIES,
    "transaction",
    "other",
}


class Namer:
    """Generates names, each only once."""

    def __init__(self) -> None:
        self._given = {str(name) for name in _TAKEN}

    def names(self, columns: Sequence[str]) -> dict[str, str]:
        """Name columns; those that can keep their names come first."""
        found = {}
        for column in sorted(columns, key=lambda one: not self._can_stay(one)):
            found[column] = self.name(column)
        return found

    def _can_stay(self, column: str) -> bool:
        return bool(_NAME.fullmatch(column)) and column not in self._given

    def name(self, column: str) -> str:
        """Name a column after its name in the table, if that is valid."""
        plain = re.sub(r"[^A-Za-z0-9]+", "_", column).strip("_")[:_MOST]
        if _NAME.fullmatch(column):
            plain = column
        if not plain or plain[0].isdigit():
            plain = f"c_{plain}"[:_MOST]
        if plain in _TAKEN:
            plain = f"{plain}{_OWN_FIELD}"
        found, number = plain, 1
        while found in self._given:
            number += 1
            found = f"{plain[:_MOST]}_{number}"
        self._given.add(found)
        return found


def entity_name(key: str) -> str:
    """Name an entity after the input with its ids: customer_id -> customer."""
    plain = re.sub(r"(?i)_?id$", "", key).strip("_").lower()
    return plain if plain and plain != "transaction" else f"{key.lower()}_entity"

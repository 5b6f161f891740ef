"""Give columns names that are valid for inputs, features and policies."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence

from tollgate import schema
from tollgate.features.spec.spec_document import LABEL, LABEL_TIME
from tollgate.schema import AMOUNT, EVENT_TIME, TRANSACTION_ID

_MAX_LENGTH = 60  # of 64: leaves room for a number at the end
_OWN_FIELD = "_field"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")

# Columns of every product: no column of a file may have these names.
OWN_COLUMNS = (TRANSACTION_ID, AMOUNT, EVENT_TIME, LABEL, LABEL_TIME)
# Tensors of the ensemble, and words with a special meaning in conditions.
_RESERVED = {
    *OWN_COLUMNS,
    *schema.ANSWER_TYPES,
    *(bit.name for bit in schema.Degraded),
    schema.FEATURES,
    schema.CONTEXT,
    schema.PROBABILITIES,
    schema.CHALLENGER_PROBABILITIES,
    "transaction",
    "other",
    # Features of a product with times.
    "at_weekend",
    "at_night",
}


def reserved_reason(name: str) -> str | None:
    """Say why no column of a table can keep such a name, if it has another meaning."""
    if name not in OWN_COLUMNS or name == AMOUNT:
        return None
    return "has a name that Tollgate uses itself: rename it in the table"


class Namer:
    """
    Generate names, each only once.

    Args:
        reserved: Names that no column may have, in addition to our own.
        longest: Longest name, without a number at its end.
        derived: Returns the other names that the name of a column leads to; they are
            not used twice, either.
    """

    def __init__(
        self,
        *,
        reserved: Collection[str] = (),
        longest: int = _MAX_LENGTH,
        derived: Callable[[str], Collection[str]] = lambda _: (),
    ) -> None:
        self._reserved = {*(str(name) for name in _RESERVED), *reserved}
        self._longest = longest
        self._derived = derived
        self._used = set(self._reserved)

    def names(self, columns: Sequence[str]) -> dict[str, str]:
        """Name columns; those that can keep their names come first."""
        found = {}
        for column in sorted(columns, key=lambda one: not self._is_free(one)):
            found[column] = self.name(column)
        return found

    def _is_free(self, column: str) -> bool:
        return self._is_valid(column) and not self._is_used(column)

    def _is_valid(self, column: str) -> bool:
        fits = len(column) <= self._longest or self._longest == _MAX_LENGTH
        return fits and bool(_NAME.fullmatch(column))

    def _is_used(self, name: str) -> bool:
        return not self._used.isdisjoint((name, *self._derived(name)))

    def name(self, column: str) -> str:
        """Name a column after its name in the table, if that is valid."""
        plain = re.sub(r"[^A-Za-z0-9]+", "_", column).strip("_")[: self._longest]
        if self._is_valid(column):
            plain = column
        if not plain or plain[0].isdigit():
            plain = f"c_{plain}"[: self._longest]
        if plain in self._reserved:
            plain = f"{plain}{_OWN_FIELD}"
        found, number = plain, 1
        while self._is_used(found):
            number += 1
            found = f"{plain[: self._longest]}_{number}"
        self._used.update((found, *self._derived(found)))
        return found


def entity_name(key: str) -> str:
    """Name an entity after the input with its ids: customer_id -> customer."""
    plain = re.sub(r"(?i)_?id$", "", key).strip("_").lower()
    return plain if plain and plain != "transaction" else f"{key.lower()}_entity"


def distinct_entity_names(keys: Sequence[str]) -> list[str]:
    """Name entities after their inputs, with a number where two would be alike."""
    found: list[str] = []
    for key in keys:
        plain = entity_name(key)
        number, name = 1, plain
        while name in found:
            number += 1
            name = f"{plain}_{number}"
        found.append(name)
    return found

"""Find the rows that lack a required feature, or have one that is too old."""

from __future__ import annotations

from collections.abc import Set

import numpy as np
import numpy.typing as npt

from tollgate.features.feature_tables import TableColumns
from tollgate.features.fields import Fields, field_values
from tollgate.features.spec.feature_spec import FeatureSpec
from tollgate.features.windows.entity_entries import MISSING
from tollgate.schema import AMOUNT, Degraded
from tollgate.store.lookups import LABELS, PURCHASES

I64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]
U32 = npt.NDArray[np.uint32]

_BIT = np.uint32(Degraded.ESSENTIAL_MISSING)
_NO_LIMIT_US = np.iinfo(np.int64).max
_OF_LABELS = ("flagged", "share")


class Essentials:
    """
    Find essential features of a spec that are missing or too old, by entity.

    Attributes:
        needs: 1 if feature f needs entity e, directly or through its inputs, else 0;
            int64 [entities, F].
    """

    def __init__(self, spec: FeatureSpec) -> None:
        self.needs = _needs(spec)
        essential = np.array([one.essential for one in spec.features])
        max_age_us = np.array([one.max_age_us for one in spec.features], np.int64)
        needed = (self.needs * essential).astype(np.bool_)
        self._any: Bool = needed.any(axis=1)
        limit_us = np.where(needed & (max_age_us > 0), max_age_us, _NO_LIMIT_US)
        self._most_us = limit_us.min(axis=1)
        chosen = essential.nonzero()[0].tolist()
        self._feeds = {feed for at in chosen for feed in _feeds_of(spec, at)}
        self._fields = sorted(
            {name for at in chosen for name in _fields_of(spec, at)} - {AMOUNT}
        )
        self._table_columns = sorted(
            {name for at in chosen for name in _table_columns_needed(spec, at)}
        )

    def missing_fields(self, fields: Fields, count: int) -> U32:
        """
        Mark the rows that were sent without an essential field.

        Args:
            fields: Fields that were sent.
            count: Number of rows.

        Returns:
            Degraded bits; uint32 [N].
        """
        lacking = np.zeros(count, np.bool_)
        for name in self._fields:
            lacking |= field_values(fields, name, count) == MISSING
        bits: U32 = lacking * _BIT
        return bits

    def missing_table_numbers(self, tables: TableColumns, count: int) -> U32:
        """
        Mark the rows that lack an essential number of a table.

        Args:
            tables: Numbers of the tables for the rows.
            count: Number of rows.

        Returns:
            Degraded bits; uint32 [N].
        """
        lacking = np.zeros(count, np.bool_)
        for name in self._table_columns:
            lacking |= np.isnan(tables[name])
        bits: U32 = lacking * _BIT
        return bits

    def missing_entities(self, missing: Bool) -> U32:
        """
        Mark the rows that lack an essential feature because an entity is unknown.

        Args:
            missing: bool [entities, N].

        Returns:
            Degraded bits; uint32 [N].
        """
        lacking: U32 = (missing & self._any[:, None]).any(axis=0) * _BIT
        return lacking

    def too_old(self, age_us: I64) -> U32:
        """
        Mark the rows whose last known values are too old for an essential feature.

        Args:
            age_us: int64 [entities, N].

        Returns:
            Degraded bits; uint32 [N].
        """
        old: U32 = (age_us > self._most_us[:, None]).any(axis=0) * _BIT
        return old

    def stale_feeds(self, stale: Set[str]) -> np.uint32:
        """
        Return the degraded bit if an essential feature depends on a stale feed.

        Args:
            stale: Feeds that are older than the spec declares.

        Returns:
            A degraded bit, or 0: it holds for every row.
        """
        return _BIT if self._feeds & stale else np.uint32(0)


def _needs(spec: FeatureSpec) -> I64:
    needs = np.zeros((len(spec.entities), len(spec.features)), np.int64)
    for column, one in enumerate(spec.features):
        if one.aggregate is not None:
            needs[one.entity, column] = 1
        for at in one.inputs or ():  # all precede this column
            needs[:, column] |= needs[:, at]
    return needs


def _feeds_of(spec: FeatureSpec, column: int) -> set[str]:
    one = spec.features[column]
    if one.aggregate is not None:
        return {PURCHASES, LABELS} if one.aggregate in _OF_LABELS else {PURCHASES}
    return {feed for at in one.inputs or () for feed in _feeds_of(spec, at)}


def _fields_of(spec: FeatureSpec, column: int) -> set[str]:
    one = spec.features[column]
    own = {name for name in (one.field, one.category) if name is not None}
    if one.hook is not None and spec.hook is not None:
        own |= set(spec.hook.request) & set(spec.field_names)
    return own.union(*(_fields_of(spec, at) for at in one.inputs or ()))


def _table_columns_needed(spec: FeatureSpec, column: int) -> set[tuple[str, str]]:
    one = spec.features[column]
    own = {(one.table, str(one.column))} if one.table is not None else set()
    return own.union(*(_table_columns_needed(spec, at) for at in one.inputs or ()))

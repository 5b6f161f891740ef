"""
List what features need from an entity's windows beyond counts, amounts and frauds.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from tollgate.features.definition import Feature, FeatureSpec
from tollgate.schema import AMOUNT

# `known` counts the purchases that have the number at all.
Kind = Literal["sum", "known", "min", "max", "last", "distinct", "time_since_last"]


class Demand(NamedTuple):
    """One number of one window: its kind, its source, and the index of the window."""

    kind: Kind
    of: str
    window: int


def demands_of(feature: Feature) -> tuple[Demand, ...]:
    """Return the demands of a feature; empty if the common sums are enough."""
    kind, of = feature.aggregate, feature.of or AMOUNT
    if kind in ("sum", "mean") and feature.of is not None:
        total = Demand("sum", of, feature.window)
        if kind == "sum":
            return (total,)
        return (total, Demand("known", of, feature.window))
    if kind in ("min", "max", "last", "distinct", "time_since_last"):
        return (Demand(kind, of, feature.window),)
    return ()


def entity_demands(spec: FeatureSpec) -> tuple[tuple[Demand, ...], ...]:
    """Collect the demands per entity, each once, in a fixed order."""
    found: list[set[Demand]] = [set() for _ in spec.entities]
    for feature in spec.features:
        for demand in demands_of(feature):
            found[feature.entity].add(demand)
    return tuple(tuple(sorted(demands)) for demands in found)

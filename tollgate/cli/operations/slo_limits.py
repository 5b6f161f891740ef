"""Choose the limits of a slo.yaml to judge by: its promise (SLA) or its aim (SLO)."""

from __future__ import annotations

import msgspec

from tollgate.errors import InputError
from tollgate.repository.slo import Layers, Slo


class Promise(msgspec.Struct, frozen=True):
    """Limits to judge by: the promise (SLA) of a slo.yaml, or its aim (SLO)."""

    layers_ms: Layers
    within_ms: float
    percent: float


def promise_of(slo: Slo, *, target: bool, room: float) -> Promise:
    """
    Read the limits to judge by from a slo.yaml.

    Args:
        slo: The product's slo.yaml.
        target: True to take its aim (`target_ms`) instead of its promise.
        room: Factor that every limit is multiplied by.

    Raises:
        InputError: The slo.yaml has no aim.
    """
    if not target:
        layers, within_ms = slo.layers_ms, slo.latency_objective_ms
    elif slo.target_ms is not None:
        layers, within_ms = slo.target_ms, slo.latency_target_ms
    else:
        raise InputError("--target", "the product's slo.yaml has no target_ms")
    return Promise(layers.scaled(room), within_ms * room, slo.objective_percent)

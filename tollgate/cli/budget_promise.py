"""What a product is judged by: the limits of its slo.yaml."""

from __future__ import annotations

import msgspec

from tollgate.errors import InputError
from tollgate.repository.slo import Layers, Slo


class Promise(msgspec.Struct, frozen=True):
    """What is judged by: the promise of a slo.yaml, or its aim."""

    layers_ms: Layers
    within_ms: float
    percent: float


def promise_of(slo: Slo, *, target: bool, room: float) -> Promise:
    """
    Take what is judged by from a slo.yaml.

    Args:
        slo: The product's.
        target: Its aim, not what it promises.
        room: What every limit is multiplied by.

    Raises:
        InputError: It has no aim.
    """
    if not target:
        layers, within_ms = slo.layers_ms, slo.latency_objective_ms
    elif slo.target_ms is not None:
        layers, within_ms = slo.target_ms, slo.latency_target_ms
    else:
        raise InputError("--target", "the product's slo.yaml has no target_ms")
    return Promise(layers.scaled(room), within_ms * room, slo.objective_percent)

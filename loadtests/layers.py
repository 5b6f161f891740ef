"""
The time of an answer, cut into the layers of a product's budget.

Triton's traces say when each step had a request in its queue and when it was done; the
sender says when it was sent and answered. All on one machine's monotonic clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from loadtests.open_loop import F64, Sent
from tollgate.errors import ServerError
from tollgate.repository.product import Product
from tollgate.repository.slo import Layers
from tollgate.server.traces import Span, Traced

MEASURED = tuple(name for name in Layers.__struct_fields__ if name != "reserve")
_QUEUED, _ENDED = "QUEUE_START", "COMPUTE_END"


class Split(msgspec.Struct, frozen=True, eq=False):
    """
    Where the time of M traced requests went.

    Attributes:
        layers_ms: Layer -> float64 [M]; of each request they add up to the time from
            its being sent to its answer.
        in_server_ms: From the queue of the feature step to the end of the decision
            step, as docs/contract.md has it; float64 [M].
    """

    layers_ms: Mapping[str, F64]
    in_server_ms: F64


class Judged(msgspec.Struct, frozen=True):
    """
    One layer against its budget.

    Attributes:
        layer: Its name.
        p50_ms: What half of the requests stay under.
        p99_ms: What 99 of 100 do.
        limit_ms: What the 99th percentile may be.
    """

    layer: str
    p50_ms: float
    p99_ms: float
    limit_ms: float

    @property
    def broken(self) -> bool:
        """Whether it takes longer than it may."""
        return self.p99_ms > self.limit_ms


def split(traced: Sequence[Traced], sent: Sent, *, models: Product) -> Split:
    """
    Cut requests into layers.

    Args:
        traced: Their traces; their ids are their numbers among those sent.
        sent: When they were sent and answered.
        models: The product, whose steps they went through.

    Raises:
        ServerError: Not one of them was traced and answered.
    """
    answered_s = sent.due_s + sent.latency_s
    edges: list[tuple[float, ...]] = []
    for one in traced:
        number = int(one.request_id) if one.request_id.isdigit() else -1
        if not 0 <= number < len(sent.due_s) or not sent.answered[number]:
            continue
        inside = _inside(one, models)
        if inside is not None:
            edges.append((sent.sent_s[number], *inside, answered_s[number]))
    if not edges:
        raise ServerError(models.name, "no request was traced and answered")
    at_s = np.array(edges)
    spent_ms = np.diff(at_s, axis=1) * 1e3
    return Split(
        layers_ms=dict(zip(MEASURED, spent_ms.T, strict=True)),
        in_server_ms=(at_s[:, -2] - at_s[:, 1]) * 1e3,
    )


def _inside(one: Traced, models: Product) -> tuple[float, ...] | None:
    """Tell when each layer inside the server ended, s; None when one is not told."""
    features, model, decision = (
        one.steps.get(step, Span(step, {})).at_ns
        for step in (models.features_step, models.model_step, models.decision_step)
    )
    at_ns = [features.get(_QUEUED), model.get(_QUEUED), decision.get(_QUEUED)]
    told = [ns for ns in (*at_ns, decision.get(_ENDED)) if ns is not None]
    return tuple(ns / 1e9 for ns in told) if len(told) == len(MEASURED) - 1 else None


def judge(found: Split, budget: Layers) -> list[Judged]:
    """Hold each layer against its budget, in the order of the way of a request."""
    judged = []
    for layer, spent_ms in found.layers_ms.items():
        p50_ms, p99_ms = np.percentile(spent_ms, [50, 99]).tolist()
        judged.append(Judged(layer, p50_ms, p99_ms, getattr(budget, layer)))
    return judged

"""
The time of an answer, cut into the layers of a product's budget.

The steps say when they took the batch of a request and when they were done; the sender
says when it was sent and answered. All on one machine's monotonic clock. How long one
request was in a queue nobody says: of that, Triton's statistics give the mean.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np
import numpy.typing as npt

from loadtests.open_loop import F64, Sent
from loadtests.step_counts import Counts
from loadtests.watching import I64, Batches
from tollgate.errors import ServerError
from tollgate.repository.slo import Layers

MEASURED = tuple(name for name in Layers.__struct_fields__ if name != "reserve")
# Of one request, only that and the queue together are known.
MEAN_ONLY = ("request",)
_FEATURES, _DECISION = 0, 2  # places of steps


class Queues(msgspec.Struct, frozen=True):
    """What requests waited on average while they were sent, by Triton; ms."""

    features_ms: float
    decision_ms: float


class Split(msgspec.Struct, frozen=True, eq=False):
    """
    Where the time of M requests went.

    Attributes:
        layers_ms: Layer -> float64 [M], none below 0; of each request they add up to
            the time from its being sent to its answer, and their means are exact.
            `request` is the mean for all but those whose whole way was shorter. What
            lies between features and decision is split as its means are.
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
        mean_ms: Of all requests.
        p50_ms: What half of the requests stay under; None where only the mean is known.
        p99_ms: What 99 of 100 do; likewise.
        limit_ms: What the 99th percentile, or the mean, may be.
    """

    layer: str
    mean_ms: float
    p50_ms: float | None
    p99_ms: float | None
    limit_ms: float

    @property
    def judged_ms(self) -> float:
        """What is held against the limit."""
        return self.mean_ms if self.p99_ms is None else self.p99_ms

    @property
    def broken(self) -> bool:
        """Whether it takes longer than it may."""
        return self.judged_ms > self.limit_ms


def queues_of(features: Counts, decision: Counts) -> Queues:
    """Take the means out of what Triton counted."""
    return Queues(features_ms=features.queue_ms, decision_ms=decision.queue_ms)


def split(batches: Batches, sent: Sent, *, queues: Queues, first: int = 0) -> Split:
    """
    Cut requests into layers.

    Args:
        batches: What was told of features, model and decision; the names of requests
            are their numbers among those sent.
        sent: When they were sent and answered.
        queues: What Triton counted while all of them were sent.
        first: The first request that counts; those before it warm up.

    Raises:
        ServerError: Not one of them was told and answered.
    """
    arrival_s, scored_s = _times(batches, _FEATURES, len(sent.due_s))
    began_s, ended_s = _times(batches, _DECISION, len(sent.due_s))
    answered_s = sent.due_s + sent.latency_s
    # A request of somebody else may have the name of ours, but not its times. NaN, of
    # what was not told exactly once, is in no order.
    whole = sent.answered & (sent.sent_s <= arrival_s) & (ended_s <= answered_s)
    way_ms = (arrival_s - sent.sent_s) * 1e3
    if not whole[first:].any():
        raise ServerError("tollgate", "no request was both told of and answered")
    request_ms = np.minimum(way_ms, _level(way_ms[whole], queues.features_ms))
    between_ms = (began_s - scored_s) * 1e3
    share = min(1.0, queues.decision_ms / max(1e-9, float(between_ms[whole].mean())))
    spent_ms = {
        "request": request_ms,
        "features": (scored_s - sent.sent_s) * 1e3 - request_ms,
        "model": between_ms * (1 - share),
        "post_processing": between_ms * share + (ended_s - began_s) * 1e3,
        "response": (answered_s - ended_s) * 1e3,
    }
    whole[:first] = False
    return Split(
        layers_ms={name: spent_ms[name][whole] for name in MEASURED},
        in_server_ms=((ended_s - sent.sent_s) * 1e3 - request_ms)[whole],
    )


def _level(way_ms: F64, queue_ms: float) -> float:
    """
    Tell what of its way each request spends before the queue, if all spend the same.

    Those whose whole way is shorter spend that. So what is left of all ways is the
    queue's mean, and no request waited less than nothing.
    """
    ordered = np.sort(way_ms)
    count = len(ordered)
    left_ms = max(0.0, float(ordered.sum()) - queue_ms * count)
    below = np.append(0.0, np.cumsum(ordered)[:-1])
    levels = (left_ms - below) / np.arange(count, 0, -1)
    return float(levels[np.argmax(levels <= ordered)])


def _times(batches: Batches, place: int, count: int) -> tuple[F64, F64]:
    """
    Tell when a step took each request and when it was done, s; float64 [count] each.

    NaN where that was not told, or several times: a caller who asked again.
    """
    of_step = batches.step[batches.batch] == place
    ours = of_step & (batches.request < count)
    request, batch = batches.request[ours], batches.batch[ours]
    once = np.bincount(request, minlength=count) == 1
    return (
        _spread(batches.start_us[batch], request, once),
        _spread(batches.end_us[batch], request, once),
    )


def _spread(us: I64, request: I64, once: npt.NDArray[np.bool_]) -> F64:
    at_s = np.full(len(once), np.nan)
    at_s[request] = us / 1e6
    at_s[~once] = np.nan
    return at_s


def judge(found: Split, budget: Layers) -> list[Judged]:
    """Hold each layer against its budget, in the order of the way of a request."""
    judged = []
    for layer, spent_ms in found.layers_ms.items():
        p50_ms, p99_ms = np.percentile(spent_ms, [50, 99]).tolist()
        known = layer not in MEAN_ONLY
        judged.append(
            Judged(
                layer,
                mean_ms=float(spent_ms.mean()),
                p50_ms=p50_ms if known else None,
                p99_ms=p99_ms if known else None,
                limit_ms=getattr(budget, layer),
            )
        )
    return judged

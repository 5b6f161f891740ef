"""
Split the latency of a request into layers, and judge each by a product's budget.

The steps report when they took the batch of a request and when they finished it; the
sender reports when it sent the request and got the answer. All use the monotonic clock
of one machine. Nothing reports the queue time of a single request: Triton's statistics
give its mean.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np
import numpy.typing as npt

from tollgate.errors import ServerError
from tollgate.latency_budget.step_batches import I64, Batches
from tollgate.latency_budget.step_counts import Counts
from tollgate.load.arrivals import F64
from tollgate.load.results import Results
from tollgate.repository.slo import Layers

# In the order of a request; only a product that ranks has `candidates`.
MEASURED = (
    *("request", "features", "candidates", "model", "post_processing", "response"),
)
# For one request, only its sum with the queue time is known.
MEAN_ONLY = ("request",)
_FEATURES, _DECISION, _CANDIDATES = 0, 2, 3  # indices of steps


class Queues(msgspec.Struct, frozen=True):
    """Mean queue times of the requests in the two steps, by Triton's count; ms."""

    features_ms: float
    decision_ms: float


class Split(msgspec.Struct, frozen=True, eq=False):
    """
    Layers of the time of M requests.

    Attributes:
        layers_ms: Layer -> float64 [M], none below 0; for each request they add up to
            the time from its sending to its answer, and their means are exact.
            `request` is the mean for all requests except those whose time before the
            feature step was shorter. The time between features and decision is split in
            proportion to its means.
        in_server_ms: Time from the queue of the feature step to the end of the decision
            step, as docs/contract.md has it; float64 [M].
    """

    layers_ms: Mapping[str, F64]
    in_server_ms: F64


class Judged(msgspec.Struct, frozen=True):
    """
    Comparison of one layer with its budget.

    Attributes:
        mean_ms: Mean of all requests.
        p50_ms: Median of the requests; None where only the mean is known.
        p99_ms: 99th percentile of the requests; None where only the mean is known.
        limit_ms: Limit of the 99th percentile, or of the mean.
    """

    layer: str
    mean_ms: float
    p50_ms: float | None
    p99_ms: float | None
    limit_ms: float

    @property
    def judged_ms(self) -> float:
        """Return the figure that is compared with the limit."""
        return self.mean_ms if self.p99_ms is None else self.p99_ms

    @property
    def broken(self) -> bool:
        """Return whether it exceeds the limit."""
        return self.judged_ms > self.limit_ms


def queues_of(features: Counts, decision: Counts) -> Queues:
    """Compute the mean queue times from Triton's counts."""
    return Queues(features_ms=features.queue_ms, decision_ms=decision.queue_ms)


def split(
    batches: Batches,
    sent: Results,
    *,
    counted: npt.NDArray[np.bool_],
    queues: Queues,
    first: int = 0,
) -> Split:
    """
    Split requests into layers.

    Args:
        batches: Reported batches of features, model and decision, and of a product
            that ranks the search for candidates; the ids of requests are their numbers
            among those sent.
        sent: Times at which they were sent and answered.
        counted: True for each request whose answer counts; bool [N].
        queues: Mean queue times while all of them were sent.
        first: The first request that counts; those before it warm up.

    Raises:
        ServerError: No request was both reported and answered.
    """
    arrival_s, scored_s = _times(batches, _FEATURES, len(sent.due_s))
    began_s, ended_s = _times(batches, _DECISION, len(sent.due_s))
    sent_s, answered_s = sent.sent_s, sent.due_s + sent.latency_s
    # A request of another caller may have the id of ours, but not its times. NaN, of
    # requests that were not reported exactly once, makes every comparison false.
    whole = counted & (sent_s <= arrival_s) & (ended_s <= answered_s)
    looked_up_s = scored_s
    if len(batches.steps) > _CANDIDATES:
        looked_up_s, _ = _times(batches, _CANDIDATES, len(sent.due_s))
        whole &= (arrival_s <= looked_up_s) & (looked_up_s <= scored_s)
    way_ms = (arrival_s - sent_s) * 1e3
    if not whole[first:].any():
        raise ServerError("tollgate", "no answered request has a batch of every step")
    request_ms = np.minimum(way_ms, _level(way_ms[whole], queues.features_ms))
    between_ms = (began_s - scored_s) * 1e3
    share = min(1.0, queues.decision_ms / max(1e-9, float(between_ms[whole].mean())))
    spent_ms = {
        "request": request_ms,
        "features": (looked_up_s - sent_s) * 1e3 - request_ms,
        "model": between_ms * (1 - share),
        "post_processing": between_ms * share + (ended_s - began_s) * 1e3,
        "response": (answered_s - ended_s) * 1e3,
    }
    if len(batches.steps) > _CANDIDATES:
        spent_ms["candidates"] = (scored_s - looked_up_s) * 1e3
    whole[:first] = False
    return Split(
        layers_ms={
            name: spent_ms[name][whole] for name in MEASURED if name in spent_ms
        },
        in_server_ms=((ended_s - sent_s) * 1e3 - request_ms)[whole],
    )


def _level(way_ms: F64, queue_ms: float) -> float:
    """
    Compute the time before the queue, assumed equal for all requests.

    A request that the step took sooner than that spent all of its time there. So the
    mean of the remaining times is the mean queue time, and none of them is negative.
    """
    ordered = np.sort(way_ms)
    count = len(ordered)
    left_ms = max(0.0, float(ordered.sum()) - queue_ms * count)
    below = np.append(0.0, np.cumsum(ordered)[:-1])
    levels = (left_ms - below) / np.arange(count, 0, -1)
    return float(levels[np.argmax(levels <= ordered)])


def _times(batches: Batches, place: int, count: int) -> tuple[F64, F64]:
    """
    Return when a step took each request and when it was done, s; float64 [count] each.

    NaN where that was not reported, or several times: a caller who retried.
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
    """Compare each layer with its budget, in the order of a request."""
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

"""
Read Triton's counts of a product's models: requests, batches, queue and compute time.

These are sums over the requests of all callers, so they give means and no percentiles.
Triton counts them in any case; to read them disturbs no request.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from tollgate.latency_budget.step_batches import Batches
from tollgate.server.triton.control import Reachable, connected, steps_by_public_name

_TIMEOUT_S = 5.0
_WORK = ("compute_input", "compute_infer", "compute_output")


class Counts(msgspec.Struct, frozen=True):
    """
    Counts of one model, all its versions together, since its server started.

    Attributes:
        requests: Requests that it answered.
        batches: Number of calls of the model.
        whole_ns: Time from the arrival of requests until their answers, summed over
            them, ns.
        queue_ns: The part of it spent in the queue, ns.
        work_ns: The part of it in which the batches of the requests were computed, ns.
    """

    requests: int = 0
    rows: int = 0
    batches: int = 0
    whole_ns: int = 0
    queue_ns: int = 0
    work_ns: int = 0

    @property
    def whole_ms(self) -> float:
        """Return the mean time of a request, ms; 0 without any."""
        return self.whole_ns / 1e6 / max(1, self.requests)

    @property
    def queue_ms(self) -> float:
        """Return the mean queue time of a request, ms; 0 without any."""
        return self.queue_ns / 1e6 / max(1, self.requests)

    @property
    def work_ms(self) -> float:
        """Return the mean compute time of a request, ms; 0 without any."""
        return self.work_ns / 1e6 / max(1, self.requests)

    @property
    def rows_per_batch(self) -> float:
        """Return the mean rows of a batch; 0 without any."""
        return self.rows / max(1, self.batches)

    def since(self, before: Counts) -> Counts:
        """Return the counts since an earlier reading."""
        pairs = zip(
            msgspec.structs.astuple(self), msgspec.structs.astuple(before), strict=True
        )
        return Counts(*(now - then for now, then in pairs))


def counts_of(server: Reachable, models: Sequence[str]) -> Mapping[str, Counts]:
    """
    Read the counts of a server.

    Raises:
        ServerError: It does not answer.
    """
    with connected(server) as client:
        answer = client.get_inference_statistics(
            headers=server.admin_headers, as_json=True, client_timeout=_TIMEOUT_S
        )
    return counts_of_answer({"model_stats": steps_by_public_name(answer)}, models)


def counts_of_answer(
    answer: Mapping[str, Any], models: Sequence[str]
) -> Mapping[str, Counts]:
    """Parse the counts in Triton's answer, gRPC's JSON."""
    return {name: _sum(answer.get("model_stats", []), name) for name in models}


def counts_in_one_model(product: Counts, batches: Batches) -> dict[str, Counts]:
    """
    Derive the counts of the steps of a fused product, which Triton does not count.

    Args:
        product: Counts of the model; its queue is that of the first step.
        batches: Batches that the steps reported meanwhile.
    """
    found = {}
    worked_ns = (batches.end_us - batches.start_us) * 1000
    for place, step in enumerate(batches.steps):
        own = batches.step == place
        inside = batches.batch[own[batches.batch]]
        found[step] = Counts(
            requests=len(inside),
            rows=int(batches.rows[own].sum()),
            batches=int(own.sum()),
            whole_ns=int(worked_ns[inside].sum()),
            work_ns=int(worked_ns[inside].sum()),
        )
    first = batches.steps[0]
    requests = found[first].requests
    queue_ns = product.queue_ns * requests // max(1, product.requests)
    found[first] = msgspec.structs.replace(found[first], queue_ns=queue_ns)
    return found


def _sum(entries: Sequence[Mapping[str, Any]], name: str) -> Counts:
    """Add up the versions of a model, the active one and the inactive ones."""

    def ns(entry: Mapping[str, Any], part: str, key: str = "ns") -> int:
        return int(entry.get("inference_stats", {}).get(part, {}).get(key, 0))

    own = [entry for entry in entries if entry["name"] == name]
    return Counts(
        requests=sum(ns(one, "success", "count") for one in own),
        rows=sum(int(one.get("inference_count", 0)) for one in own),
        batches=sum(int(one.get("execution_count", 0)) for one in own),
        whole_ns=sum(ns(one, "success") for one in own),
        queue_ns=sum(ns(one, "queue") for one in own),
        work_ns=sum(ns(one, part) for one in own for part in _WORK),
    )

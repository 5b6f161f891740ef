"""Measure the time that each layer of a running product takes under a stated load."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np

from tollgate.errors import ArgumentError, ServerError
from tollgate.features.spec.feature_spec import FeatureSpec
from tollgate.latency_budget.busy_share import StepOverlap, at_once
from tollgate.latency_budget.layers import Split, queues_of, split
from tollgate.latency_budget.step_batches import Batches, record_batches
from tollgate.latency_budget.step_counts import (
    Counts,
    counts_in_one_model,
    counts_of,
)
from tollgate.load.arrivals import F64, poisson
from tollgate.load.asyncio_sender import AsyncioSender
from tollgate.load.bodies import with_id
from tollgate.load.results import Results
from tollgate.load.sender import open_sender
from tollgate.load.synthetic import synthetic_requests
from tollgate.repository.product_models import Product
from tollgate.server.address import Address
from tollgate.server.triton import control
from tollgate.tracing.batches import candidates_part

_TIMEOUT_S = 1.0
_FEWEST = 100  # least requests for a 99th percentile
_MOST = 2_000_000  # requests: they are written before the run


class Load(msgspec.Struct, frozen=True):
    """
    Requests to send.

    Attributes:
        rate_per_s: Mean requests per second; they arrive at random (Poisson).
        seconds: Duration, s.
        warm_up_s: Time at the beginning that does not count, s.
        rows: Rows in each request.
        dry: True if they are dry runs, which store nothing.
    """

    rate_per_s: float = 200.0
    seconds: float = 20.0
    warm_up_s: float = 2.0
    rows: int = 1
    dry: bool = True
    seed: int = 1


class Measured(msgspec.Struct, frozen=True, eq=False):
    """
    Results of a load.

    Attributes:
        sent: Results of each request that counts.
        split: The layers of those that were answered.
        counts: Triton's counts of the product and of each step for the run.
        at_once: Share of the time in which steps were busy.
        lost: Number of batches that were not reported.
        sender: Name of the sender: `compiled` or `asyncio`.
    """

    load: Load
    sent: Results
    split: Split
    counts: Mapping[str, Counts]
    at_once: StepOverlap
    lost: int
    sender: str

    @property
    def others(self) -> int:
        """Return the requests of other callers meanwhile: they are in `counts`, too."""
        every = next(iter(self.counts.values())).requests
        return max(0, every - int(self.sent.answered.sum()))

    def in_time_percent(self, within_ms: float) -> float:
        """Return the share of requests decided within a time, %."""
        in_time = self.sent.answered & (self.sent.latency_s * 1e3 <= within_ms)
        return 100 * float(np.mean(in_time))


def measure(
    server: Address,
    load: Load,
    *,
    state: Path,
    models: Product,
    spec: FeatureSpec,
) -> Measured:
    """
    Send a load to a running server of this machine, and record its batches meanwhile.

    Raises:
        InputError: The load is too small for a result.
        ServerError: The server does not answer, or reports no batches.
    """
    requests, left_out = _planned(load, models.name, spec)
    warm_up, requests = requests[:left_out], requests[left_out:]
    requests = [with_id(one, str(number)) for number, one in enumerate(requests)]
    steps = (models.features_step, models.model_step, models.decision_step)
    parts = (candidates_part(models.features_step),) if models.ranks else ()
    reported = (*steps, *parts)
    with (
        open_sender(server.grpc_url, timeout_s=_TIMEOUT_S) as chosen,
        record_batches(state, reported) as recorded,
    ):
        if warm_up:
            chosen.at_times(warm_up, _at_s(warm_up, load))
        before = counts_of(server, (models.name, *steps))
        sent = chosen.at_times(requests, _at_s(requests, load))
        after = counts_of(server, (models.name, *steps))
        fused = control.is_fused(server, models.name)
    counts = {name: now.since(before[name]) for name, now in after.items()}
    (batches,) = recorded
    if fused:
        inside = counts_in_one_model(counts[models.name], batches)
        counts |= {step: inside[step] for step in steps}
    queues = queues_of(counts[models.features_step], counts[models.decision_step])
    return Measured(
        load,
        sent,
        split(batches, sent, counted=sent.answered, queues=queues),
        counts=counts,
        at_once=_at_once(batches, steps, sent),
        lost=batches.lost,
        sender=chosen.name,
    )


def _at_once(batches: Batches, steps: Sequence[str], sent: Results) -> StepOverlap:
    """Compute busy shares from the first of these requests until the last was due."""
    spans = {
        step: (batches.start_us[of], batches.end_us[of])
        for place, step in enumerate(steps)
        for of in [batches.step == place]
    }
    from_us, until_us = round(sent.due_s[0] * 1e6), round(sent.due_s[-1] * 1e6)
    return at_once(spans, from_us=from_us, until_us=until_us)


def measure_answers(
    grpc_url: str,
    load: Load,
    *,
    product: str,
    spec: FeatureSpec,
) -> Results:
    """
    Send a load to a server anywhere, as `measure` does, and record its answers only.

    Args:
        grpc_url: host:port, or dns:///host:port for several servers in turn.

    Raises:
        InputError: The load is too small for a result.
        ServerError: No server answers there.
    """
    requests, left_out = _planned(load, product, spec)
    try:
        at_s = _at_s(requests, load)
        sent = AsyncioSender(grpc_url, _TIMEOUT_S).at_times(requests, at_s)
        return sent.later(left_out)
    except asyncio.TimeoutError as error:
        problem = f"nobody answers at {grpc_url} in time"
        raise ServerError("tritonserver", problem) from error


def _at_s(requests: list[bytes], load: Load) -> F64:
    return poisson(len(requests), rate_per_s=load.rate_per_s, seed=load.seed)


def _planned(load: Load, product: str, spec: FeatureSpec) -> tuple[list[bytes], int]:
    """Write the requests; return them and the number that does not count."""
    if not load.rate_per_s * load.seconds <= _MOST:  # also refuses NaN
        problem = f"so many requests are more than {_MOST:,}"
        raise ArgumentError("rate, seconds", problem)
    count = round(load.rate_per_s * load.seconds)
    left_out = round(load.rate_per_s * load.warm_up_s)
    if count - left_out < _FEWEST:
        problem = f"{count - left_out} requests that count are fewer than {_FEWEST}"
        raise ArgumentError("seconds", problem)
    requests = synthetic_requests(
        spec,
        count,
        product=product,
        rows=load.rows,
        seed=load.seed,
        dry_run=load.dry,
        deadline_s=_TIMEOUT_S,
    )
    return requests, left_out

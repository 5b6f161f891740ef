"""
Generate the load under which candidates are measured: synthetic purchases.

Requests arrive at random (Poisson), with latency counted from when they were due; or
one after the other. They are applied like real ones: dry runs write nothing, so a
batch of them has another cost.
"""

from __future__ import annotations

import time

import msgspec
import numpy as np

from tollgate.errors import ServerError
from tollgate.features.spec.feature_spec import FeatureSpec
from tollgate.load.arrivals import poisson
from tollgate.load.process_usage import use_of
from tollgate.load.results import Results
from tollgate.load.sender import Sender
from tollgate.load.synthetic import synthetic_requests
from tollgate.server.address import Address
from tollgate.server.triton import control
from tollgate.tuning.goals import RunFigures

_WARM_UP_S = 0.5
_GIVEN_UP = 4.0  # times the SLA: a caller who waits longer adds to the overload
_AT_MOST_PER_S = 2_000  # sequential requests prepared for each second of a run


class Traffic(msgspec.Struct, frozen=True):
    """
    The requests of a tuning.

    Attributes:
        spec: Feature spec of the product; says what its requests contain.
        within_ms: Latency that the SLO promises, ms.
    """

    product: str
    spec: FeatureSpec
    rows: int
    within_ms: float

    @property
    def timeout_s(self) -> float:
        """Return the time after which a caller gives up, s."""
        return _GIVEN_UP * self.within_ms / 1e3


class Driver:
    """Runs loads on a server of this machine."""

    def __init__(self, server: Address, traffic: Traffic, *, sender: Sender) -> None:
        self._server = server
        self._traffic = traffic
        self._sender = sender
        self._seed = time.time_ns() % 1_000_000_000  # new ids in each tuning

    def __call__(self, model: str, rate_per_s: float, seconds: float) -> RunFigures:
        """
        Run a load.

        Args:
            model: Name of the model that serves the product.
            rate_per_s: Requests per second, on average; 0 sends one after the other.
            seconds: Duration after the warm-up, s.

        Raises:
            ServerError: The server is gone.
        """
        if not control.is_live(self._server):
            problem = f"no server answers at {self._server.grpc_url}"
            raise ServerError("tritonserver", problem)
        run_s = _WARM_UP_S + seconds
        count = round((rate_per_s or _AT_MOST_PER_S) * run_s)
        requests = self._requests(model, count)
        before = use_of([self._server.pid]).cpu_s
        if rate_per_s:
            at_s = poisson(len(requests), rate_per_s=rate_per_s, seed=self._seed)
            results = self._sender.at_times(requests, at_s)
        else:
            results = self._sender.one_by_one(requests, run_s=run_s)
        used_s = use_of([self._server.pid]).cpu_s - before
        return run_figures(
            results, self._traffic, rate_per_s=rate_per_s, used_s=max(0.0, used_s)
        )

    def _requests(self, model: str, count: int) -> list[bytes]:
        traffic, self._seed = self._traffic, self._seed + 1
        return synthetic_requests(
            traffic.spec,
            count,
            product=model,
            rows=traffic.rows,
            seed=self._seed,
            dry_run=False,
            deadline_s=traffic.timeout_s,
        )


def run_figures(
    results: Results, traffic: Traffic, *, rate_per_s: float, used_s: float
) -> RunFigures:
    """
    Compute the figures of a run; its warm-up, half a second, does not count.

    Args:
        rate_per_s: Requests per second; 0 when they came one after the other.
        used_s: Processor time of the server, warm-up included, s.
    """
    at_s, answered, late_us = results.at_s, results.answered, results.calls["late_us"]
    decided_rows = int(answered.sum()) * traffic.rows
    counts = at_s >= _WARM_UP_S
    if not counts.any():
        counts[-1:] = True  # one request that waited all the time for an answer
    latency_s = np.where(answered, results.latency_s, np.inf)[counts]
    late_s = np.where(late_us < 0, traffic.timeout_s, late_us / 1e6)[counts]
    took_s = max(float(at_s[-1]) - _WARM_UP_S, 1e-3)
    # Take samples that occurred: interpolating towards infinity gives no number.
    p50_s, p99_s = np.percentile(latency_s, [50, 99], method="higher")
    in_time = latency_s * 1e3 <= traffic.within_ms
    return RunFigures(
        rate_per_s=rate_per_s,
        seconds=took_s,
        requests=len(latency_s),
        p50_ms=float(p50_s) * 1e3,
        p99_ms=float(p99_s) * 1e3,
        in_time_percent=100 * float(in_time.mean()),
        answered_per_s=float(np.isfinite(latency_s).sum()) / took_s,
        cpu_s=1_000 * used_s / max(decided_rows, 1),
        late_p99_ms=1e3 * float(np.percentile(late_s, 99)),
    )

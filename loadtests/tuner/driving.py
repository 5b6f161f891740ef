"""
The load that candidates are measured under: purchases that nobody made.

Requests come at random (Poisson) and count from when they were due; or one after the
other. They are applied as real ones are: dry runs write nothing, so a batch of them
costs something else.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from clients.codec import requests_of
from clients.columns import check_columns
from loadtests.made_up import made_up
from loadtests.open_loop import poisson
from loadtests.processes import use_of
from loadtests.tuner.seen import Seen
from loadtests.tuner.sending import Answered, Sender
from tollgate.errors import ServerError
from tollgate.features.spec import FeatureSpec
from tollgate.server import control
from tollgate.server.address import Address

_WARM_UP_S = 0.5
_OLD_S = 5.0  # of the newest purchase: not ahead of any clock
_GIVEN_UP = 4.0  # times the promise: a caller who waits longer adds to the overload
_AT_MOST_PER_S = 2_000  # requests one after the other that are made beforehand


class Traffic(msgspec.Struct, frozen=True):
    """
    What is sent.

    Attributes:
        product: Name of the ensemble.
        spec: What its requests have.
        inputs: Their required inputs: name -> type on the wire.
        fields: Their declared fields, likewise.
        rows: In each request.
        within_ms: The promise.
    """

    product: str
    spec: FeatureSpec
    inputs: Mapping[str, str]
    fields: Mapping[str, str]
    rows: int
    within_ms: float

    @property
    def timeout_s(self) -> float:
        """After which a caller gives up."""
        return _GIVEN_UP * self.within_ms / 1e3


class Driver:
    """
    Runs loads on a server of this machine.

    Args:
        server: Where it is.
        traffic: What is sent.
        sender: Who sends it.
    """

    def __init__(self, server: Address, traffic: Traffic, *, sender: Sender) -> None:
        self._server = server
        self._traffic = traffic
        self._sender = sender
        self._seed = time.time_ns() % 1_000_000_000  # ids of its own in each tuning

    def __call__(self, rate_per_s: float, seconds: float) -> Seen:
        """
        Run a load.

        Args:
            rate_per_s: Requests in a second, on average; 0 sends one after the other.
            seconds: For so long, after a warm-up.

        Raises:
            ServerError: The server is gone.
        """
        if not control.is_live(self._server):
            problem = f"no server answers at {self._server.grpc_url}"
            raise ServerError("tritonserver", problem)
        run_s = _WARM_UP_S + seconds
        requests = self._requests(round((rate_per_s or _AT_MOST_PER_S) * run_s))
        before = use_of([self._server.pid]).cpu_s
        if rate_per_s:
            at_s = poisson(len(requests), rate_per_s=rate_per_s, seed=self._seed)
            answered = self._sender.at_times(requests, at_s)
        else:
            answered = self._sender.one_by_one(requests, run_s=run_s)
        used_s = use_of([self._server.pid]).cpu_s - before
        return seen_of(
            answered, self._traffic, rate_per_s=rate_per_s, used_s=max(0.0, used_s)
        )

    def _requests(self, count: int) -> list[Any]:
        traffic, self._seed = self._traffic, self._seed + 1
        rows = count * traffic.rows
        first_us = round((time.time() - _OLD_S) * 1e6) - rows * 1_000
        columns = made_up(traffic.spec, rows, seed=self._seed, first_us=first_us)
        checked = check_columns(
            columns, inputs={**traffic.inputs}, fields={**traffic.fields}
        )
        return list(
            requests_of(
                checked,
                product=traffic.product,
                size=traffic.rows,
                dry_run=False,
                deadline_s=traffic.timeout_s,
            )
        )


def seen_of(
    answered: Answered, traffic: Traffic, *, rate_per_s: float, used_s: float
) -> Seen:
    """
    Say what a run says; its warm-up, half a second, does not count.

    Args:
        answered: What became of its requests.
        traffic: What was sent.
        rate_per_s: Requests in a second; 0 when they came one after the other.
        used_s: Processor time of the server, the warm-up's too.
    """
    decided_rows = int(np.isfinite(answered.latency_s).sum()) * traffic.rows
    counts = answered.at_s >= _WARM_UP_S
    if not counts.any():
        counts[-1:] = True  # one request that nobody answered, all the time
    latency_s = answered.latency_s[counts]
    took_s = max(float(answered.at_s[-1]) - _WARM_UP_S, 1e-3)
    # Samples that occurred: interpolating towards "never" is no number.
    p50_s, p99_s = np.percentile(latency_s, [50, 99], method="higher")
    in_time = latency_s * 1e3 <= traffic.within_ms
    return Seen(
        rate_per_s=rate_per_s,
        seconds=took_s,
        requests=len(latency_s),
        p50_ms=float(p50_s) * 1e3,
        p99_ms=float(p99_s) * 1e3,
        in_time_percent=100 * float(in_time.mean()),
        answered_per_s=float(np.isfinite(latency_s).sum()) / took_s,
        cpu_s=1_000 * used_s / max(decided_rows, 1),
        late_p99_ms=1e3 * float(np.percentile(answered.late_s[counts], 99)),
    )

"""What each layer of a running product takes under a stated load."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from clients.codec import requests_of
from clients.columns import check_columns
from loadtests.layers import Split, split
from loadtests.made_up import made_up
from loadtests.open_loop import Sent, poisson, send
from tollgate.errors import InputError, ServerError
from tollgate.features.spec import FeatureSpec
from tollgate.repository.product import Product
from tollgate.server.address import Address
from tollgate.server.traces import tracing

_TIMEOUT_S = 1.0
_CONNECT_S = 10.0
_TRACED_PER_S = 200  # a trace of a request is some 2 KB
_FEWEST = 100  # traced requests that a 99th percentile is made of
_OLD_S = 5.0  # of the newest purchase: not ahead of any clock


class Load(msgspec.Struct, frozen=True):
    """
    What is sent.

    Attributes:
        rate_per_s: Requests, on average; they come at random (Poisson).
        seconds: For so long.
        warm_up_s: The first of them, which do not count.
        rows: In each request.
        dry: Whether nothing is kept of them.
        seed: What they are made of.
    """

    rate_per_s: float = 200.0
    seconds: float = 20.0
    warm_up_s: float = 2.0
    rows: int = 1
    dry: bool = True
    seed: int = 1


class Measured(msgspec.Struct, frozen=True, eq=False):
    """
    What became of it.

    Attributes:
        load: What was sent.
        sent: What became of each request that counts.
        split: The layers of those that were traced.
    """

    load: Load
    sent: Sent
    split: Split

    def in_time_percent(self, within_ms: float) -> float:
        """Tell how many requests were decided by then."""
        in_time = self.sent.answered & (self.sent.latency_s * 1e3 <= within_ms)
        return 100 * float(np.mean(in_time))


def measure(
    server: Address,
    load: Load,
    *,
    models: Product,
    spec: FeatureSpec,
    inputs: Mapping[str, str],
    fields: Mapping[str, str],
) -> Measured:
    """
    Send a load to a running server of this machine, and trace it.

    Args:
        server: Where it is.
        load: What is sent; purchases that nobody made.
        models: The product.
        spec: What its requests have.
        inputs: Their required inputs: name -> type on the wire.
        fields: Their declared fields, likewise.

    Raises:
        InputError: The load is too small to say anything.
        ServerError: The server is not there, or traces nothing.
    """
    requests, left_out = _planned(load, models.name, spec, inputs, fields)
    for number, request in enumerate(requests[left_out:]):
        request.id = str(number)
    every = max(1, round(load.rate_per_s / _TRACED_PER_S))
    with tracing(server, models.name, every=every) as traced:
        counted = _send(requests, load, server.grpc_url).later(left_out)
    return Measured(load, counted, split(traced, counted, models=models))


def measure_answers(
    grpc_url: str,
    load: Load,
    *,
    product: str,
    spec: FeatureSpec,
    inputs: Mapping[str, str],
    fields: Mapping[str, str],
) -> Sent:
    """
    Send a load to a server anywhere, as `measure` does, and look at its answers alone.

    Args:
        grpc_url: host:port, or dns:///host:port for several servers in turn.

    Raises:
        InputError: The load is too small to say anything.
        ServerError: Nobody answers there.
    """
    requests, left_out = _planned(load, product, spec, inputs, fields)
    try:
        return _send(requests, load, grpc_url).later(left_out)
    except asyncio.TimeoutError as error:
        problem = f"nobody answers at {grpc_url} within {_CONNECT_S:g} s"
        raise ServerError("tritonserver", problem) from error


def _send(requests: list[Any], load: Load, grpc_url: str) -> Sent:
    at_s = poisson(len(requests), rate_per_s=load.rate_per_s, seed=load.seed)
    sending = send(requests, at_s=at_s, grpc_url=grpc_url, timeout_s=_TIMEOUT_S)
    limit_s = _CONNECT_S + float(at_s[-1]) + _TIMEOUT_S
    return asyncio.run(asyncio.wait_for(sending, limit_s))


def _planned(
    load: Load,
    product: str,
    spec: FeatureSpec,
    inputs: Mapping[str, str],
    fields: Mapping[str, str],
) -> tuple[list[Any], int]:
    """Make the requests, and tell how many of them do not count."""
    count = round(load.rate_per_s * load.seconds)
    left_out = round(load.rate_per_s * load.warm_up_s)
    if count - left_out < _FEWEST:
        problem = f"{count - left_out} requests that count are fewer than {_FEWEST}"
        raise InputError("--seconds", problem)
    return _requests(load, count, product, spec, {**inputs}, {**fields}), left_out


def _requests(
    load: Load,
    count: int,
    product: str,
    spec: FeatureSpec,
    inputs: dict[str, str],
    fields: dict[str, str],
) -> list[Any]:
    rows = count * load.rows
    first_us = round((time.time() - _OLD_S) * 1e6) - rows * 1_000
    columns = made_up(spec, rows, seed=load.seed, first_us=first_us)
    return list(
        requests_of(
            check_columns(columns, inputs=inputs, fields=fields),
            product=product,
            size=load.rows,
            dry_run=load.dry,
            deadline_s=_TIMEOUT_S,
        )
    )

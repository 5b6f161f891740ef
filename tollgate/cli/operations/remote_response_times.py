"""Measure response times of a remote server from outside: `budget --grpc-url`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import typer

from tollgate.cli import console
from tollgate.cli.operations.slo_limits import promise_of
from tollgate.cli.repositories import open_for_reading
from tollgate.repository.slo import read_slo
from tollgate.settings import Settings

if TYPE_CHECKING:
    from tollgate.latency_budget.measurement import Load


def judge_answers(
    grpc_url: str,
    load: Load,
    *,
    chosen: Settings,
    target: bool,
    room: float,
    json: bool,
) -> None:
    """
    Send a load and print its response times; exit with status 1 if too few are in time.

    Raises:
        ServerError: No server responds at the address.
    """
    from tollgate.latency_budget.measurement import measure_answers
    from tollgate.repository.releases.served_versions import served_spec

    with open_for_reading(chosen) as models:
        slo = read_slo(models, product=chosen.product)
        promise = promise_of(slo, target=target, room=room)
        spec = served_spec(models, product=chosen.product)
    sent = measure_answers(
        grpc_url,
        load,
        product=chosen.product,
        spec=spec,
    )
    latency_ms = sent.latency_s * 1e3
    in_time = 100 * float(np.mean(sent.answered & (latency_ms <= promise.within_ms)))
    result = {
        "load": load,
        "answered_percent": 100 * float(np.mean(sent.answered)),
        "in_time_percent": in_time,
        "within_ms": promise.within_ms,
        "promised_percent": promise.percent,
        "p50_ms": float(np.percentile(latency_ms, 50)),
        "p99_ms": float(np.percentile(latency_ms, 99)),
    }
    if json:
        console.print_json(result)
    else:
        console.out.print(
            f"{len(latency_ms):,} requests of {load.rows} rows at {load.rate_per_s:g} "
            f"per second, {'dry' if load.dry else 'applied'}: p50 "
            f"{result['p50_ms']:.1f} ms, p99 {result['p99_ms']:.1f} ms; "
            f"{in_time:.2f} % "
            f"decided within {promise.within_ms:g} ms, {promise.percent:g} % are "
            "promised",
            highlight=False,
            soft_wrap=True,
        )
    if in_time < promise.percent:
        console.say("broken: too few were decided in time")
        raise typer.Exit(1)

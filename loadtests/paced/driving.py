"""One run of a scenario: drawn, sent, traced, told."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import msgspec
import numpy as np

from loadtests.layers import split
from loadtests.open_loop import F64, Sent
from loadtests.paced.bench import Bench, counting
from loadtests.paced.callers import send_in_python
from loadtests.paced.calls import ANSWERED, Load, Told
from loadtests.paced.compiled import send_compiled
from loadtests.paced.raw import About, Raw
from loadtests.paced.requests import write_bodies
from loadtests.paced.scenario import Scenario
from loadtests.paced.schedule import arrivals
from loadtests.paced.troubles import marks_of, troubling
from tollgate.errors import InputError, ServerError
from tollgate.repository.product import read_product
from tollgate.server.traces import Traced, tracing

DRIVERS = ("compiled", "python")


class Order(msgspec.Struct, frozen=True):
    """
    One run that is wanted.

    Attributes:
        name: Of the scenario.
        scenario: As it is to be run.
        run: Which of several, from 1.
        seed: Of what is drawn.
        first: The first purchase of the traffic that was never sent.
        driver: One of DRIVERS.
        connections: That the requests share.
        traced_per_s: Requests that are traced, about; 0 for none.
        label: What the user calls what is measured.
        command: How to repeat it.
    """

    name: str
    scenario: Scenario
    run: int
    seed: int
    first: int
    driver: str
    connections: int
    traced_per_s: float
    label: str
    command: str


def run_once(bench: Bench, order: Order) -> Raw:
    """
    Do one run.

    Raises:
        InputError: It cannot be done to this server.
        ServerError: The server or the sender failed.
    """
    scenario = order.scenario
    at_s = arrivals(scenario, seed=order.seed)
    if not len(at_s):
        raise InputError("--seconds", "not one request is due in so short a time")
    bodies = bench.folder / "bodies.bin"
    load = Load(
        at_s=at_s,
        bodies=write_bodies(
            bodies,
            bench.traffic,
            scenario=scenario,
            at_s=at_s,
            first=order.first,
            seed=order.seed,
        ),
        timeout_s=scenario.timeout_ms / 1e3,
        connections=order.connections,
        retries=scenario.retries,
    )
    begun: list[float] = []
    with (
        troubling(scenario, bench.target) as trouble,
        counting(bench.server) as counted,
        _traced(bench, order) as traced,
    ):
        send = _sender(order.driver, bench)
        told, sender_cpu_s = send(
            load, began=lambda at: (begun.append(at), trouble.began(at))
        )
    bodies.unlink()
    return Raw(
        about=About(
            name=order.name,
            scenario=scenario,
            run=order.run,
            label=order.label,
            seed=order.seed,
            driver=order.driver,
            connections=order.connections,
            command=order.command,
            measured=bench.measured(),
            store=bench.store,
            kinds=told.kinds,
            examples=told.examples,
            marks=marks_of(scenario),
            sender_cpu_s=sender_cpu_s,
            server=counted[0] if counted else None,
        ),
        calls=told.calls,
        layers_ms=_layers(bench, traced, told, scenario, begin_s=begun[0]),
    )


def _sender(driver: str, bench: Bench) -> Callable[..., tuple[Told, float]]:
    def compiled(load: Load, *, began: Callable[[float], None]) -> tuple[Told, float]:
        return send_compiled(
            load, grpc_url=bench.grpc_url, folder=bench.folder, began=began
        )

    def python(load: Load, *, began: Callable[[float], None]) -> tuple[Told, float]:
        return send_in_python(load, grpc_url=bench.grpc_url, began=began)

    return compiled if driver == "compiled" else python


@contextmanager
def _traced(bench: Bench, order: Order) -> Iterator[Sequence[Traced]]:
    if not order.traced_per_s:
        yield []
        return
    if bench.server is None:
        raise InputError("--layers", "only a server of ours can be traced")
    every = max(1, round(order.scenario.peak_rate / order.traced_per_s))
    with tracing(bench.server.triton, "fraud", every=every) as traced:
        yield traced


def _layers(
    bench: Bench,
    traced: Sequence[Traced],
    told: Told,
    scenario: Scenario,
    *,
    begin_s: float,
) -> dict[str, F64]:
    """Cut the traced requests that were due after the warm-up into layers."""
    if not traced or bench.server is None:
        return {}
    calls = told.calls
    first = int(np.searchsorted(calls["due_us"], scenario.warm_up_s * 1e6))
    kept = [one for one in traced if int(one.request_id or 0) >= first]
    due_s = begin_s + calls["due_us"] / 1e6
    sent = Sent(
        due_s=due_s,
        sent_s=due_s + np.maximum(calls["late_us"], 0) / 1e6,
        latency_s=calls["took_us"] / 1e6,
        degraded=calls["bits"].astype(np.uint32),
        answered=calls["kind"] == told.kinds.index(ANSWERED),
    )
    models = read_product(bench.repository, "fraud")
    try:
        return dict(split(kept, sent, models=models).layers_ms)
    except ServerError:
        return {}  # not one of those that were traced was answered

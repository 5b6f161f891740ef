"""Run a scenario once: draw its requests, send them, and record the results."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import msgspec

from loadtests.paced.bench import Bench, counting
from loadtests.paced.callers import send_in_python
from loadtests.paced.calls import Load, Results
from loadtests.paced.compiled import send_compiled
from loadtests.paced.raw import About, Raw, no_batches
from loadtests.paced.requests import write_bodies
from loadtests.paced.scenario import Scenario
from loadtests.paced.schedule import arrivals
from loadtests.paced.seen import layers_and_batches, recording_steps
from loadtests.paced.troubles import fault_injection, marks_of
from tollgate.errors import InputError

DRIVERS = ("compiled", "python")


class Order(msgspec.Struct, frozen=True):
    """
    Parameters of one run.

    Attributes:
        name: Name of the scenario.
        scenario: The scenario to run.
        run: Number of the run, from 1.
        seed: Seed of the random draws.
        first: Index of the first purchase of the traffic that was not sent yet.
        driver: One of DRIVERS.
        connections: Number of connections that the requests share.
        layers: True to record the batches of the steps, too.
        label: The user's label for the measurement.
        command: Command that repeats the run.
    """

    name: str
    scenario: Scenario
    run: int
    seed: int
    first: int
    driver: str
    connections: int
    layers: bool
    label: str
    command: str


def run_once(bench: Bench, order: Order) -> Raw:
    """
    Run a scenario once.

    Raises:
        InputError: This server does not support it.
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
    with (
        fault_injection(scenario, bench.target) as trouble,
        counting(bench.server) as counted,
        recording_steps(bench, wanted=order.layers) as recordings,
    ):
        send = _sender(order.driver, bench)
        results = send(load, began=trouble.began)
    bodies.unlink()
    layers_ms, batches = {}, None
    if recordings:
        layers_ms, batches = layers_and_batches(
            recordings[0], results, warm_up_s=scenario.warm_up_s
        )
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
            kinds=results.kinds,
            examples=results.examples,
            marks=marks_of(scenario),
            sender_cpu_s=results.sender_cpu_s,
            server=counted[0] if counted else None,
        ),
        calls=results.calls,
        layers_ms=layers_ms,
        batches=no_batches() if batches is None else batches,
    )


def _sender(driver: str, bench: Bench) -> Callable[..., Results]:
    if driver == "compiled":
        return partial(send_compiled, grpc_url=bench.grpc_url, folder=bench.folder)
    return partial(send_in_python, grpc_url=bench.grpc_url)

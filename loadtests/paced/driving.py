"""Run a scenario once: draw its requests, send them, and record the results."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import msgspec
import numpy as np
import numpy.typing as npt

from loadtests.paced.bench import STATE_FOLDER, Bench, counting
from loadtests.paced.raw import BATCH, About, Raw, no_batches
from loadtests.paced.requests import write_bodies
from loadtests.paced.scenario import Scenario
from loadtests.paced.schedule import arrivals
from loadtests.paced.troubles import fault_injection, marks_of
from tollgate.errors import InputError, ServerError
from tollgate.latency_budget.layers import Queues, queues_of, split
from tollgate.latency_budget.step_batches import I64, Batches, record_batches
from tollgate.latency_budget.step_counts import counts_of
from tollgate.load.arrivals import F64
from tollgate.load.asyncio_sender import send_in_python
from tollgate.load.bodies import Load
from tollgate.load.compiled_sender import send_compiled
from tollgate.load.results import Results
from tollgate.repository.product_models import read_product

# Record the work of the steps during a run: time per layer, and every batch.


class StepRecording(msgspec.Struct, frozen=True, eq=False):
    """Batches of a run, and the queue times of its requests by Triton's count."""

    batches: Batches
    queues: Queues


@contextmanager
def recording_steps(bench: Bench, *, wanted: bool) -> Iterator[list[StepRecording]]:
    """
    Record the batches of our server's steps during the block, if that is wanted.

    Yields:
        A list that has one element when the block has ended, if recording is wanted.

    Raises:
        InputError: The server is not ours.
        ServerError: It reports no batches.
    """
    found: list[StepRecording] = []
    if not wanted:
        yield found
        return
    if bench.server is None:
        raise InputError(
            "--layers", "the steps of a server at an address cannot be recorded"
        )
    triton = bench.server.triton
    models = read_product(bench.repository, "fraud")
    steps = (models.features_step, models.model_step, models.decision_step)
    with record_batches(bench.folder / STATE_FOLDER, steps) as recorded:
        before = counts_of(triton, steps)
        yield found
        after = counts_of(triton, steps)
    features, _, decision = (after[step].since(before[step]) for step in steps)
    found.append(StepRecording(recorded[0], queues_of(features, decision)))


def layers_and_batches(
    recording: StepRecording, results: Results, *, warm_up_s: float
) -> tuple[dict[str, F64], npt.NDArray[np.void]]:
    """
    Split the requests that were due after the warm-up into layers; convert batches.

    Args:
        recording: Reports of the steps.
        results: Results of the requests.
        warm_up_s: Time at the beginning that does not count, s.

    Returns:
        `layers_ms` and `batches` of `Raw`; no layers when no request was answered.
    """
    calls = results.calls
    first = int(np.searchsorted(calls["due_us"], warm_up_s * 1e6))
    begin_us = round(results.begin_s * 1e6)
    batches = batch_table(recording.batches, begin_us=begin_us, requests=len(calls))
    try:
        found = split(
            recording.batches,
            results,
            counted=results.responded,
            queues=recording.queues,
            first=first,
        )
    except ServerError:
        return {}, batches  # not one request was answered
    return dict(found.layers_ms), batches


def batch_table(
    batches: Batches, *, begin_us: int, requests: int
) -> npt.NDArray[np.void]:
    """
    Convert batches to BATCH, by step and start.

    Args:
        batches: Batches that the steps reported.
        begin_us: Beginning of the run, on the monotonic clock.
        requests: Number of requests that were sent; higher numbers belong to other
            callers.
    """
    count = len(batches.step)
    if not count:
        return no_batches()
    found = np.zeros(count, BATCH)
    found["step"] = batches.step
    found["start_us"] = batches.start_us - begin_us
    found["took_us"] = batches.end_us - batches.start_us
    found["rows"] = batches.rows
    order = np.lexsort((found["start_us"], found["step"]))
    place = np.empty(count, np.int64)
    place[order] = np.arange(count)
    origin = _origins(batches, requests)
    found["origin"] = np.where(origin >= 0, place[origin], -1)
    ordered: npt.NDArray[np.void] = found[order]
    return ordered


def _origins(batches: Batches, requests: int) -> I64:
    """Find the batch of the feature step that the first request of each came from."""
    ours = batches.request < requests
    request, batch = batches.request[ours], batches.batch[ours]
    of_features = batches.step[batch] == 0
    through = np.full(requests, -1, np.int64)
    through[request[of_features]] = batch[of_features]
    origin = np.full(len(batches.step), -1, np.int64)
    # Go backwards, so that the first of several requests is written last.
    origin[batch[::-1]] = through[request[::-1]]
    return origin


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

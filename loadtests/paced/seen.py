"""Record the work of the steps during a run: time per layer, and every batch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import numpy as np
import numpy.typing as npt

from loadtests.layers import Queues, queues_of, split
from loadtests.open_loop import F64
from loadtests.paced.bench import STATE_FOLDER, Bench
from loadtests.paced.calls import Results
from loadtests.paced.raw import BATCH, no_batches
from loadtests.step_counts import counts_of
from loadtests.watching import I64, Batches, record_batches
from tollgate.errors import InputError, ServerError
from tollgate.repository.product import read_product


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

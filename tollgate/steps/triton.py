"""
Wrap the parts of Triton's Python backend that both steps use.

`triton_python_backend_utils` exists only inside a step's process, so it is imported
when a step starts.
"""

from __future__ import annotations

import gc
import itertools
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from tollgate.errors import trace_of
from tollgate.schema import DIRECT_CALL, SLOT_FILE, public_name

log = logging.getLogger("tollgate.steps")

Array = npt.NDArray[Any]
# Name -> the tensor of each request; None for a request without this input.
Inputs = Mapping[str, Sequence[Any]]

_NO_PARAMETERS = "{}"


class StepConfig(msgspec.Struct, frozen=True):
    """
    Hold the configuration that a step starts with.

    Attributes:
        directory: Its version directory.
        parameters: Of its configuration, and those that its release sets for this
            version.
        outputs: Names of its outputs.
        input_dims: Shape of a row by input.
    """

    directory: Path
    parameters: Mapping[str, str]
    outputs: tuple[str, ...] = ()
    input_dims: Mapping[str, tuple[int, ...]] = {}


def step_config(args: Mapping[str, str]) -> StepConfig:
    """
    Read the arguments of `initialize`, and the slot that the step starts in, if any.
    """
    config = json.loads(args["model_config"])
    given = config.get("parameters", {})
    outputs = tuple(one["name"] for one in config.get("output", ()))
    dims = {
        one["name"]: tuple(map(int, one["dims"])) for one in config.get("input", ())
    }
    parameters = {name: one["string_value"] for name, one in given.items()}
    directory = Path(args["model_repository"]) / args["model_version"]
    slot = directory / SLOT_FILE
    if slot.is_file():
        parameters |= json.loads(slot.read_bytes())["told"]
    return StepConfig(
        directory=directory, parameters=parameters, outputs=outputs, input_dims=dims
    )


def settle() -> None:
    """
    Exempt existing objects from garbage collection; the last call of `initialize`.

    Modules, specs and tables are 80,000 objects: a collection over them takes 18 ms,
    during which a step answers nothing, and frees nothing.
    """
    gc.collect()
    gc.freeze()


def step_name(args: Mapping[str, str]) -> str:
    """Return a step's name in the repository; the server may serve it under another."""
    return public_name(args["model_name"])


def metric_labels(args: Mapping[str, str], *, product: str) -> dict[str, str]:
    """
    Return the labels that distinguish a step's metrics from those of every other step.
    """
    return {
        "product": product,
        "model": step_name(args),
        "version": args["model_version"],
    }


def inputs_of(requests: Sequence[Any]) -> Inputs:
    """
    Index the inputs of a dynamic batch by name.

    Triton's own look-up searches all inputs of a request for each one that is read:
    with 100 of them that took most of the step's time.
    """
    sent = [request.inputs() for request in requests]
    flat = list(itertools.chain.from_iterable(sent))
    names = [one.name() for one in flat]
    width = len(sent[0])
    alike = names[:width]
    if names == alike * len(requests):  # mostly: the same inputs in the same order
        return {name: flat[at::width] for at, name in enumerate(alike)}
    inputs: dict[str, list[Any]] = {}
    for place, own in enumerate(sent):
        for one in own:
            inputs.setdefault(one.name(), [None] * len(requests))[place] = one
    return inputs


def direct_calls(inputs: Inputs) -> list[int]:
    """List the requests that call a step by its public name instead of its ensemble."""
    tensors = inputs.get(DIRECT_CALL, ())
    return [place for place, one in enumerate(tensors) if one is not None]


def gather(inputs: Inputs, name: str) -> Array:
    """Join one input of all requests to one array, in the order of the requests."""
    arrays = [one.as_numpy() for one in inputs[name]]
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def gather_optional(
    inputs: Inputs, name: str, *, bounds: Sequence[int], absent: Any
) -> Array | None:
    """
    Join one optional input of all requests to one array of N values.

    Args:
        inputs: Of a dynamic batch; some requests may have the input and some not.
        name: Name of the input.
        bounds: First row of each request, then the end of the last.
        absent: Value for each row of a request without the input.

    Returns:
        [N]; None if no request has it.
    """
    tensors = inputs.get(name)
    if tensors is None:
        return None
    if len(tensors) == 1:
        alone: Array = tensors[0].as_numpy()[:, 0]
        return alone
    arrays = [
        np.full(stop - start, absent) if tensor is None else tensor.as_numpy()[:, 0]
        for tensor, (start, stop) in zip(
            tensors, itertools.pairwise(bounds), strict=True
        )
    ]
    whole: Array = np.concatenate(arrays)
    return whole


def gather_rows(inputs: Inputs, name: str) -> tuple[Array, list[int]]:
    """
    Join one input of all requests to one array, and return which rows belong to which.

    Returns:
        The array, and the first row of each request with the end of the last.
    """
    arrays = [one.as_numpy() for one in inputs[name]]
    bounds = list(itertools.accumulate(map(len, arrays), initial=0))
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays), bounds


def request_parameters(request: Any) -> Mapping[str, Any]:
    """Read a request's parameters; most have none."""
    text = request.parameters()
    return json.loads(text) if text and text != _NO_PARAMETERS else {}


def parameters_of(requests: Sequence[Any]) -> Sequence[Mapping[str, Any]] | None:
    """Read the parameters of all requests; None, as mostly, when none has any."""
    texts = [request.parameters() or _NO_PARAMETERS for request in requests]
    if texts.count(_NO_PARAMETERS) == len(texts):
        return None
    return [json.loads(text) for text in texts]


def respond(pb: Any, outputs: Mapping[str, Array], bounds: Sequence[int]) -> list[Any]:
    """Split the outputs of a batch into one response per request."""
    tensor, parts = pb.Tensor, list(itertools.pairwise(bounds))
    columns = []
    for name, array in outputs.items():
        columns.append([tensor(name, array[start:stop]) for start, stop in parts])
    return [pb.InferenceResponse(list(row)) for row in zip(*columns, strict=True)]


def refuse(pb: Any, text: str, *, invalid: bool) -> Any:
    """Answer one request with an error."""
    code = pb.TritonError.INVALID_ARG if invalid else pb.TritonError.INTERNAL
    return pb.InferenceResponse(error=pb.TritonError(text, code))


def guarded(
    pb: Any, requests: Sequence[Any], execute: Callable[[Sequence[Any]], list[Any]]
) -> list[Any]:
    """
    Run a step's work; an unforeseen error becomes an error response.

    The requests of a batch that fails are run again one by one, so that the request
    that caused the error fails alone. `execute` must allow that.
    """
    try:
        return execute(requests)
    except Exception as exc:  # noqa: BLE001 - the edge of a step
        if len(requests) == 1:
            return failed(pb, requests, exc)
        log.error("a batch of %d requests failed: %s", len(requests), trace_of(exc))
    return [answer for one in requests for answer in guarded(pb, [one], execute)]


def failed(pb: Any, requests: Sequence[Any], error: Exception) -> list[Any]:
    """
    Answer requests with an unforeseen error.

    An exception that left `execute` would answer the same, but would send its traceback
    to the caller. The message of the exception stays out of the log, because it may
    hold an id or an amount; the log has its hash.
    """
    log.error("a batch of %d requests failed: %s", len(requests), trace_of(error))
    text = f"the step failed: {type(error).__name__}; the server's log has more"
    return [refuse(pb, text, invalid=False) for _ in requests]


def refuse_some(
    pb: Any,
    requests: Sequence[Any],
    refusals: Mapping[int, str],
    *,
    answer: Callable[[Sequence[Any]], list[Any]],
) -> list[Any]:
    """
    Refuse some requests of a batch and answer the others together.

    Args:
        pb: Triton's `triton_python_backend_utils`.
        requests: A dynamic batch.
        refusals: Position of each request to refuse, and the error to answer with.
        answer: Called with the other requests, if there are any.
    """
    others = [one for place, one in enumerate(requests) if place not in refusals]
    answers = iter(answer(others) if others else [])
    return [
        refuse(pb, refusals[place], invalid=True)
        if place in refusals
        else next(answers)
        for place in range(len(requests))
    ]

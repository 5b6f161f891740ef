"""
Implement the embedded server's `onnxruntime` backend as a Python-based Triton backend.

It replaces NVIDIA's C++ backend of the same name: the same config.pbtxt, the same
model.onnx, the same parameters. A dynamic batch is one call of onnxruntime.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from tollgate.engine.onnx_session import OnnxSession, Tensor, open_model
from tollgate.errors import RepositoryError
from tollgate.schema import public_name
from tollgate.server.triton.placement import REQUESTED_KIND
from tollgate.tracing.batches import open_batches

Feeds = dict[str, Tensor]
Answer = dict[str, Tensor] | str  # output tensors, or the problem of the request


class OnnxBackendModel:
    """One model instance: Triton creates one object per instance."""

    @staticmethod
    def auto_complete_config(config: Any) -> Any:
        """Leave a configuration as it is: a deployment writes it out in full."""
        return config

    def initialize(self, args: Mapping[str, str]) -> None:
        """Open the model, or refuse it in one line that names the file."""
        import triton_python_backend_utils as triton

        self._triton = triton
        config = json.loads(args["model_config"])
        directory = Path(args["model_repository"], args["model_version"])
        try:
            self._session = open_model(directory, config)
        except RepositoryError as error:
            raise triton.TritonModelException(public_name(str(error))) from None
        self._batched = int(config.get("max_batch_size", 0)) > 0
        self._batches = open_batches(public_name(args["model_name"]))
        wanted = config.get("parameters", {}).get(REQUESTED_KIND, {})
        kind = wanted.get("string_value") or f"KIND_{args['model_instance_kind']}"
        model = public_name(str(self._session.source))
        triton.Logger.log_info(
            f"{args['model_instance_name']}: {model} in "
            f"onnxruntime {self._session.version}, intra_op_thread_count "
            f"{self._session.intra_op_threads}; " + _placement(kind)
        )

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Answer a dynamic batch; a bad request fails alone."""
        began_us = time.monotonic_ns() // 1000
        wanted = [list(request.requested_output_names()) for request in requests]
        feeds = [self._feeds(request) for request in requests]
        answers = answer_batch(
            self._session, feeds, wanted=wanted, batched=self._batched
        )
        responses = list(map(self._response, answers, wanted))
        if self._batches is not None and self._batches.is_enabled():
            rows = sum(_rows(one) for one in feeds if isinstance(one, dict))
            self._batches.write(requests, rows=rows, began_us=began_us)
        return responses

    def _feeds(self, request: Any) -> Feeds | str:
        feeds: Feeds = {}
        for spec in self._session.inputs.values():
            tensor = self._triton.get_input_tensor_by_name(request, spec.name)
            if tensor is None:
                return f"input {spec.name} is missing"
            try:
                feeds[spec.name] = _as_onnx(tensor.as_numpy())
            except UnicodeDecodeError as error:
                return f"input {spec.name} is not UTF-8: {error.reason}"
        return feeds

    def _response(self, answer: Answer, wanted: Sequence[str]) -> Any:
        if isinstance(answer, str):
            error = self._triton.TritonError(
                answer, self._triton.TritonError.INVALID_ARG
            )
            return self._triton.InferenceResponse(error=error)
        return self._triton.InferenceResponse(
            [self._triton.Tensor(name, answer[name]) for name in wanted]
        )


def answer_batch(
    session: OnnxSession,
    feeds: Sequence[Feeds | str],
    *,
    wanted: Sequence[Sequence[str]],
    batched: bool,
) -> list[Answer]:
    """
    Compute the answers of a dynamic batch in as few calls as its shapes allow: one.

    Args:
        feeds: Per request its inputs, rows first, or its problem.
        wanted: Output names per request.
        batched: True if the first dimension counts rows, so that requests can be put
            together.

    Returns:
        Per request its rows of the outputs it wants, or its problem.
    """
    answers: list[Answer] = ["not answered"] * len(feeds)
    groups: dict[object, list[int]] = {}
    for index, feed in enumerate(feeds):
        problem = feed if isinstance(feed, str) else _problem(session, feed, batched)
        if problem:
            answers[index] = problem
        elif isinstance(feed, dict):
            key = _trailing(feed) if batched else index
            groups.setdefault(key, []).append(index)
    for group in groups.values():
        members = [feed for i in group if isinstance(feed := feeds[i], dict)]
        names = [wanted[i] for i in group]
        for index, answer in zip(
            group, _run(session, members, wanted=names, batched=batched), strict=True
        ):
            answers[index] = answer
    return answers


def _run(
    session: OnnxSession,
    members: Sequence[Feeds],
    *,
    wanted: Sequence[Sequence[str]],
    batched: bool,
) -> Sequence[Answer]:
    """Run requests of one shape together; when that fails, each alone."""
    names = list(dict.fromkeys(name for some in wanted for name in some))
    if len(members) == 1:
        feeds: Mapping[str, Tensor] = members[0]
    else:
        feeds = {
            name: np.concatenate([member[name] for member in members])
            for name in session.inputs
        }
    try:
        tensors = dict(zip(names, session.run(names, feeds), strict=True))
    except Exception as error:  # noqa: BLE001 - onnxruntime's errors share no base
        if len(members) == 1:
            return [f"onnxruntime: {' '.join(str(error).split())}"]
        return [
            _run(session, [member], wanted=[some], batched=batched)[0]
            for member, some in zip(members, wanted, strict=True)
        ]
    if not batched:
        return [tensors]
    return _split(tensors, rows=[_rows(member) for member in members], wanted=wanted)


def _split(
    tensors: Mapping[str, Tensor],
    *,
    rows: Sequence[int],
    wanted: Sequence[Sequence[str]],
) -> list[Answer]:
    ends = list(accumulate(rows))
    for name, tensor in tensors.items():
        present = len(tensor) if tensor.ndim else 0
        if present != ends[-1]:
            return [f"output {name} has {present} rows for {ends[-1]}"] * len(rows)
    return [
        {name: tensors[name][end - count : end] for name in some}
        for count, end, some in zip(rows, ends, wanted, strict=True)
    ]


def _problem(session: OnnxSession, feeds: Feeds, batched: bool) -> str:
    """Describe the problem of a request; empty if it has none."""
    for name, spec in session.inputs.items():
        tensor = feeds[name]
        if tensor.dtype != spec.dtype:
            return f"input {name} is {tensor.dtype}, the model wants {spec.dtype}"
        shape = spec.shape
        fits = tensor.ndim == len(shape) and all(
            size in (-1, given) for size, given in zip(shape, tensor.shape, strict=True)
        )
        if not fits:
            return (
                f"input {name} has shape {list(tensor.shape)}, "
                f"the model wants {list(shape)}"
            )
    if batched and len({len(tensor) for tensor in feeds.values()}) > 1:
        return "inputs differ in their number of rows"
    return ""


def _rows(feeds: Feeds) -> int:
    return len(next(iter(feeds.values())))


def _trailing(feeds: Feeds) -> object:
    return tuple((name, tensor.shape[1:]) for name, tensor in feeds.items())


def _as_onnx(tensor: Tensor) -> Tensor:
    """Convert Triton's bytes to the text that onnxruntime takes."""
    if tensor.dtype != np.object_:
        return tensor
    texts = [value.decode("utf-8") for value in tensor.reshape(-1)]
    return np.array(texts, dtype=np.object_).reshape(tensor.shape)


def _placement(kind: str) -> str:
    if kind == "KIND_GPU":
        return (
            "instance_group asks for KIND_GPU, but this build of the backend has no "
            "GPU support: it runs on the CPU"
        )
    return "runs on the CPU"

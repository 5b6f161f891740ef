"""Implement the calls of Triton's gRPC API that clients of Tollgate use."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence
from typing import Any

import grpc
import numpy as np
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tollgate.schema import (
    AMOUNT,
    ANSWER_TYPES,
    DEADLINE_US,
    DRY_RUN,
    EVENT_TIME,
    TRANSACTION_ID,
)
from tollgate.testing.faults import Faults
from tollgate.testing.script import Answer, Asked, Script
from tollgate.testing.wire import Column, Refused, columns_of, response_of, wire_type
from tollgate.validation import check_rows

_STALL_STEP_S = (
    0.01  # between checks whether the caller of a stalled request still waits
)


class Servicer(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    """
    Serve one product, by script.

    Args:
        product: Name of the ensemble.
        inputs: Required inputs: name -> type.
        fields: Optional inputs.
        script: The answers.
        faults: The faults.
    """

    def __init__(
        self,
        product: str,
        *,
        inputs: Mapping[str, str],
        fields: Mapping[str, str],
        script: Script,
        faults: Faults,
    ) -> None:
        self._product = product
        self._inputs = inputs
        self._fields = fields
        self._script = script
        self._faults = faults
        self._numbers = itertools.count()

    def ModelInfer(self, request: Any, context: grpc.ServicerContext) -> Any:
        """Answer 1 to 32 rows."""
        self._require_product(request.model_name, context)
        fault, healed = self._faults.take()
        try:
            columns = columns_of(request, inputs=self._inputs, fields=self._fields)
            answers = self._answers(request, columns, context)
        except Refused as error:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        if fault is not None and fault.kind == "fail":
            context.abort(grpc.StatusCode[fault.code], fault.words)
        if fault is not None and fault.kind == "slow":
            healed.wait(fault.delay_s)
        while fault is not None and fault.kind == "stall" and context.is_active():
            if healed.wait(_STALL_STEP_S):
                break
        if all(answer.error for answer in answers):
            lines = [f"row {row}: {one.error}" for row, one in enumerate(answers)]
            text = f"in ensemble '{self._product}', " + "\n".join(lines)
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, text)
        return response_of(answers, request)

    def _answers(
        self,
        request: Any,
        columns: Mapping[str, Column],
        context: grpc.ServicerContext,
    ) -> Sequence[Answer]:
        """Record the rows, and find the answer to each; a bad one gets its error."""
        parameters = {
            name: getattr(value, value.WhichOneof("parameter_choice"))
            for name, value in request.parameters.items()
        }
        metadata = {
            key: value
            for key, value in context.invocation_metadata()
            if isinstance(value, str)
        }
        rows = _rows(columns, parameters, metadata, number=next(self._numbers))
        self._script.note(rows)
        ids = {
            name: column
            for name, column in columns.items()
            if isinstance(column, list) and name in self._inputs
        }
        errors: dict[int, str] = {}
        if EVENT_TIME in columns:
            amount = columns.get(AMOUNT)
            errors = check_rows(
                ids,
                amount=None if amount is None else np.asarray(amount, np.float64),
                time_us=np.asarray(columns[EVENT_TIME], np.int64),
                now_us=time.time_ns() // 1000,
            ).errors
        refused = _refused(parameters)
        return [
            Answer(error=error)
            if (error := errors.get(place, refused))
            else self._script.answer(row)
            for place, row in enumerate(rows)
        ]

    def ServerLive(self, request: Any, context: Any) -> Any:
        """Report that the process is live."""
        return service_pb2.ServerLiveResponse(live=True)

    def ServerReady(self, request: Any, context: Any) -> Any:
        """Report that the server is ready."""
        return service_pb2.ServerReadyResponse(ready=True)

    def ModelReady(self, request: Any, context: Any) -> Any:
        """Report whether a product is served."""
        return service_pb2.ModelReadyResponse(ready=request.name == self._product)

    def ModelMetadata(self, request: Any, context: Any) -> Any:
        """Describe the tensors."""
        self._require_product(request.name, context)
        described = service_pb2.ModelMetadataResponse(
            name=self._product, versions=["1"], platform="ensemble"
        )
        for name, kind in {**self._inputs, **self._fields}.items():
            described.inputs.add(name=name, datatype=kind, shape=(-1, 1))
        for name in ANSWER_TYPES:
            described.outputs.add(name=name, datatype=wire_type(name), shape=(-1, 1))
        return described

    def _require_product(self, name: str, context: grpc.ServicerContext) -> None:
        if name != self._product:
            words = f"Request for unknown model: '{name}' is not found"
            context.abort(grpc.StatusCode.NOT_FOUND, words)


def _rows(
    columns: Mapping[str, Column],
    parameters: Mapping[str, Any],
    metadata: Mapping[str, str],
    *,
    number: int,
) -> list[Asked]:
    lists = {
        name: column if isinstance(column, list) else column.tolist()
        for name, column in columns.items()
    }
    rows = []
    for values in zip(*lists.values(), strict=True):
        row = {name: _text(value) for name, value in zip(lists, values, strict=True)}
        rows.append(
            Asked(
                transaction_id=str(row.get(TRANSACTION_ID, "")),
                values=row,
                dry_run=parameters.get(DRY_RUN) is True,
                deadline_us=parameters.get(DEADLINE_US),
                metadata=metadata,
                request=number,
            )
        )
    return rows


def _text(value: object) -> object:
    if not isinstance(value, bytes):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value


def _refused(parameters: Mapping[str, Any]) -> str:
    """Return the error in the parameters, as the feature step does."""
    dry, left_us = parameters.get(DRY_RUN, False), parameters.get(DEADLINE_US, 1)
    if not isinstance(dry, bool):
        return f"{DRY_RUN}: {dry!r:.40}: is neither true nor false"
    if isinstance(left_us, bool) or not isinstance(left_us, int):
        return f"{DEADLINE_US}: {left_us!r:.40}: is not whole microseconds"
    return f"{DEADLINE_US}: no time left" if left_us <= 0 else ""

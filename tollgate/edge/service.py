"""Decide the requests of a device's ports, in the protobufs of the server."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tritonclient.grpc import service_pb2

from tollgate.edge.device import Ask, Device
from tollgate.features.spec.feature_spec import all_fields, wire_inputs
from tollgate.schema import ANSWER_TYPES, DRY_RUN
from tollgate.server.product_servicer import ProductServicer
from tollgate.server.wire_tensors import (
    Refused,
    all_refused,
    columns_of,
    encode_column,
    parameter_error,
    parameters_of,
    wire_type,
)

MOST_REQUEST_BYTES = 256 * 1024


class UnknownModel(Refused):
    """A request for another model than the product."""


class DeviceServicer(ProductServicer):
    """Answer requests of 1 to 32 rows."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._inputs = wire_inputs(device.spec)
        self._fields = all_fields(device.spec)
        super().__init__(
            device.manifest.product,
            inputs={**self._inputs, **self._fields},
            outputs=ANSWER_TYPES,
        )

    def decide(self, requests: Sequence[Any]) -> list[Any]:
        """
        Decide requests together; return the response to each, or its error.

        The error is Refused for a request that is wrong or has only bad rows, and
        otherwise one of `Device.decide`.
        """
        asks = [_attempt(self._read, one) for one in requests]
        try:
            self._device.answer([one for one in asks if isinstance(one, Ask)])
        except Exception as unforeseen:  # noqa: BLE001  no caller waits for ever
            return [unforeseen if isinstance(one, Ask) else one for one in asks]
        return [
            _attempt(self._write, request, ask) if isinstance(ask, Ask) else ask
            for request, ask in zip(requests, asks, strict=True)
        ]

    def _read(self, request: Any) -> Ask:
        if request.model_name != self.product:
            raise UnknownModel(self.unknown(request.model_name)[1])
        columns = columns_of(request, inputs=self._inputs, fields=self._fields)
        outputs = [one.name for one in request.outputs]
        if unknown := set(outputs) - set(ANSWER_TYPES):
            raise Refused(f"unexpected inference output '{min(unknown)}'")
        parameters = parameters_of(request)
        if error := parameter_error(parameters):
            rows = len(next(iter(columns.values())))
            raise Refused(all_refused(self.product, [error] * rows))
        return Ask(columns, dry_run=parameters.get(DRY_RUN, False))

    def _write(self, request: Any, ask: Ask) -> Any:
        if ask.error is not None:
            raise ask.error
        answer = ask.answer
        errors = answer["error"].tolist()
        if all(errors):
            raise Refused(all_refused(self.product, errors))
        response = service_pb2.ModelInferResponse(
            model_name=request.model_name, model_version="1", id=request.id
        )
        for name in [one.name for one in request.outputs] or ANSWER_TYPES:
            kind = wire_type(ANSWER_TYPES[name])
            response.outputs.add(name=name, datatype=kind, shape=(len(errors), 1))
            response.raw_output_contents.append(encode_column(answer[name], kind=kind))
        return response


def _attempt(work: Callable[..., Any], *arguments: Any) -> Any:
    """Return what the work returns or raises."""
    try:
        return work(*arguments)
    except Exception as error:  # noqa: BLE001  it is the answer to one caller
        return error

"""Serve a device's decisions over gRPC, in the protocol of the server."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tollgate.edge.device import Device
from tollgate.errors import InputError, SetupError, TollgateError
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

_WORKERS = 8  # requests in progress; they share a commit
_OPTIONS = (("grpc.so_reuseport", 0),)
_END_S = 5.0


class _Servicer(ProductServicer):
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

    def ModelInfer(self, request: Any, context: grpc.ServicerContext) -> Any:
        """Decide the rows of a request."""
        self.require_product(request.model_name, context)
        try:
            columns = columns_of(request, inputs=self._inputs, fields=self._fields)
            outputs = [one.name for one in request.outputs] or list(ANSWER_TYPES)
            if unknown := set(outputs) - set(ANSWER_TYPES):
                raise Refused(f"unexpected inference output '{min(unknown)}'")
            parameters = parameters_of(request)
            if error := parameter_error(parameters):
                rows = len(next(iter(columns.values())))
                raise Refused(all_refused(self.product, [error] * rows))
            dry_run = parameters.get(DRY_RUN, False)
            answer = self._device.decide(columns, dry_run=dry_run)
        except (Refused, InputError) as error:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except TollgateError as error:
            context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
        errors = answer["error"].tolist()
        if all(errors):
            text = all_refused(self.product, errors)
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, text)
        response = service_pb2.ModelInferResponse(
            model_name=request.model_name, model_version="1", id=request.id
        )
        for name in outputs:
            kind = wire_type(ANSWER_TYPES[name])
            response.outputs.add(name=name, datatype=kind, shape=(len(errors), 1))
            response.raw_output_contents.append(encode_column(answer[name], kind=kind))
        return response


class DeviceServer:
    """
    Serve a device on a port until it is closed; a context manager.

    Args:
        address: host:port to listen on; port 0 for any free one.

    Raises:
        SetupError: The port is in use, or cannot be used.

    Attributes:
        port: The port.
    """

    def __init__(self, device: Device, *, address: str) -> None:
        self._workers = ThreadPoolExecutor(_WORKERS)
        self._server = grpc.server(self._workers, options=_OPTIONS)
        service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(
            _Servicer(device), self._server
        )
        try:
            self.port = self._server.add_insecure_port(address)
        except RuntimeError as error:
            self._workers.shutdown()
            remedy = "stop the other process, or choose another port"
            raise SetupError(f"{address} cannot be used", remedy=remedy) from error
        self._server.start()

    def __enter__(self) -> DeviceServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Answer the requests in flight, and free the port."""
        self._server.stop(_END_S).wait()
        self._workers.shutdown()

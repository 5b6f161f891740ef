"""Serve a device's decisions over gRPC, in the protocol of the server."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import grpc
import uvloop
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tollgate.edge.device import Ask, Device
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
from tollgate.worker import Worker

_OPTIONS = (("grpc.so_reuseport", 0),)
_END_S = 5.0


class DeviceServicer(ProductServicer):
    """Answer requests of 1 to 32 rows."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._inputs = wire_inputs(device.spec)
        self._fields = all_fields(device.spec)
        self._arrived: list[tuple[Ask, asyncio.Future[Any]]] = []
        super().__init__(
            device.manifest.product,
            inputs={**self._inputs, **self._fields},
            outputs=ANSWER_TYPES,
        )

    async def ModelInfer(self, request: Any, context: Any) -> Any:
        """Decide the rows of a request, with those of others that have arrived."""
        if request.model_name != self.product:
            await context.abort(*self.unknown(request.model_name))
        try:
            ask = self._read(request)
            loop = asyncio.get_running_loop()
            answered = loop.create_future()
            self._arrived.append((ask, answered))
            if len(self._arrived) == 1:
                loop.call_soon(self._decide_arrived)
            return self._write(request, await answered)
        except (Refused, InputError) as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except TollgateError as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))

    def _decide_arrived(self) -> None:
        """
        Decide on the loop's own thread.

        There is no other work while the disk writes, and each change of threads would
        cost as much as a part of the decision.
        """
        arrived, self._arrived = self._arrived, []
        failed: Exception | None = None
        try:
            self._device.answer([ask for ask, _ in arrived])
        except Exception as unforeseen:  # noqa: BLE001  no caller waits for ever
            failed = unforeseen
        for ask, answered in arrived:
            if answered.done():  # its caller went away
                continue
            if (error := failed or ask.error) is not None:
                answered.set_exception(error)
            else:
                answered.set_result(ask.answer)

    def answer(self, request: Any) -> Any:
        """
        Decide the rows of a request; return the response.

        Raises:
            Refused: The request is wrong, or every row of it is.
            InputError: The device is closed.
            JournalError: The decisions could not be written to disk.
        """
        ask = self._read(request)
        self._device.answer([ask])
        if ask.error is not None:
            raise ask.error
        return self._write(request, ask.answer)

    def _read(self, request: Any) -> Ask:
        columns = columns_of(request, inputs=self._inputs, fields=self._fields)
        outputs = [one.name for one in request.outputs]
        if unknown := set(outputs) - set(ANSWER_TYPES):
            raise Refused(f"unexpected inference output '{min(unknown)}'")
        parameters = parameters_of(request)
        if error := parameter_error(parameters):
            rows = len(next(iter(columns.values())))
            raise Refused(all_refused(self.product, [error] * rows))
        return Ask(columns, dry_run=parameters.get(DRY_RUN, False))

    def _write(self, request: Any, answer: dict[str, Any]) -> Any:
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
        self._loop = uvloop.new_event_loop()
        self._stopped = threading.Event()
        self._worker = Worker(
            "edge-grpc",
            self._loop.run_forever,
            pause_s=0.0,
            at_once=True,
            stopped=self._stopped,
        )
        self._worker.start()
        try:
            self.port = self._run(self._open(device, address))
        except RuntimeError as error:
            self._end()
            remedy = "stop the other process, or choose another port"
            raise SetupError(f"{address} cannot be used", remedy=remedy) from error

    async def _open(self, device: Device, address: str) -> int:
        self._server = grpc.aio.server(options=_OPTIONS)
        service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(
            DeviceServicer(device), self._server
        )
        port = int(self._server.add_insecure_port(address))
        await self._server.start()
        return port

    def _run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def __enter__(self) -> DeviceServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Answer the requests in flight, and free the port."""
        self._run(self._server.stop(_END_S))
        self._end()

    def _end(self) -> None:
        self._stopped.set()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._worker.stop()
        self._loop.close()

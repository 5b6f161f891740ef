"""Report health and tensors of one product over gRPC, as Triton does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tollgate.schema import LIST_OUTPUTS
from tollgate.server.wire_tensors import wire_type


class ProductServicer(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    """
    Report health and tensors of one product; a subclass answers its requests.

    Args:
        product: Name of the ensemble.
        inputs: Type of each input and field of a request, by name.
        outputs: Triton's type of each output, by name.
    """

    def __init__(
        self, product: str, *, inputs: Mapping[str, str], outputs: Mapping[str, str]
    ) -> None:
        self.product = product
        self._tensors = inputs, outputs

    def ServerLive(self, request: Any, context: Any) -> Any:
        """Report that the process is live."""
        return service_pb2.ServerLiveResponse(live=True)

    def ServerReady(self, request: Any, context: Any) -> Any:
        """Report that the server is ready."""
        return service_pb2.ServerReadyResponse(ready=True)

    def ModelReady(self, request: Any, context: Any) -> Any:
        """Report whether a product is served."""
        return service_pb2.ModelReadyResponse(ready=request.name == self.product)

    def ModelMetadata(self, request: Any, context: Any) -> Any:
        """Describe the tensors."""
        self.require_product(request.name, context)
        described = service_pb2.ModelMetadataResponse(
            name=self.product, versions=["1"], platform="ensemble"
        )
        inputs, outputs = self._tensors
        for name, kind in inputs.items():
            described.inputs.add(name=name, datatype=kind, shape=(-1, 1))
        for name, kind in outputs.items():
            shape = (-1, -1 if name in LIST_OUTPUTS else 1)
            described.outputs.add(name=name, datatype=wire_type(kind), shape=shape)
        return described

    def require_product(self, name: str, context: grpc.ServicerContext) -> None:
        """Refuse a request for another model."""
        if name != self.product:
            context.abort(*self.unknown(name))

    def unknown(self, name: str) -> tuple[grpc.StatusCode, str]:
        """Return the status of a request for another model, in Triton's words."""
        words = f"Request for unknown model: '{name}' is not found"
        return grpc.StatusCode.NOT_FOUND, words

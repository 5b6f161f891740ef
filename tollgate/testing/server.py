"""A gRPC server that speaks the contract in this process and follows a script."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType, TracebackType
from typing import Any

import grpc
import msgspec
from tritonclient.grpc import service_pb2_grpc

from tollgate.schema import AMOUNT, EVENT_TIME, TRANSACTION_ID
from tollgate.testing.faults import Fault, Faults
from tollgate.testing.script import Answer, Asked, Rule, Script
from tollgate.testing.servicer import Servicer

_INPUTS = MappingProxyType(
    {
        TRANSACTION_ID: "BYTES",
        "customer_id": "BYTES",
        "terminal_id": "BYTES",
        AMOUNT: "FP64",
        EVENT_TIME: "INT64",
    }
)
_NO_FIELDS: Mapping[str, str] = MappingProxyType({})
_HOST = "127.0.0.1"
_WORKERS = 64  # requests that may be slow or stalled at the same time
_OPTIONS = (("grpc.so_reuseport", 0),)


class ServerTls(msgspec.Struct, frozen=True):
    """
    Configure the TLS of a test server; PEM.

    Attributes:
        certificate: The server's certificate.
        key: Its key.
        callers: CA of the callers' certificates; None requires none.
    """

    certificate: bytes
    key: bytes
    callers: bytes | None = None


class TestServer:
    """
    Serve one product, for as long as the context lasts.

    A row that breaks a rule of the contract gets its error, as from the real server;
    any other row gets an answer from the script: by id, else by rule, else `default`.

    Args:
        product: Name of the ensemble.
        inputs: Required inputs: name -> BYTES, FP64 or INT64.
        fields: Optional inputs, as features.yaml declares.
        default: The answer to a row without any other.
        tls: None serves without TLS.
    """

    __test__ = False  # otherwise pytest takes this class for a test

    def __init__(
        self,
        product: str = "fraud",
        *,
        inputs: Mapping[str, str] = _INPUTS,
        fields: Mapping[str, str] = _NO_FIELDS,
        default: Answer | None = None,
        tls: ServerTls | None = None,
    ) -> None:
        self._script = Script(default or Answer())
        self._faults = Faults()
        self._tls = tls
        self._servicer = Servicer(
            product,
            inputs=inputs,
            fields=fields,
            script=self._script,
            faults=self._faults,
        )
        self._server: Any = None
        self._workers: ThreadPoolExecutor | None = None
        self._port = 0

    @property
    def url(self) -> str:
        """Return its address, "host:port"."""
        return f"{_HOST}:{self._port}"

    @property
    def asked(self) -> list[Asked]:
        """Return every row requested so far, in order of arrival."""
        return self._script.requested()

    def answer(self, transaction_id: str, answer: Answer) -> None:
        """Set the answer to one transaction, from now on."""
        self._script.by_id(transaction_id, answer)

    def answer_by(self, rule: Rule) -> None:
        """
        Answer by a function of the row; if it returns None, the earlier answers apply.
        """
        self._script.by_rule(rule)

    def fail(
        self,
        code: str = "UNAVAILABLE",
        *,
        words: str = "scripted",
        requests: int | None = None,
    ) -> None:
        """Fail requests with a gRPC status, all or the next `requests`."""
        grpc.StatusCode[code]  # an unknown name fails here, not in a request
        self._faults.begin(Fault("fail", code=code, words=words), requests=requests)

    def slow(self, delay_s: float, *, requests: int | None = None) -> None:
        """Delay answers by `delay_s`, all or the next `requests`."""
        self._faults.begin(Fault("slow", delay_s=delay_s), requests=requests)

    def stall(self, *, requests: int | None = None) -> None:
        """Accept requests and answer none, until `heal`."""
        self._faults.begin(Fault("stall"), requests=requests)

    def drop(self) -> None:
        """Break every connection and accept no new one, until `heal`."""
        self._stop()

    def heal(self) -> None:
        """End every fault; stalled requests are answered now."""
        self._faults.end()
        if self._server is None:
            self._start()

    def __enter__(self) -> TestServer:
        self._start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop()

    def _start(self) -> None:
        workers = ThreadPoolExecutor(_WORKERS)
        server = grpc.server(workers, options=_OPTIONS)
        service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(
            self._servicer, server
        )
        where = f"{_HOST}:{self._port}"
        if self._tls is None:
            self._port = server.add_insecure_port(where)
        else:
            credentials = grpc.ssl_server_credentials(
                [(self._tls.key, self._tls.certificate)],
                root_certificates=self._tls.callers,
                require_client_auth=self._tls.callers is not None,
            )
            self._port = server.add_secure_port(where, credentials)
        server.start()
        self._server, self._workers = server, workers

    def _stop(self) -> None:
        server, self._server = self._server, None
        workers, self._workers = self._workers, None
        if server is not None and workers is not None:
            stopped = server.stop(None)
            self._faults.end()
            stopped.wait()
            workers.shutdown()

"""A gRPC server that speaks the contract in this process and follows a script."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType
from typing import Any

import grpc
import msgspec
import numpy as np
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tollgate.schema import (
    AMOUNT,
    ANSWER_TYPES,
    DEADLINE_US,
    DRY_RUN,
    EVENT_TIME,
    LIST_OUTPUTS,
    LIST_SIZE,
    MAX_LIST_SIZE,
    RANKED_TYPES,
    REASON_SEPARATOR,
    REQUEST_ID,
    TRANSACTION_ID,
)
from tollgate.server.product_servicer import ProductServicer
from tollgate.server.wire_tensors import (
    Column,
    Refused,
    all_refused,
    columns_of,
    encode_column,
    parameter_error,
    parameters_of,
    wire_type,
)
from tollgate.testing.script import (
    Answer,
    AnyAnswer,
    Asked,
    Fault,
    Faults,
    RankedAnswer,
    Rule,
    Script,
)
from tollgate.validation import check_rows

_LIST_SIZE = 10  # of a request without `count`


def response_of(
    answers: Sequence[AnyAnswer],
    request: service_pb2.ModelInferRequest,
    *,
    types: Mapping[str, str],
    size: int,
) -> service_pb2.ModelInferResponse:
    """
    Encode answers in the order of the rows; a bad one has its error only.

    Args:
        types: Outputs of the product: name -> Triton type.
        size: Number of items for each row, of a product that ranks.
    """
    rows: dict[str, list[Any]] = {name: [] for name in types}
    for one in answers:
        for name, value in _values(one, size=size).items():
            rows[name] += value if isinstance(value, list) else [value]
    response = service_pb2.ModelInferResponse(
        model_name=request.model_name, model_version="1", id=request.id
    )
    for name in [output.name for output in request.outputs] or list(types):
        kind = wire_type(types[name])
        shape = (len(answers), size if name in LIST_OUTPUTS else 1)
        response.outputs.add(name=name, datatype=kind, shape=shape)
        response.raw_output_contents.append(encode_column(rows[name], kind=kind))
    return response


def _values(answer: AnyAnswer, *, size: int) -> dict[str, Any]:
    bad = bool(answer.error)
    shared = {
        "degraded": 0 if bad else answer.degraded,
        "error": answer.error,
        "release": answer.release,
    }
    if isinstance(answer, RankedAnswer):
        items, scores, sources = answer.columns(size)
        return {"items": items, "scores": scores, "source": sources, **shared}
    return {
        "decision": "" if bad else answer.decision,
        "score": float("nan") if bad else answer.score,
        "reason_codes": "" if bad else REASON_SEPARATOR.join(answer.reason_codes),
        **shared,
    }


_STALL_STEP_S = (
    0.01  # between checks whether the caller of a stalled request still waits
)


class Servicer(ProductServicer):
    """Serve one product, by script."""

    def __init__(
        self,
        product: str,
        *,
        inputs: Mapping[str, str],
        fields: Mapping[str, str],
        ranks: bool,
        script: Script,
        faults: Faults,
    ) -> None:
        self._types = RANKED_TYPES if ranks else ANSWER_TYPES
        super().__init__(product, inputs={**inputs, **fields}, outputs=self._types)
        self._refusal: type[AnyAnswer] = RankedAnswer if ranks else Answer
        self._inputs = inputs
        self._fields = fields
        self._script = script
        self._faults = faults
        self._numbers = itertools.count()

    def ModelInfer(self, request: Any, context: grpc.ServicerContext) -> Any:
        """Answer 1 to 32 rows."""
        self.require_product(request.model_name, context)
        fault, healed = self._faults.take()
        try:
            columns = columns_of(request, inputs=self._inputs, fields=self._fields)
            parameters = parameters_of(request)
            answers = self._answers(parameters, columns, context)
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
            text = all_refused(self.product, [answer.error for answer in answers])
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, text)
        size = parameters.get(LIST_SIZE, _LIST_SIZE)
        return response_of(answers, request, types=self._types, size=size)

    def _answers(
        self,
        parameters: Mapping[str, Any],
        columns: Mapping[str, Column],
        context: grpc.ServicerContext,
    ) -> Sequence[AnyAnswer]:
        """Record the rows, and find the answer to each; a bad one gets its error."""
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
        refused = parameter_error(parameters)
        if not refused and self._types is RANKED_TYPES:
            refused = _refused_size(parameters)
        return [
            self._refusal(error=error)
            if (error := errors.get(place, refused))
            else self._script.answer(row)
            for place, row in enumerate(rows)
        ]


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
                transaction_id=str(row.get(TRANSACTION_ID, row.get(REQUEST_ID, ""))),
                values=row,
                dry_run=parameters.get(DRY_RUN) is True,
                deadline_us=parameters.get(DEADLINE_US),
                metadata=metadata,
                request=number,
                count=parameters.get(LIST_SIZE),
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


def _refused_size(parameters: Mapping[str, Any]) -> str:
    """Return the error in the number of items, as the ranking step does."""
    size = parameters.get(LIST_SIZE, _LIST_SIZE)
    whole = isinstance(size, int) and not isinstance(size, bool)
    if whole and 1 <= size <= MAX_LIST_SIZE:
        return ""
    return f"{LIST_SIZE}: {size!r:.40}: is not a number from 1 to {MAX_LIST_SIZE}"


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
    """Hold a test server's TLS, PEM; `callers` is the callers' CA, None for none."""

    certificate: bytes
    key: bytes
    callers: bytes | None = None


class TestServer:
    """
    Serve one product, for as long as the context lasts.

    A row that breaks a rule of the contract gets its error, as from the real server;
    any other row gets an answer from the script: by id, else by rule, else `default`.

    Args:
        inputs: Required inputs: name -> BYTES, FP64 or INT64.
        default: The answer to a row without any other; a `RankedAnswer` makes it a
            product that ranks, of which `inputs` are `request_id` and so on.
        tls: None serves without TLS.
    """

    __test__ = False  # otherwise pytest takes this class for a test

    def __init__(
        self,
        product: str = "fraud",
        *,
        inputs: Mapping[str, str] = _INPUTS,
        fields: Mapping[str, str] = _NO_FIELDS,
        default: AnyAnswer | None = None,
        tls: ServerTls | None = None,
    ) -> None:
        self._script = Script(default or Answer())
        self._faults = Faults()
        self._tls = tls
        self._servicer = Servicer(
            product,
            inputs=inputs,
            fields=fields,
            ranks=isinstance(default, RankedAnswer),
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

    def answer(self, transaction_id: str, answer: AnyAnswer) -> None:
        """Set the answer to one transaction, or one request, from now on."""
        self._script.by_id(transaction_id, answer)

    def answer_by(self, rule: Rule) -> None:
        """Answer by a function of the row; if it gives None, earlier answers apply."""
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

    def __exit__(self, *_: object) -> None:
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

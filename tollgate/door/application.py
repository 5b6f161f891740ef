"""
The ASGI application: routes, bodies, headers and statuses.

It needs no framework: eleven routes, each with POST, or with GET and HEAD. A request is
read to its end, decided with the rows of all other callers, and answered as a whole.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, cast

import msgspec

from tollgate import __version__
from tollgate.door.admission import Admission
from tollgate.door.answers import in_order, rows_answer, source_of
from tollgate.door.callers import Callers
from tollgate.door.deciders import Decider, Deciders
from tollgate.door.door_metrics import DoorMetrics
from tollgate.door.inference import (
    metadata,
    read_inference,
    write_inference,
)
from tollgate.door.json_rows import JsonRows, read_rows
from tollgate.door.openapi import openapi_document
from tollgate.door.products import DoorProduct
from tollgate.door.refusal import (
    JSON,
    PROBLEM_JSON,
    Refusal,
    inference_error_body,
    problem_body,
)
from tollgate.door.request_parts import (
    dry_run_of,
    require_json,
    take_idempotency_key,
    timeout_of,
)
from tollgate.errors import trace_of
from tollgate_client import (
    InvalidRequest,
    Outcome,
    RecommendationOutcome,
)

log = logging.getLogger(__name__)

_BINARY_HEADER = b"inference-header-content-length"
_MOST_DISCARDED = 16 * 2**20  # bytes of a body that is too large
_DECIDE, _RANK = "/decide/", "/rank/"
_V2 = "/v2"
_MODELS = "/v2/models/"

Scope = Mapping[str, Any]
Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

_encode = msgspec.json.Encoder().encode


class Limits(msgspec.Struct, frozen=True):
    """
    Bounds of what callers may ask for.

    Attributes:
        body_bytes: Largest body.
        rows: Maximum number of rows in a request.
        rows_in_flight: Maximum number of rows in flight, of all callers.
        caller_rows_in_flight: The same, of one caller.
        body_timeout_s: Longest time that a body may take to arrive, s.
    """

    body_bytes: int = 256 * 1024
    rows: int = 256
    rows_in_flight: int = 1024
    caller_rows_in_flight: int = 768
    body_timeout_s: float = 5.0


class _Request(msgspec.Struct, frozen=True):
    """A request after its headers."""

    headers: dict[bytes, bytes]
    query: bytes
    receive: Receive
    argument: str  # product in the path; empty for none


class _Response(msgspec.Struct, frozen=True):
    body: bytes
    status: int = 200
    media_type: str = JSON
    headers: Mapping[str, str] = {}


_Handler = Callable[[_Request], Awaitable[_Response]]


class _Route(msgspec.Struct, frozen=True):
    """A route: its name in metrics, its method, and what answers it."""

    name: str
    method: str
    answer: _Handler


class DoorApplication:
    """
    Answer HTTP requests of callers that speak JSON; an ASGI 3 application.

    Args:
        open_deciders: Called inside the event loop, before the first request.
        started: Called inside the event loop once all is ready; starts what runs in the
            background, and returns a function that ends it.
    """

    def __init__(
        self,
        open_deciders: Callable[[], Deciders],
        *,
        callers: Callers,
        limits: Limits,
        started: Callable[[DoorApplication], Callable[[], None]] | None = None,
    ) -> None:
        self._open_deciders = open_deciders
        self._started = started
        self._callers = callers
        self._limits = limits
        self._admission = Admission(
            most_rows=limits.rows_in_flight,
            most_of_caller=limits.caller_rows_in_flight,
        )
        self.deciders: Deciders | None = None
        self.metrics = DoorMetrics(self._counters)
        self.metrics.rows_in_flight.set_function(lambda: self._admission.rows)
        self.metrics.row_limit.set(limits.rows_in_flight)
        self._loop: asyncio.AbstractEventLoop | None = None
        # Bodies that are being read, with the loop's time at their beginning.
        self._reading: dict[asyncio.Task[Any], float] = {}
        self._sweep: asyncio.TimerHandle | None = None
        self._document: dict[str, Any] = {}  # of OpenAPI, once somebody reads it
        self._routes = {
            "/": _Route("index", "GET", self._index),
            "/openapi.json": _Route("openapi", "GET", self._openapi),
            "/decide": _Route("decide", "POST", self._decide),
            _V2: _Route("v2", "GET", self._server_metadata),
            "/v2/health/live": _Route("live", "GET", self._live),
            "/v2/health/ready": _Route("ready", "GET", self._ready),
        }
        # The product is in the path: of those that decide, and of those that rank.
        self._rows = {
            _DECIDE: _Route("decide", "POST", self._decide),
            _RANK: _Route("rank", "POST", self._rank),
        }
        self._models = {
            "": _Route("model", "GET", self._model),
            "/ready": _Route("model_ready", "GET", self._model_ready),
            "/infer": _Route("infer", "POST", self._infer),
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or start and stop the application."""
        if scope["type"] == "lifespan":
            await self._live_through(receive, send)
        elif scope["type"] == "http":
            await self._serve(scope, receive, send)

    async def _live_through(self, receive: Receive, send: Send) -> None:
        await receive()
        self._loop = asyncio.get_running_loop()
        try:
            self.deciders = self._open_deciders()
            end = self._started(self) if self._started else None
        except Exception as error:  # noqa: BLE001 - it must not serve half of it
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            return
        self._give_up_slow_bodies()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        if end is not None:
            end()
        assert self._sweep is not None
        self._sweep.cancel()
        await self.deciders.close()
        await send({"type": "lifespan.shutdown.complete"})

    @property
    def products(self) -> list[DoorProduct]:
        """Return the products that are served, the first one first."""
        return self.deciders.products if self.deciders is not None else []

    def follow(self, product: DoorProduct) -> None:
        """Serve a newer release of a product; any thread may call it."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._follow, product)

    def _follow(self, product: DoorProduct) -> None:
        assert self.deciders is not None
        self.deciders.follow(product)
        self._document = {}

    def _counters(self) -> Mapping[str, Any]:
        return self.deciders.counters() if self.deciders is not None else {}

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        path, method = scope["path"], scope["method"]
        head = method == "HEAD"
        name = "other"
        try:
            route, argument = self._find(path)
            name = route.name
            if ("GET" if head else method) != route.method:
                allowed = "GET, HEAD" if route.method == "GET" else route.method
                problem = f"{path!r:.80} takes {allowed}, not {method:.20}"
                raise Refusal(405, problem, headers={"allow": allowed})
            response = await route.answer(
                _Request(
                    headers=dict(scope["headers"]),
                    query=scope["query_string"],
                    receive=receive,
                    argument=argument,
                )
            )
        except Refusal as refusal:
            response = _refused(refusal, path)
        except Exception as error:  # noqa: BLE001 - no caller waits for ever
            # The message of an error may contain a customer's data.
            log.error("a request failed: %s", trace_of(error))
            response = _refused(Refusal(500, "the door failed; see its log"), path)
        self.metrics.request(name, response.status, loop.time() - started_s)
        await send(
            {
                "type": "http.response.start",
                "status": response.status,
                "headers": _headers(response),
            }
        )
        body = b"" if head else response.body
        await send({"type": "http.response.body", "body": body})

    def _find(self, path: str) -> tuple[_Route, str]:
        """
        Find the route of a path, and the product in it.

        Raises:
            Refusal: There is none.
        """
        route = self._routes.get(path)
        if route is not None:
            return route, ""
        for prefix, rows in self._rows.items():
            product = path.removeprefix(prefix)
            if product and product != path and "/" not in product:
                return rows, product
        if path.startswith(_MODELS):
            product, slash, rest = path[len(_MODELS) :].partition("/")
            found = self._models.get(slash + rest)
            if product and found is not None:
                return found, product
        raise Refusal(404, f"{path!r:.80} is no path; GET / lists them")

    # Decisions.

    async def _decide(self, request: _Request) -> _Response:
        return await self._answer_rows(request, ranks=False)

    async def _rank(self, request: _Request) -> _Response:
        return await self._answer_rows(request, ranks=True)

    async def _answer_rows(self, request: _Request, *, ranks: bool) -> _Response:
        caller = self._caller(request)
        self._require(self._decider(request), ranks=ranks)
        deadline_s = timeout_of(request.headers)
        dry_run = dry_run_of(request.query)
        held = self._admit(caller, 1)
        try:
            body = await self._read_body(request)
            arrived_s = asyncio.get_running_loop().time()
            parsed = read_rows(body, most=self._limits.rows)
            product = self._decider(request).product
            take_idempotency_key(request.headers, parsed, id_name=product.id_name)
            held += self._admit(caller, len(parsed.rows) - 1)
            return await self._decide_rows(
                self._decider(request),
                parsed,
                dry_run=dry_run,
                arrived_s=arrived_s,
                deadline_s=deadline_s,
                traceparent=_traceparent(request.headers),
            )
        finally:
            self._admission.release(caller, held)

    async def _decide_rows(
        self,
        decider: Decider,
        parsed: JsonRows,
        *,
        dry_run: bool,
        arrived_s: float,
        deadline_s: float | None,
        traceparent: str,
    ) -> _Response:
        product = decider.product
        outcomes = in_order(
            parsed,
            await decider.decide_each(
                parsed.usable,
                dry_run=dry_run,
                arrived_s=arrived_s,
                deadline_s=deadline_s,
                traceparent=traceparent,
            ),
        )
        for outcome in outcomes:
            self._count(product, outcome)
        return _Response(_encode(rows_answer(parsed, outcomes, product)))

    async def _infer(self, request: _Request) -> _Response:
        caller = self._caller(request)
        self._require(self._decider(request), ranks=False)
        timeout_s = timeout_of(request.headers)
        dry_run = dry_run_of(request.query)
        if _BINARY_HEADER in request.headers:
            raise Refusal(400, "binary tensors are not supported; send JSON")
        held = self._admit(caller, 1)
        try:
            body = await self._read_body(request)
            arrived_s = asyncio.get_running_loop().time()
            decider = self._decider(request)
            wanted = read_inference(body, decider.product, most=self._limits.rows)
            held += self._admit(caller, len(wanted.rows) - 1)
            outcomes = await decider.decide_each(
                wanted.rows,
                dry_run=dry_run or wanted.dry_run,
                arrived_s=arrived_s,
                deadline_s=_shorter(wanted.deadline_s, timeout_s),
                traceparent=_traceparent(request.headers),
            )
        finally:
            self._admission.release(caller, held)
        decisions = cast("list[Outcome]", outcomes)  # as its product decides
        for outcome in decisions:
            self._count(decider.product, outcome)
        if all(isinstance(outcome, InvalidRequest) for outcome in decisions):
            lines = (f"row {row}: {one}" for row, one in enumerate(decisions))
            raise Refusal(400, "\n".join(lines))
        return _Response(
            _encode(write_inference(wanted, decisions, product=decider.product))
        )

    def _count(
        self, product: DoorProduct, outcome: Outcome | RecommendationOutcome
    ) -> None:
        if isinstance(outcome, InvalidRequest):
            self.metrics.row(product.name, "refused")
        else:
            self.metrics.row(product.name, source_of(outcome))

    def _require(self, decider: Decider, *, ranks: bool) -> None:
        """
        Check what a product answers with.

        Raises:
            Refusal: It has another route.
        """
        product = decider.product
        if ranks != (product.ranking is not None):
            does, prefix = ("decides", _DECIDE) if ranks else ("ranks items", _RANK)
            problem = f"{product.name} {does}: POST {prefix}{product.name}"
            raise Refusal(404, problem)

    def _caller(self, request: _Request) -> str:
        """
        Identify the caller, and check that there is the product.

        Raises:
            Refusal: The key is wrong, or there is no such product.
        """
        caller = self._callers.identify(request.headers.get(b"authorization"))
        self._decider(request)
        return caller

    def _decider(self, request: _Request) -> Decider:
        """
        Return the product's decider; a newer release may replace it at each `await`.

        Raises:
            Refusal: There is no such product.
        """
        assert self.deciders is not None
        return self.deciders.find(request.argument)

    def _admit(self, caller: str, rows: int) -> int:
        if rows:
            self._admission.admit(caller, rows)
        return rows

    async def _read_body(self, request: _Request) -> bytes:
        """
        Read a JSON body.

        Raises:
            Refusal: It is no JSON by its type, too large, or too slow.
        """
        headers, most = request.headers, self._limits.body_bytes
        require_json(headers)
        length = headers.get(b"content-length", b"")
        size = int(length) if length.isdigit() and len(length) < 20 else None
        if size is not None and size > _MOST_DISCARDED:
            raise Refusal(413, _too_large(most))
        task = asyncio.current_task()
        assert task is not None
        self._reading[task] = asyncio.get_running_loop().time()
        try:
            return await _body_of(request.receive, size=size, most=most)
        except asyncio.CancelledError:
            if task in self._reading:
                raise
            wait_s = self._limits.body_timeout_s
            problem = f"the body did not arrive within {wait_s:g} s"
            raise Refusal(408, problem) from None
        finally:
            self._reading.pop(task, None)

    def _give_up_slow_bodies(self) -> None:
        """Cancel the reading of bodies that take too long; one timer serves all."""
        assert self._loop is not None
        wait_s = self._limits.body_timeout_s
        oldest_s = self._loop.time() - wait_s
        for task, since_s in list(self._reading.items()):
            if since_s > oldest_s:
                break  # they are in the order in which they began
            del self._reading[task]
            task.cancel()
        self._sweep = self._loop.call_later(wait_s / 4, self._give_up_slow_bodies)

    # Health and descriptions.

    async def _live(self, request: _Request) -> _Response:
        return _Response(_encode({"live": True}))

    async def _ready(self, request: _Request) -> _Response:
        return _Response(_encode({"ready": True}))

    async def _index(self, request: _Request) -> _Response:
        paths = sorted(self._described()["paths"])
        return _Response(_encode({"name": "tollgate door", "paths": paths}))

    async def _openapi(self, request: _Request) -> _Response:
        return _Response(_encode(self._described()))

    def _described(self) -> dict[str, Any]:
        # Anybody may read it, and writing it takes as long as deciding many rows.
        if not self._document:
            self._document = openapi_document(self.products, limits=self._limits)
        return self._document

    async def _server_metadata(self, request: _Request) -> _Response:
        found = {"name": "tollgate-door", "version": __version__, "extensions": []}
        return _Response(_encode(found))

    async def _model(self, request: _Request) -> _Response:
        self._caller(request)
        self._require(self._decider(request), ranks=False)
        return _Response(_encode(metadata(self._decider(request).product)))

    async def _model_ready(self, request: _Request) -> _Response:
        self._caller(request)
        decider = self._decider(request)
        name = decider.product.name
        if not await decider.server_ready():
            raise Refusal(503, f"no server says that it serves {name}")
        return _Response(_encode({"name": name, "ready": True}))


async def _body_of(receive: Receive, *, size: int | None, most: int) -> bytes:
    """
    Collect the parts of a body.

    Args:
        size: Declared size; the last part need not be waited for then.

    Raises:
        Refusal: It is too large, or its sender went away.
    """
    parts: list[bytes] = []
    read = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Refusal(400, "the caller went away")
        part = message.get("body", b"")
        read += len(part)
        ended = read == size or not message.get("more_body", False)
        if read > most:
            # A caller that still writes would not read the refusal.
            parts.clear()
            if ended or read > _MOST_DISCARDED:
                raise Refusal(413, _too_large(most))
            continue
        if ended:
            return b"".join([*parts, part]) if parts else bytes(part)
        parts.append(part)


def _too_large(most: int) -> str:
    return f"the body is larger than {most} bytes"


def _shorter(one_s: float | None, other_s: float | None) -> float | None:
    found = [value for value in (one_s, other_s) if value is not None]
    return min(found, default=None)


def _traceparent(headers: Mapping[bytes, bytes]) -> str:
    """Return the W3C trace context; the client drops a malformed one."""
    return headers.get(b"traceparent", b"").decode("latin-1")


def _refused(refusal: Refusal, path: str) -> _Response:
    in_v2 = path.startswith(_V2)
    body = inference_error_body(refusal) if in_v2 else problem_body(refusal)
    media_type = JSON if in_v2 else PROBLEM_JSON
    return _Response(body, refusal.status, media_type, refusal.headers)


def _headers(response: _Response) -> Sequence[tuple[bytes, bytes]]:
    found = [
        (b"content-type", response.media_type.encode()),
        (b"content-length", str(len(response.body)).encode()),
    ]
    if response.headers:
        found += [
            (name.encode(), value.encode()) for name, value in response.headers.items()
        ]
    return found

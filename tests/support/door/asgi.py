"""An ASGI client: starts the application, sends requests to it, and stops it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from tollgate.door.application import DoorApplication, Limits
from tollgate.door.callers import Callers
from tollgate.door.deciders import Deciders, Upstream
from tollgate.door.products import DoorProduct

FRAUD = DoorProduct(
    name="fraud",
    release="test-1",
    inputs={
        "transaction_id": "BYTES",
        "customer_id": "BYTES",
        "terminal_id": "BYTES",
        "amount": "FP64",
        "event_time": "INT64",
    },
    fields={},
    outcomes=("approve", "review", "decline"),
    reasons={"LARGE_AMOUNT": "The amount is unusually large."},
)
JSON = {"content-type": "application/json"}
LIMITS = Limits()


class Response(msgspec.Struct, frozen=True):
    """The application's response."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)


class Application:
    """A started application."""

    def __init__(self, door: DoorApplication) -> None:
        self.door = door

    async def send(
        self,
        method: str,
        path: str,
        *,
        body: bytes | object = b"",
        headers: dict[str, str] = JSON,
        query: str = "",
        parts: Sequence[bytes] | None = None,
        before_last: Callable[[], Awaitable[object]] | None = None,
    ) -> Response:
        """
        Send a request.

        Args:
            parts: Parts in which the body arrives.
            before_last: Awaited before the last of them arrives.
        """
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        pieces = list(parts) if parts is not None else [content]
        pending = [
            {"type": "http.request", "body": one, "more_body": at < len(pieces) - 1}
            for at, one in enumerate(pieces)
        ]
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            if len(pending) == 1 and before_last is not None:
                await before_last()
            if pending:
                return pending.pop(0)
            await asyncio.sleep(3600)
            raise AssertionError

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        await self.door(
            {
                "type": "http",
                "method": method,
                "path": path,
                "query_string": query.encode(),
                "headers": [
                    (name.encode(), value.encode(errors="surrogateescape"))
                    for name, value in headers.items()
                ],
            },
            receive,
            send,
        )
        start, end = sent
        found = {name.decode(): value.decode() for name, value in start["headers"]}
        return Response(start["status"], found, end["body"])

    async def post(self, path: str, body: bytes | object, **more: Any) -> Response:
        """Send a body of JSON."""
        return await self.send("POST", path, body=body, **more)


@asynccontextmanager
async def opened(
    upstream: Upstream,
    *,
    products: Sequence[DoorProduct] = (FRAUD,),
    callers: Callers | None = None,
    limits: Limits = LIMITS,
) -> AsyncIterator[Application]:
    """Start an application inside an event loop, and stop it at the end."""
    door = DoorApplication(
        lambda: Deciders(products, upstream),
        callers=callers or Callers(None),
        limits=limits,
    )
    events: asyncio.Queue[dict[str, str]] = asyncio.Queue()
    said: asyncio.Queue[str] = asyncio.Queue()

    async def say(message: dict[str, str]) -> None:
        await said.put(message["type"])

    life = asyncio.create_task(door({"type": "lifespan"}, events.get, say))
    await events.put({"type": "lifespan.startup"})
    assert await said.get() == "lifespan.startup.complete"
    assert door.deciders is not None
    for name in door.deciders.counters():
        await door.deciders.find(name).client.wait_ready(30)
    yield Application(door)
    await events.put({"type": "lifespan.shutdown"})
    assert await said.get() == "lifespan.shutdown.complete"
    await life

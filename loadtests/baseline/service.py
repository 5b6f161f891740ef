"""
The HTTP routes: FastAPI, with few of its features.

The service does not use FastAPI's handling of typed arguments: its routes are plain
ones of Starlette. msgspec reads and writes the bodies.
"""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Annotated, Any, TypeVar

import msgspec
from fastapi import FastAPI, Request, Response
from redis.exceptions import RedisError

MAX_ROWS = 32  # of a request, and of a batch

_JSON = "application/json"

Purchase = TypeVar("Purchase")


class BadRows(Exception):
    """Rows that break a rule, each with an error message."""

    def __init__(self, errors: dict[int, str]) -> None:
        super().__init__(
            "\n".join(f"row {row}: {text}" for row, text in errors.items())
        )


class Answers(msgspec.Struct, frozen=True, eq=False):
    """Answers to N rows, as columns."""

    decision: list[str]
    score: list[float]
    reason_codes: list[list[str]]

    def part(self, start: int, stop: int) -> Answers:
        """Return the answers to some rows."""
        return Answers(
            self.decision[start:stop],
            self.score[start:stop],
            self.reason_codes[start:stop],
        )


class Answer(msgspec.Struct, gc=False):
    """Answer to a single purchase."""

    decision: str
    score: float
    reason_codes: list[str]


def service(
    purchase: type[Purchase],
    *,
    decide: Callable[[list[Purchase]], Awaitable[Answers]],
    begin: Callable[[], Awaitable[Any]],
    end: Callable[[], Awaitable[Any]],
) -> FastAPI:
    """
    Make the application of one worker.

    Args:
        purchase: Type of a row, as msgspec reads it.
        decide: Decides the rows of one request.
        begin: Prepares the worker before its first request.
        end: Closes what it opened.
    """

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await begin()
        # The garbage collector need not scan the objects of the start again.
        gc.collect()
        gc.freeze()
        yield
        await end()

    app = FastAPI(lifespan=lifespan, openapi_url=None)
    rows = Annotated[list[purchase], msgspec.Meta(min_length=1, max_length=MAX_ROWS)]
    read_one = msgspec.json.Decoder(purchase).decode
    read_many = msgspec.json.Decoder(rows).decode
    write = msgspec.json.Encoder().encode

    async def decide_one(request: Request) -> Response:
        try:
            answers = await decide([read_one(await request.body())])
        except (msgspec.MsgspecError, BadRows, RedisError) as error:
            return _refused(error)
        answer = Answer(answers.decision[0], answers.score[0], answers.reason_codes[0])
        return Response(write(answer), media_type=_JSON)

    async def decide_many(request: Request) -> Response:
        try:
            answers = await decide(read_many(await request.body()))
        except (msgspec.MsgspecError, BadRows, RedisError) as error:
            return _refused(error)
        return Response(write(answers), media_type=_JSON)

    app.add_route("/decide", decide_one, methods=["POST"])
    app.add_route("/decide/batch", decide_many, methods=["POST"])
    return app


def _refused(error: Exception) -> Response:
    status = 503 if isinstance(error, RedisError) else 422
    return Response(str(error), status_code=status, media_type="text/plain")

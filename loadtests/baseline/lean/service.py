"""
The HTTP routes: FastAPI, with few of its features.

The service does not use FastAPI's handling of typed arguments: its routes are plain
ones of Starlette. msgspec reads and writes the bodies; a decision makes one round trip
to Redis, which blocks no thread; onnxruntime runs the model in the same process;
features, policy and journal are our own library.
"""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import msgspec
from fastapi import FastAPI, Request, Response
from redis.exceptions import RedisError

from loadtests.baseline.gatherer import MAX_ROWS, BadRows
from loadtests.baseline.lean.rows import Answers
from loadtests.baseline.lean.work import Purchase, Work

Decide = Callable[[list[Purchase]], Awaitable[Answers]]

_JSON = "application/json"


class Answer(msgspec.Struct, gc=False):
    """Answer to a single purchase."""

    decision: str
    score: float
    reason_codes: list[str]


def service(work: Work, *, decide: Decide) -> FastAPI:
    """
    Make the application of one worker.

    Args:
        work: State of the worker; starts and ends with the application.
        decide: Decides the rows of one request.
    """

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await work.begin()
        # The garbage collector need not scan the objects of the start again.
        gc.collect()
        gc.freeze()
        yield
        await work.end()

    app = FastAPI(lifespan=lifespan, openapi_url=None)
    read_one = msgspec.json.Decoder(Purchase).decode
    read_many = msgspec.json.Decoder(list[Purchase]).decode
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
            purchases = read_many(await request.body())
            if not 0 < len(purchases) <= MAX_ROWS:
                problem = f"{len(purchases)} rows; 1 to {MAX_ROWS} are allowed"
                raise msgspec.ValidationError(problem)
            answers = await decide(purchases)
        except (msgspec.MsgspecError, BadRows, RedisError) as error:
            return _refused(error)
        return Response(write(answers), media_type=_JSON)

    app.add_route("/decide", decide_one, methods=["POST"])
    app.add_route("/decide/batch", decide_many, methods=["POST"])
    return app


def _refused(error: Exception) -> Response:
    status = 503 if isinstance(error, RedisError) else 422
    return Response(str(error), status_code=status, media_type="text/plain")

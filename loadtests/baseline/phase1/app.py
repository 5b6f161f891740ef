"""
The first version after its first profile: still one process, still row by row.

    uvicorn loadtests.baseline.phase1.app:app

Changes: msgspec instead of pydantic reads the body and writes the answer; purchases
are packed in Redis instead of stored as JSON, and windows are sums over NumPy columns
instead of data frames; XGBoost gets an array, and one thread; the function is
asynchronous, so that a request waits for Redis without occupying a thread.
"""

from __future__ import annotations

import logging
from time import perf_counter_ns
from typing import Annotated

import msgspec
import redis.asyncio
import xgboost
from fastapi import FastAPI, Request, Response

from loadtests.baseline import environment
from loadtests.baseline.clock import LayerClock
from loadtests.baseline.naive.rules import decide
from loadtests.baseline.phase1.history import (
    FEATURES,
    KEPT_CUSTOMER_US,
    KEPT_TERMINAL_US,
    entry_of,
    features_of,
)

Id = Annotated[str, msgspec.Meta(min_length=1, max_length=128)]

app = FastAPI()
store = redis.asyncio.Redis.from_url(environment.store_url())
model = xgboost.XGBClassifier()
model.load_model(environment.model_path())
model.set_params(n_jobs=1)
clock = LayerClock(environment.folder())
journal = logging.getLogger("decisions")
journal.addHandler(logging.FileHandler(environment.folder() / "decisions.log"))
journal.setLevel(logging.INFO)


class Purchase(msgspec.Struct):
    """A purchase, as a request contains it."""

    transaction_id: Id
    customer_id: Id
    terminal_id: Id
    amount: Annotated[float, msgspec.Meta(ge=0, le=10_000_000)]
    event_time: int


class Answer(msgspec.Struct):
    """Answer to a request."""

    decision: str
    score: float
    reason_codes: list[str]


read = msgspec.json.Decoder(Purchase).decode


@app.post("/decide")
async def decide_purchase(request: Request) -> Response:
    """Decide one purchase."""
    try:
        purchase = read(await request.body())
    except msgspec.MsgspecError as error:
        return Response(str(error), status_code=422, media_type="text/plain")
    cents = round(purchase.amount * 100)
    start_ns = perf_counter_ns()
    customer, terminal, stolen = await _remember(purchase, cents)
    stored = perf_counter_ns()
    vector = features_of(
        cents, time_us=purchase.event_time, customer=customer, terminal=terminal
    )
    made = perf_counter_ns()
    score = float(model.predict_proba(vector[None].astype("float32"))[0, 1])
    scored = perf_counter_ns()
    features = dict(zip(FEATURES, vector.tolist(), strict=True))
    decision, reasons = decide(
        features,
        score=score,
        stolen=stolen,
        new=len(customer) == 1 or len(terminal) == 1,
    )
    answer = msgspec.json.encode(Answer(decision, score, reasons))
    journal.info("%s", msgspec.json.encode((purchase, features)) + answer)
    clock.add(start_ns, stored, made, scored, perf_counter_ns())
    return Response(answer, media_type="application/json")


async def _remember(
    purchase: Purchase, cents: int
) -> tuple[list[bytes], list[bytes], bool]:
    """Store a purchase; return the entries of both ids, and if the card is stolen."""
    time_us = purchase.event_time
    entry = entry_of(purchase.transaction_id, time_us=time_us, cents=cents)
    pipeline = store.pipeline(transaction=False)
    for key, kept_us in (
        (f"customer:{purchase.customer_id}", KEPT_CUSTOMER_US),
        (f"terminal:{purchase.terminal_id}", KEPT_TERMINAL_US),
    ):
        pipeline.zadd(key, {entry: time_us})
        pipeline.zremrangebyscore(key, "-inf", time_us - kept_us)
        pipeline.zrangebyscore(key, "-inf", time_us)
    pipeline.sismember("stolen_cards", purchase.customer_id)
    replies = await pipeline.execute()
    return replies[2], replies[5], bool(replies[6])

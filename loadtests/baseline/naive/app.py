"""
A first version: FastAPI, pydantic, pandas, XGBoost's own interface, one process.

    uvicorn loadtests.baseline.naive.app:app

It follows the documentation of these libraries: a typed body, a plain function that
FastAPI runs in its threads because it waits for Redis, one pipeline to the store, a
data frame as the model was trained with, a line in a log per decision.
"""

from __future__ import annotations

import json
import logging

import pandas as pd
import redis
import xgboost
from fastapi import FastAPI
from pydantic import BaseModel, Field

from loadtests.baseline import environment
from loadtests.baseline.naive.features import (
    KEPT_CUSTOMER,
    KEPT_TERMINAL,
    features_of,
    history,
)
from loadtests.baseline.naive.rules import decide

app = FastAPI()
store = redis.Redis.from_url(environment.store_url())
model = xgboost.XGBClassifier()
model.load_model(environment.model_path())
journal = logging.getLogger("decisions")
journal.addHandler(logging.FileHandler(environment.folder() / "decisions.log"))
journal.setLevel(logging.INFO)


class Purchase(BaseModel):
    """A purchase, as a request contains it."""

    transaction_id: str = Field(min_length=1, max_length=128)
    customer_id: str = Field(min_length=1, max_length=128)
    terminal_id: str = Field(min_length=1, max_length=128)
    amount: float = Field(ge=0, le=10_000_000)
    event_time: int = Field(description="microseconds since 1970, UTC")


class Answer(BaseModel):
    """Answer to a request."""

    decision: str
    score: float
    reason_codes: list[str]


@app.post("/decide")
def decide_purchase(purchase: Purchase) -> Answer:
    """Decide one purchase."""
    customer, terminal, stolen = _remember(purchase)
    customers, terminals = history(customer), history(terminal)
    features = features_of(
        purchase.amount,
        time=pd.Timestamp(purchase.event_time, unit="us"),
        customer=customers,
        terminal=terminals,
    )
    score = float(model.predict_proba(pd.DataFrame([features]))[0, 1])
    decision, reasons = decide(
        features,
        score=score,
        stolen=stolen,
        new=len(customers) == 1 or len(terminals) == 1,
    )
    answer = Answer(decision=decision, score=score, reason_codes=reasons)
    journal.info(
        json.dumps({**purchase.model_dump(), **features, **answer.model_dump()})
    )
    return answer


def _remember(purchase: Purchase) -> tuple[list[bytes], list[bytes], bool]:
    """Store a purchase; return the entries of both ids, and if the card is stolen."""
    time = purchase.event_time
    customer = f"customer:{purchase.customer_id}"
    terminal = f"terminal:{purchase.terminal_id}"
    entry = json.dumps(
        {
            "id": purchase.transaction_id,
            "time": time,
            "amount": purchase.amount,
            "fraud": 0,  # until a label says otherwise
        }
    )
    with store.pipeline() as pipeline:
        for key, retained in ((customer, KEPT_CUSTOMER), (terminal, KEPT_TERMINAL)):
            pipeline.zadd(key, {entry: time})
            pipeline.zremrangebyscore(
                key, "-inf", time - retained // pd.Timedelta("1us")
            )
            pipeline.zrangebyscore(key, "-inf", time)
        pipeline.sismember("stolen_cards", purchase.customer_id)
        replies = pipeline.execute()
    return replies[2], replies[5], bool(replies[6])

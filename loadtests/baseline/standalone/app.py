"""
A service of one engineer and one week: FastAPI, redis-py, onnxruntime, NumPy.

    uvicorn loadtests.baseline.standalone.app:app

It imports nothing of Tollgate: features, policy and store layout are its own, so it
stays as it is while Tollgate changes. Purchases are packed in sorted sets, one script
per batch adds them and reads both histories, and requests that wait together are
decided together. It has one process per core, and a line in a log per decision.
"""

from __future__ import annotations

import logging
from typing import Annotated

import msgspec
import numpy as np
import onnxruntime
import redis.asyncio

from loadtests.baseline import environment
from loadtests.baseline.gatherer import Gatherer
from loadtests.baseline.naive.rules import decide
from loadtests.baseline.service import Answers, service
from loadtests.baseline.standalone.history import (
    ENTRY,
    FEATURES,
    KEPT_CUSTOMER_US,
    KEPT_TERMINAL_US,
    entry_of,
    features_of,
)

Id = Annotated[str, msgspec.Meta(min_length=1, max_length=128)]


# Adds each purchase to two sorted sets, and returns them, joined.
SCRIPT = """
local found = {}
for row = 0, #KEYS / 2 - 1 do
  local at = 5 * row
  local time = ARGV[at + 2]
  for side = 1, 2 do
    local key = KEYS[2 * row + side]
    redis.call('ZADD', key, time, ARGV[at + 1])
    redis.call('ZREMRANGEBYSCORE', key, '-inf', ARGV[at + 2 + side])
    found[3 * row + side] = table.concat(
      redis.call('ZRANGEBYSCORE', key, '-inf', time))
  end
  found[3 * row + 3] = redis.call('SISMEMBER', 'stolen_cards', ARGV[at + 5])
end
return found
"""


class Purchase(msgspec.Struct, gc=False):
    """A purchase, as a request contains it."""

    transaction_id: Id
    customer_id: Id
    terminal_id: Id
    amount: Annotated[float, msgspec.Meta(ge=0, le=10_000_000)]
    event_time: int


store = redis.asyncio.Redis.from_url(environment.store_url())
remember = store.register_script(SCRIPT)
threads = onnxruntime.SessionOptions()
threads.intra_op_num_threads = 1  # for one row, waking others costs more than it gains
model = onnxruntime.InferenceSession(
    environment.model_path(), threads, providers=["CPUExecutionProvider"]
)
journal = logging.getLogger("decisions")
journal.addHandler(logging.FileHandler(environment.folder() / "decisions.log"))
journal.setLevel(logging.INFO)


async def decide_rows(purchases: list[Purchase]) -> Answers:
    """Decide up to 32 purchases in order, with one round trip to Redis."""
    cents = [round(one.amount * 100) for one in purchases]
    histories = await _remember(purchases, cents)
    vectors = np.empty((len(purchases), len(FEATURES)))
    for row, (one, (customer, terminal, _)) in enumerate(
        zip(purchases, histories, strict=True)
    ):
        vectors[row] = features_of(
            cents[row], time_us=one.event_time, customer=customer, terminal=terminal
        )
    inputs = {"features": vectors.astype(np.float32)}
    scores = model.run(["probabilities"], inputs)[0][:, 1].tolist()
    decisions, codes = [], []
    for vector, score, history in zip(vectors.tolist(), scores, histories, strict=True):
        customer, terminal, stolen = history
        features = dict(zip(FEATURES, vector, strict=True))
        new = ENTRY.itemsize in (len(customer), len(terminal))
        decision, reasons = decide(features, score=score, stolen=stolen, new=new)
        decisions.append(decision)
        codes.append(reasons)
    rows = (purchases, vectors.tolist(), decisions, scores, codes)
    journal.info(
        "%s", b"\n".join(map(msgspec.json.encode, zip(*rows, strict=True))).decode()
    )
    return Answers(decisions, scores, codes)


async def _remember(
    purchases: list[Purchase], cents: list[int]
) -> list[tuple[bytes, bytes, bool]]:
    """Store purchases; return both histories of each, and if its card is stolen."""
    keys: list[str] = []
    values: list[bytes | int | str] = []
    for one, amount in zip(purchases, cents, strict=True):
        time_us = one.event_time
        keys += [f"customer:{one.customer_id}", f"terminal:{one.terminal_id}"]
        values += [
            entry_of(one.transaction_id, time_us=time_us, cents=amount),
            time_us,
            time_us - KEPT_CUSTOMER_US,
            time_us - KEPT_TERMINAL_US,
            one.customer_id,
        ]
    found = await remember(keys, values)
    return [
        (found[at], found[at + 1], bool(found[at + 2]))
        for at in range(0, len(found), 3)
    ]


app = service(
    Purchase,
    decide=Gatherer(decide_rows).decide,
    begin=store.ping,
    end=store.aclose,
)

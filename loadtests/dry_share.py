"""
Saving of sharing identical dry requests: `python -m loadtests.dry_share`.

The feature step runs in this process over a real Redis that holds a history, with
`dry_share_ms` of 0 and of 1000, in turns. It gets dry requests for a few purchases
again and again, as from a user who tunes a rule or demonstrates a case. The comparison
is of work, not of waiting: calls of the store, CPU of Redis, CPU of the step.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import redis

from loadtests.feature_step import STEP, Request, open_step, request_of
from loadtests.filling import HISTORY_DAYS, fill_store, simulated_history
from loadtests.traffic import traffic_of
from tollgate.errors import TollgateError
from tollgate.features.spec import load_spec
from tollgate.schema import DRY_RUN, DRY_SHARE_PARAMETER, STORE_DEADLINE_PARAMETER
from tollgate.server.redis import EmbeddedRedis

_ROWS = 32
_WARM_UP = 50
_SHARES_MS = (0, 1000)
# So that a busy machine costs time but no answers.
_DEADLINE_MS = "1000"


class Work(msgspec.Struct, frozen=True):
    """Cost of some batches: calls of the store, and ms of CPU per 1,000 rows."""

    calls: int
    redis_ms: float
    step_ms: float


def main(arguments: Sequence[str]) -> int:
    """Measure, and print a table; a known error prints one line."""
    parser = argparse.ArgumentParser(prog="python -m loadtests.dry_share")
    parser.add_argument("--batches", type=int, default=1_000, help="of 32 requests")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--distinct", type=int, default=100, help="purchases asked for")
    given = parser.parse_args(arguments)
    try:
        lines = measure(batches=given.batches, runs=given.runs, distinct=given.distinct)
    except TollgateError as error:
        print(f"loadtests.dry_share: {error}", file=sys.stderr)
        return error.exit_status
    print("\n".join(lines))
    return 0


def measure(*, batches: int, runs: int, distinct: int) -> list[str]:
    """Send requests with and without sharing, in turns; return a table of every run."""
    spec = load_spec(STEP / "1" / "features.yaml")
    history = simulated_history(spec, customers=500, terminals=1_000, days=HISTORY_DAYS)
    columns = traffic_of(history, days=HISTORY_DAYS).columns(0, distinct)
    told = msgspec.json.encode({DRY_RUN: True}).decode()
    requests = [request_of(columns, row, told=told) for row in range(distinct)]
    head = f"| {DRY_SHARE_PARAMETER} | run | store calls | Redis CPU | step CPU |"
    lines = [head, "|---:" * 5 + "|"]
    with (
        tempfile.TemporaryDirectory(prefix="tollgate-share-") as folder,
        EmbeddedRedis(Path(folder)) as server,
        redis.Redis.from_url(server.url) as client,
    ):
        fill_store(spec, history, store_url=server.url)
        steps = {
            share_ms: open_step(
                server.url,
                {
                    DRY_SHARE_PARAMETER: str(share_ms),
                    STORE_DEADLINE_PARAMETER: _DEADLINE_MS,
                },
            )
            for share_ms in _SHARES_MS
        }
        for run in range(1, runs + 1):
            for share_ms, step in steps.items():
                work = _ask(step, requests, batches=batches, client=client, seed=run)
                lines.append(
                    f"| {share_ms} | {run} | {work.calls} | {work.redis_ms:.1f} "
                    f"| {work.step_ms:.1f} |"
                )
        for step in steps.values():
            step.finalize()
    about = f"{batches} batches of {_ROWS} dry requests for {distinct} purchases"
    return [*lines, "", f"{about}; CPU in ms per 1,000 rows."]


def _ask(
    step: Any,
    requests: Sequence[Request],
    *,
    batches: int,
    client: redis.Redis,
    seed: int,
) -> Work:
    chance = np.random.default_rng(seed)
    drawn = chance.integers(0, len(requests), (batches + _WARM_UP, _ROWS)).tolist()
    for rows in drawn[:_WARM_UP]:
        step.execute([requests[row] for row in rows])
    calls = step._ladder.counts.calls
    called, redis_s, step_s = calls["answered"], _cpu_s(client), time.thread_time()
    for rows in drawn[_WARM_UP:]:
        step.execute([requests[row] for row in rows])
    thousands = batches * _ROWS / 1_000
    return Work(
        calls=calls["answered"] - called,
        step_ms=(time.thread_time() - step_s) * 1e3 / thousands,
        redis_ms=(_cpu_s(client) - redis_s) * 1e3 / thousands,
    )


def _cpu_s(client: redis.Redis) -> float:
    told = client.info("cpu")
    return float(told["used_cpu_user"]) + float(told["used_cpu_sys"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Measure the latency of lists in an open loop."""

from __future__ import annotations

import os
import random
import re
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import msgspec
import numpy as np

from loadtests.paced.bench import stream_read
from loadtests.ranking.bench import RankingBench
from loadtests.ranking.shop import PRODUCT
from loadtests.results.percentiles import percentile
from tollgate.load.arrivals import evenly
from tollgate.load.process_usage import use_of
from tollgate.load.sender import open_sender
from tollgate.server.serving.embedded import Embedded
from tollgate.simulate.shop import SLOTS
from tollgate_client import Options, RecommendationRequest
from tollgate_client.recommendations import encode_ranking_row
from tollgate_client.wire import request_of

COUNT = 10  # items of a list
GOAL_P95_MS, GOAL_P99_MS, GOAL_HIT_P95_MS = 80.0, 100.0, 10.0
_TIMEOUT_S = 5.0
_COUNTED_S = 30.0  # limit for the server to count the rows
_REPORTED_S = 1.5  # a step reports its counts every second
_ROWS = re.compile(r'^tollgate_prepared_rows_total{.*?found="([^"]+)".*} (\S+)$', re.M)
_WARM_UP_S = 3.0
_STEP = 1.15  # between the rates of the search, which ends between two of them
_MOST_STEPS = 24


class LatencyRun(msgspec.Struct, frozen=True):
    """
    Results of one run.

    Attributes:
        rate: Requests per second, each sent when it is due.
        sent: Requests in the measured time.
        answered: Those with a list.
        degraded: Those whose list is degraded.
        hits: Share of the requests, with those of the warm-up, whose list was prepared.
        p50_ms, p95_ms, p99_ms, max_ms: Latency from when a request was due; of all
            requests, with the timeout for one without an answer.
        server_cpu: Processor time of server and store, as a share of one core.
        sender_cpu: That of the sender.
        load: Load average of the machine before the run.
    """

    rate: float
    sent: int
    answered: int
    degraded: int
    hits: float
    p50_ms: float
    p95_ms: float
    p99_ms: float
    max_ms: float
    server_cpu: float
    sender_cpu: float
    load: float


def users_in_turn(user_ids: Sequence[str], *, seed: int) -> Iterator[str]:
    """Yield users at random, each once before any comes again."""
    chance = random.Random(seed)
    while True:
        yield from chance.sample(user_ids, len(user_ids))


def mixed_users(
    prepared: Iterator[str], others: Iterator[str], *, share: float, seed: int
) -> Iterator[str]:
    """Yield users with and without a prepared list at random."""
    chance = random.Random(seed)
    while True:
        yield next(prepared if chance.random() < share else others)


def measure_latency(
    bench: RankingBench, users: Iterator[str], *, rate: float, seconds: float, name: str
) -> LatencyRun:
    """
    Request lists at a constant rate.

    Args:
        users: User of each request.
        rate: Requests per second.
        seconds: Measured time; a warm-up comes before it.
        name: Start of the request ids.

    Raises:
        ServerError: No server answers.
    """
    skipped = round(_WARM_UP_S * rate)
    count = skipped + round(seconds * rate)
    now_us = time.time_ns() // 1000
    requests = [
        _request(bench.contents.options, next(users), f"{name}-{number:07d}", now_us)
        for number in range(count)
    ]
    load = os.getloadavg()[0]
    roots = [bench.server.triton.pid, bench.redis.pid]
    with (
        stream_read(bench.server.store_url, product=PRODUCT),
        open_sender(bench.server.grpc_url, timeout_s=_TIMEOUT_S) as sender,
    ):
        before = prepared_rows(bench.server)
        before_s, began_s = use_of(roots).cpu_s, time.monotonic()
        found = sender.at_times(requests, evenly(count, rate_per_s=rate))
        taken_s = time.monotonic() - began_s
        server_s = use_of(roots).cpu_s - before_s
        hits = _hit_share(bench.server, before, rows=int(found.answered.sum()))
    measured = found.later(skipped)
    us = np.sort(measured.calls["took_us"].astype(np.int64))
    return LatencyRun(
        rate=rate,
        sent=len(us),
        answered=int(measured.answered.sum()),
        degraded=int((measured.calls["degraded"] > 0).sum()),
        hits=hits,
        p50_ms=percentile(us, 50) / 1e3,
        p95_ms=percentile(us, 95) / 1e3,
        p99_ms=percentile(us, 99) / 1e3,
        max_ms=percentile(us, 100) / 1e3,
        server_cpu=server_s / taken_s,
        sender_cpu=found.sender_cpu_s / taken_s,
        load=load,
    )


def prepared_rows(server: Embedded) -> Counter[str]:
    """Return the rows of a server by what became of their prepared list."""
    with urllib.request.urlopen(server.metrics_url, timeout=_TIMEOUT_S) as answer:
        page = answer.read().decode()
    counts: Counter[str] = Counter()
    for found, value in _ROWS.findall(page):
        counts[found] += round(float(value))
    return counts


def _hit_share(server: Embedded, before: Counter[str], *, rows: int) -> float:
    """
    Return the share of hits among so many rows, once the server has counted them.

    It counts its own dry runs, too, and may report them late, but these are no hits.
    """
    until_s = time.monotonic() + _COUNTED_S
    hits = -1
    while True:
        now = prepared_rows(server)
        now.subtract(before)
        settled = now.total() >= rows and now["hit"] == hits
        if settled or time.monotonic() > until_s:
            return now["hit"] / max(1, rows)
        hits = now["hit"]
        time.sleep(_REPORTED_S)


def _request(options: Options, user: str, request_id: str, time_us: int) -> bytes:
    slot = SLOTS[0] if "slot" in options.fields else None
    row = encode_ranking_row(
        RecommendationRequest(request_id, user, time_us, slot=slot),
        count=COUNT,
        inputs=options.inputs,
        fields=options.fields,
    )
    encoded = request_of(
        [row],
        product=options.product,
        kinds={**options.inputs, **options.fields},
        dry_run=False,
        count=COUNT,
    )
    return encoded.encode(left_s=_TIMEOUT_S)


def highest_rate(
    measure: Callable[[float], LatencyRun], *, first: float
) -> tuple[LatencyRun | None, list[LatencyRun]]:
    """
    Search for the highest rate whose 95th percentile is within the goal.

    Rates differ by 15 %. The search rises from the first rate in steps that double,
    and then halves the interval.

    Returns:
        The run at the highest rate found, None if the first one is too high; and all
        runs in their order.
    """
    runs: list[LatencyRun] = []

    def meets(step: int) -> bool:
        runs.append(measure(round(first * _STEP**step)))
        one = runs[-1]
        return one.answered == one.sent and one.p95_ms <= GOAL_P95_MS

    if not meets(0):
        return None, runs
    good, best, bad = 0, runs[0], 1
    while bad <= _MOST_STEPS and meets(bad):
        good, best, bad = bad, runs[-1], 2 * bad
    while bad - good > 1:
        middle = (good + bad) // 2
        if meets(middle):
            good, best = middle, runs[-1]
        else:
            bad = middle
    return best, runs

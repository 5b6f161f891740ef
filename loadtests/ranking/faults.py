"""
Prove that every list has its items while the store or a step fails.

The caller uses the client that always answers. Items that are out of stock from the
beginning must not appear, with or without a fault.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import os
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from time import perf_counter

import msgspec
import numpy as np

from loadtests.chaos import GRACE_S, kill_step, pace, restart_step
from loadtests.faults import INJECTIONS, FaultyStore
from loadtests.ranking.bench import RankingBench
from loadtests.ranking.shop import PRODUCT
from loadtests.results.percentiles import percentile
from tollgate.repository.slo import Form
from tollgate.schema import PREPARED_PREFIX, SOURCES
from tollgate_client import AsyncRecommender, ClientError

BEGINS, ENDS = 0.25, 0.6  # shares of the calls
_CONNECT_S = 30.0
_WARM_CALLS = 100  # not counted
_FIRST, _LAST = f"{PRODUCT}_candidates", f"{PRODUCT}_ranking"
_KNOWN = {"client", *SOURCES, *(f"{PREPARED_PREFIX}{one}" for one in SOURCES)}


class RankingFault(msgspec.Struct, frozen=True):
    """
    A fault.

    Attributes:
        name: Name of the fault.
        words: Description for the table.
        step: Step to kill; empty for a fault of the store.
    """

    name: str
    words: str
    step: str = ""


RANKING_FAULTS = (
    RankingFault("none", "no fault"),
    RankingFault("killed", "Redis is killed (SIGKILL), and started again"),
    RankingFault("hung", "Redis hangs (SIGSTOP)"),
    RankingFault("slow", "every answer of Redis takes 50 ms more"),
    RankingFault(
        "first-step",
        "the first step's process is killed, and the step loaded again",
        _FIRST,
    ),
    RankingFault(
        "last-step",
        "the last step's process is killed, and the step loaded again",
        _LAST,
    ),
)


def faults_of(form: Form) -> list[RankingFault]:
    """Return the faults of a form; fused, all steps are one process."""
    return [one for one in RANKING_FAULTS if form == "ensemble" or one.step != _LAST]


class FaultOutcome(msgspec.Struct, frozen=True):
    """
    What callers saw during one fault.

    Attributes:
        fault: The fault.
        calls: Number of calls.
        failed: Calls that raised an error.
        short: Lists with fewer items than requested, or with one twice.
        unnamed: Items without a known source.
        out_shown: Items shown although they are out of stock.
        lists: Lists by `source_of_list`.
        sources: Items by source.
        during: Lists by the server while the fault lasted, and all lists then.
        in_time: Lists within the deadline and 5 ms.
        p50_ms, p99_ms, max_ms: Latency of a call.
        load: Load average of the machine in the last minute.
    """

    fault: RankingFault
    calls: int
    failed: int
    short: int
    unnamed: int
    out_shown: int
    lists: dict[str, int]
    sources: dict[str, int]
    during: tuple[int, int]
    in_time: int
    p50_ms: float
    p99_ms: float
    max_ms: float
    load: float

    @property
    def ok(self) -> bool:
        """Return whether every call got its items."""
        wrong = self.failed or self.short or self.unnamed or self.out_shown
        return self.calls > 0 and not wrong


class _Calls(msgspec.Struct):
    """Results of the calls of one fault, as they come in."""

    latency_s: list[float]
    by_server: list[bool]
    lists: Counter[str]
    sources: Counter[str]
    failed: int = 0
    short: int = 0
    unnamed: int = 0
    out_shown: int = 0


async def prove_fault(
    bench: RankingBench,
    fault: RankingFault,
    *,
    out: frozenset[str],
    answers: int,
    rate: float,
    deadline_s: float,
    count: int = 10,
) -> FaultOutcome:
    """
    Request lists while a fault begins and ends, and judge each list.

    Args:
        bench: Its store is behind a proxy.
        out: Items that have been out of stock since before the server started.
        answers: Number of lists.
        rate: Lists per second.
        deadline_s: Of a call.
        count: Items of a list.
    """
    calls = _Calls([], [], Counter(), Counter())
    users = itertools.cycle(bench.contents.user_ids)
    begin, end = _injection(bench, fault)
    first, last = (round(part * answers) for part in (BEGINS, ENDS))
    edges: list[int] = []

    def noted(do: Callable[[], None]) -> None:
        edges.append(len(calls.latency_s))
        do()

    async with AsyncRecommender(
        [bench.server.grpc_url],
        fallback=bench.contents.own_list(without=out),
        options=dataclasses.replace(bench.contents.options, deadline_s=deadline_s),
        coalescing=None,
    ) as client:
        await client.wait_ready(_CONNECT_S)
        for number in range(_WARM_CALLS):
            await client.recommend(f"warm-{fault.name}-{number}", next(users))

        async def answered(number: int, user: str) -> bool:
            began_s = perf_counter()
            try:
                found = await client.recommend(
                    f"{fault.name}-{number}", user, count=count
                )
            except ClientError:
                calls.failed += 1
                return False
            calls.latency_s[number] = perf_counter() - began_s
            calls.by_server[number] = found.source_of_list == "server"
            calls.lists[found.source_of_list] += 1
            calls.sources.update(found.sources)
            calls.short += len(set(found.items)) != count or len(found.items) != count
            calls.unnamed += sum(one not in _KNOWN for one in found.sources)
            calls.out_shown += len(out.intersection(found.items))
            return calls.by_server[number]

        def call(number: int) -> Awaitable[bool]:
            calls.latency_s.append(math.inf)
            calls.by_server.append(False)
            return answered(number, next(users))

        await pace(
            call,
            count=answers,
            rate=rate,
            turns={first: partial(noted, begin), last: partial(noted, end)},
        )
    during = calls.by_server[slice(*edges)]
    us = np.sort(np.minimum(np.array(calls.latency_s) * 1e6, 2.0**53).astype(np.int64))
    return FaultOutcome(
        fault=fault,
        calls=len(calls.latency_s),
        failed=calls.failed,
        short=calls.short,
        unnamed=calls.unnamed,
        out_shown=calls.out_shown,
        lists=dict(calls.lists),
        sources=dict(calls.sources.most_common()),
        during=(sum(during), len(during)),
        in_time=int((us <= (deadline_s + GRACE_S) * 1e6).sum()),
        p50_ms=percentile(us, 50) / 1e3,
        p99_ms=percentile(us, 99) / 1e3,
        max_ms=percentile(us, 100) / 1e3,
        load=os.getloadavg()[0],
    )


def _injection(
    bench: RankingBench, fault: RankingFault
) -> tuple[Callable[[], None], Callable[[], None]]:
    """Return the functions that begin and end a fault."""
    if not fault.step:
        store = FaultyStore(redis=bench.redis, proxy=bench.proxy, fault_s=0.0)
        begin, end = INJECTIONS[fault.name]
        return partial(begin, store), partial(end, store)
    # The fused form has one process for all steps.
    step = PRODUCT if bench.form == "fused" else fault.step
    return (
        partial(kill_step, bench.server, step),
        partial(restart_step, bench.server, step, product=PRODUCT),
    )

"""
Results that callers see while the store fails: `python -m loadtests.faults`.

For each fault: the product under a steady load of single rows, the fault for some
seconds, then its end; when the spool is empty again, every value of the store is
compared with a store that got the same purchases and had no fault. Prints the table of
docs/reliability.md.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from time import perf_counter

import msgspec
import numpy as np
import numpy.typing as npt

from loadtests.harness import (
    REPOSITORY,
    Population,
    Report,
    StoreContents,
    add_form,
    command_parser,
    run_command,
    say,
    temporary_folder,
)
from loadtests.requests.bodies import fraud_requests
from loadtests.results.markdown import markdown_table
from loadtests.results.percentiles import percentile
from loadtests.results.surroundings import measured_with
from loadtests.servers.proxy import Proxy
from tollgate.features.spec.feature_spec import FeatureSpec
from tollgate.load.arrivals import evenly
from tollgate.load.asyncio_sender import send
from tollgate.load.results import Results
from tollgate.load.store_contents import values_of
from tollgate.load.traffic import Traffic
from tollgate.repair.spool_segments import segments
from tollgate.schema import AMOUNT, EVENT_TIME, TRANSACTION_ID, Degraded
from tollgate.server.processes.redis_server import EmbeddedRedis
from tollgate.server.serving.embedded import Embedded, serve
from tollgate.server.triton.launcher import SPOOL_FOLDER
from tollgate.store.event_writer import EventWriter
from tollgate.store.redis.redis_store import RedisStore
from tollgate.store.store_events import Purchases

# So many complete answers one after the other are no accident.
WHOLE_IN_A_ROW = 20


class StoreFault(msgspec.Struct, frozen=True):
    """
    A fault of the store.

    Attributes:
        name: Name of the fault in `--only`.
        words: Description for the table.
        behind_proxy: True if the store is reached through the proxy.
    """

    name: str
    words: str
    behind_proxy: bool


class Outcome(msgspec.Struct, frozen=True):
    """
    Results that callers saw.

    Attributes:
        sent: Requests that were due while it lasted.
        answered: Those of them with a decision.
        last_known: Answers with LAST_KNOWN_VECTOR, and no default.
        defaulted: Answers with STORE_UNAVAILABLE.
        degraded: Answers with any degraded bit.
        failed: Requests without a decision.
        p50_ms: Median latency of the decision, from the scheduled time.
        p99_ms: 99th percentile of it.
        recovered_s: Time from the fault's end to the first of many complete answers, s;
            None when there was none.
        late_after: Degraded answers after that.
        comparison: Comparison of the store with one that had no fault, at the end.
    """

    fault: StoreFault
    sent: int
    answered: int
    last_known: int
    defaulted: int
    degraded: int
    failed: int
    p50_ms: float
    p99_ms: float
    recovered_s: float | None
    late_after: int
    comparison: StoreComparison


def outcome_of(
    fault: StoreFault,
    sent: Results,
    *,
    edges: tuple[float, float],
    comparison: StoreComparison,
) -> Outcome:
    """
    Compute the outcome of a run.

    Args:
        sent: All requests of the run.
        edges: Times at which the fault began and ended, on the clock of `sent`.
    """
    begun_s, ended_s = edges
    during = (sent.due_s >= begun_s) & (sent.due_s < ended_s)
    bits, answered = sent.degraded[during], sent.answered[during]
    latency_us = np.sort(_microseconds(sent.latency_s[during]))
    defaulted = (bits & Degraded.STORE_UNAVAILABLE) != 0
    known = (bits & Degraded.LAST_KNOWN_VECTOR) != 0
    whole = sent.answered & (sent.degraded == 0)
    after = np.flatnonzero(sent.due_s >= ended_s)
    first = _first_of_many(whole[after])
    recovered_s, late_after = None, 0
    if first is not None:
        row = after[first]
        recovered_s = float(sent.due_s[row] + sent.latency_s[row] - ended_s)
        late_after = int((~whole[after[first:]]).sum())
    return Outcome(
        fault=fault,
        sent=int(during.sum()),
        answered=int(answered.sum()),
        last_known=int((known & ~defaulted).sum()),
        defaulted=int(defaulted.sum()),
        degraded=int((bits != 0).sum()),
        failed=int((~answered).sum()),
        p50_ms=percentile(latency_us, 50) / 1e3,
        p99_ms=percentile(latency_us, 99) / 1e3,
        recovered_s=recovered_s,
        late_after=late_after,
        comparison=comparison,
    )


def _microseconds(seconds: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    return np.minimum(seconds * 1e6, 2.0**53).astype(np.int64)


def _first_of_many(whole: npt.NDArray[np.bool_]) -> int | None:
    """Return the index of the first run of complete answers that is long enough."""
    in_a_row = 0
    for place, one in enumerate(whole.tolist()):
        in_a_row = in_a_row + 1 if one else 0
        if in_a_row == WHOLE_IN_A_ROW:
            return place - WHOLE_IN_A_ROW + 1
    return None


def to_markdown(outcomes: Sequence[Outcome], description: str) -> str:
    """Write the table, and under it a description of the measurement."""
    head = (
        *("fault", "sent", "answered", "degraded", "of these last known, defaults"),
        *("failed", "p50 ms", "p99 ms", "s to recover", "degraded after that"),
        "features equal after repair",
    )
    rows = []
    for one in outcomes:
        recovered = "never" if one.recovered_s is None else f"{one.recovered_s:.2f}"
        cells = (
            *(one.fault.words, one.sent, one.answered, one.degraded),
            f"{one.last_known}, {one.defaulted}",
            *(one.failed, f"{one.p50_ms:.1f}", f"{one.p99_ms:.1f}", recovered),
            *(one.late_after, one.comparison.words),
        )
        rows.append(cells)
    return "\n".join([*markdown_table(head, rows), "", description, ""])


class FaultyStore(msgspec.Struct, frozen=True, kw_only=True):
    """
    A store that gets faults.

    Attributes:
        redis: Its process.
        proxy: Proxy between it and the server; None without one.
        fault_s: Length of a fault that ends on its own.
    """

    redis: EmbeddedRedis
    proxy: Proxy | None
    fault_s: float


class FaultBench(FaultyStore, frozen=True, kw_only=True):
    """The server and the store that get the faults, and the store that does not."""

    server: Embedded
    traffic: Traffic
    spool: Path
    reference: ReferenceStore


def _nothing(bench: FaultyStore) -> None:
    """Do nothing."""


def _kill(bench: FaultyStore) -> None:
    os.kill(bench.redis.pid, signal.SIGKILL)


def _shut_down(bench: FaultyStore) -> None:
    bench.redis.stop()


def _start_again(bench: FaultyStore) -> None:
    bench.redis.stop()
    bench.redis.__enter__()


def _stop_process(bench: FaultyStore) -> None:
    os.kill(bench.redis.pid, signal.SIGSTOP)


def _continue_process(bench: FaultyStore) -> None:
    os.kill(bench.redis.pid, signal.SIGCONT)


def _pause(bench: FaultyStore) -> None:
    import redis

    with redis.Redis.from_url(bench.redis.url) as client:
        # It ends on its own: a paused Redis refuses CLIENT UNPAUSE, too.
        client.execute_command("CLIENT", "PAUSE", round(bench.fault_s * 1e3), "ALL")


def _order(text: str) -> Callable[[FaultyStore], None]:
    def give(bench: FaultyStore) -> None:
        assert bench.proxy is not None
        bench.proxy.order(text)

    return give


FAULTS = (
    StoreFault("none", "no fault", behind_proxy=False),
    StoreFault("stopped", "Redis is shut down, and started again", behind_proxy=False),
    StoreFault(
        "killed", "Redis is killed (SIGKILL), and started again", behind_proxy=False
    ),
    StoreFault("hung", "Redis hangs (SIGSTOP)", behind_proxy=False),
    StoreFault(
        "paused", "Redis takes no commands (`CLIENT PAUSE`)", behind_proxy=False
    ),
    StoreFault("proxied", "no fault, behind the proxy", behind_proxy=True),
    StoreFault("slow", "every answer takes 50 ms more", behind_proxy=True),
    StoreFault("cut", "every answer is cut off half-way", behind_proxy=True),
)
# Fault -> functions that begin and end it.
INJECTIONS: dict[
    str, tuple[Callable[[FaultyStore], None], Callable[[FaultyStore], None]]
] = {
    "none": (_nothing, _nothing),
    "stopped": (_shut_down, _start_again),
    "killed": (_kill, _start_again),
    "hung": (_stop_process, _continue_process),
    "paused": (_pause, _nothing),
    "proxied": (_nothing, _nothing),
    "slow": (_order("slow 0.05"), _order("pass")),
    "cut": (_order("cut"), _order("pass")),
}


_TIMEOUT_S = 1.0
_MOST_RECOVERY_S = 60.0  # more than `after_s`, for a busy machine
_MOST_REPAIR_S = 20.0  # limit of a restart of Redis; it reads its file


def main(arguments: Sequence[str]) -> int:
    """Measure every fault, and print or write the table."""
    parser = command_parser("faults")
    add_form(parser)
    add = parser.add_argument
    add("--rate", type=float, default=300.0, help="requests per second")
    add("--before", type=float, default=3.0, metavar="SECONDS")
    add("--fault", type=float, default=5.0, metavar="SECONDS")
    add("--after", type=float, default=3.0, metavar="SECONDS")
    names = [fault.name for fault in FAULTS]
    add("--only", choices=names, help="one fault")
    add("--out", type=Path, help="Markdown here")
    return run_command(
        parser,
        arguments,
        measure=lambda options: Report(to_markdown(*run_all(options))),
    )


def run_all(options: argparse.Namespace) -> tuple[list[Outcome], str]:
    """
    Serve the product twice, directly and behind the proxy, and measure.

    Returns:
        The outcome of each fault, and a description of the measurement.
    """
    outcomes: list[Outcome] = []
    description = ""
    for behind in (False, True):
        faults = [
            fault
            for fault in FAULTS
            if fault.behind_proxy is behind and options.only in (None, fault.name)
        ]
        if not faults:
            continue
        with _bench(options, behind_proxy=behind) as bench:
            description = description or _description(bench, options)
            first = 0
            for fault in faults:
                sent, edges = asyncio.run(_measure(bench, fault, options, first=first))
                count = len(sent.due_s)
                comparison = _compare_stores(bench, first, count=count)
                first += count
                outcomes.append(
                    outcome_of(fault, sent, edges=edges, comparison=comparison)
                )
                say(f"{fault.name}: done")
    return outcomes, description


@contextlib.contextmanager
def _bench(options: argparse.Namespace, *, behind_proxy: bool) -> Iterator[FaultBench]:
    contents = StoreContents(Population(300, 600))
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(temporary_folder("fault"))
        redis = stack.enter_context(EmbeddedRedis(folder / "store"))
        reference = stack.enter_context(EmbeddedRedis(folder / "reference"))
        for one in (redis, reference):
            contents.fill(one.url)
        proxy, url = None, redis.url
        if behind_proxy:
            proxy = stack.enter_context(
                Proxy(redis.socket_path, listen=folder / "proxy.sock")
            )
            url = proxy.url
        server = stack.enter_context(
            serve(REPOSITORY, state=folder / "state", store_url=url, form=options.form)
        )
        yield FaultBench(
            server=server,
            redis=redis,
            proxy=proxy,
            traffic=contents.traffic,
            fault_s=options.fault,
            spool=folder / "state" / SPOOL_FOLDER / "fraud",
            reference=ReferenceStore(contents.spec, reference.url),
        )


def _compare_stores(bench: FaultBench, first: int, *, count: int) -> StoreComparison:
    """Wait for the spool to drain, and compare with the store that had no fault."""
    return bench.reference.compare(
        bench.traffic.columns(first, count),
        store_url=bench.redis.url,
        spool=bench.spool,
    )


async def _measure(
    bench: FaultBench, fault: StoreFault, options: argparse.Namespace, *, first: int
) -> tuple[Results, tuple[float, float]]:
    """
    Load the product, and inject the fault meanwhile.

    The load goes on until enough answers in a row are complete: a busy machine takes
    longer to recover than `after_s`.
    """
    seconds = options.before + options.fault + options.after
    seconds += _MOST_REPAIR_S + _MOST_RECOVERY_S
    columns = bench.traffic.columns(first, round(seconds * options.rate))
    requests = fraud_requests(columns, rows=1, deadline_s=_TIMEOUT_S)
    in_a_row = 0
    recovered = asyncio.Event()

    def observe(complete: bool) -> None:
        nonlocal in_a_row
        in_a_row = in_a_row + 1 if complete else 0
        if in_a_row >= 2 * WHOLE_IN_A_ROW:  # some were sent before the end
            recovered.set()

    loading = asyncio.ensure_future(
        send(
            requests,
            grpc_url=bench.server.grpc_url,
            at_s=evenly(len(requests), rate_per_s=options.rate),
            timeout_s=_TIMEOUT_S,
            enough=(enough := asyncio.Event()),
            observe=observe,
        )
    )
    begin, end = INJECTIONS[fault.name]
    await asyncio.sleep(options.before)
    # In threads: the load must not wait for a Redis that starts.
    begun_s = perf_counter()
    await asyncio.to_thread(begin, bench)
    await asyncio.sleep(max(0.0, begun_s + options.fault - perf_counter()))
    await asyncio.to_thread(end, bench)
    ended_s = perf_counter()
    in_a_row = 0
    recovered.clear()
    await asyncio.sleep(options.after)
    with contextlib.suppress(asyncio.TimeoutError):
        await asyncio.wait_for(recovered.wait(), _MOST_RECOVERY_S)
    enough.set()
    return await loading, (begun_s, ended_s)


def _description(bench: FaultBench, options: argparse.Namespace) -> str:
    return (
        f"{measured_with(bench.server)}. "
        f"`{options.command}`: {options.rate:g} requests of one row a second, open "
        f"loop, {options.before:g} s before, {options.fault:g} s of the fault, "
        f"{options.after:g} s after; one run each."
    )


# Check that features are right after a fault: compare two stores, value by value.


MOST_DRAIN_S = 120.0
_LOOK_EVERY_S = 0.02
_SETTLE_S = 0.5  # a step writes its rows to disk within a tenth of that
_DEADLINE_S = 30.0


class StoreComparison(msgspec.Struct, frozen=True):
    """
    Comparison of the store after a fault, once the spool is empty.

    Attributes:
        drained: True if the spool is empty.
        values: Entities in either store.
        different: Entities with other bytes in the two, or in one store only.
    """

    drained: bool
    values: int
    different: int

    @property
    def words(self) -> str:
        """Describe the comparison for the table."""
        if not self.drained:
            return "no: the spool does not empty"
        if self.different or not self.values:
            return f"no: {self.different:,} of {self.values:,} differ"
        return f"yes: {self.values:,} values"


class ReferenceStore:
    """
    A store that has no faults and gets the same purchases.

    Args:
        url: URL of the store; it holds the same history.
    """

    def __init__(self, spec: FeatureSpec, url: str) -> None:
        self._spec = spec
        self._url = url
        self._writer = EventWriter(spec, RedisStore(url, deadline_s=_DEADLINE_S))

    def compare(
        self,
        columns: Mapping[str, npt.NDArray[np.generic]],
        *,
        store_url: str,
        spool: Path,
    ) -> StoreComparison:
        """
        Wait until the product's spool is empty, then compare all values.

        Args:
            columns: The purchases that were sent.
            store_url: URL of the store that had the fault.
            spool: The product's spool, which the product drains.
        """
        self._writer.purchases(_purchases(self._spec, columns))
        drained = _stays_empty(spool)
        wanted, found = values_of(self._url), values_of(store_url)
        names = wanted.keys() | found.keys()
        different = sum(wanted.get(name) != found.get(name) for name in names)
        return StoreComparison(drained, values=len(names), different=different)


def _stays_empty(spool: Path) -> bool:
    """Wait until the spool is empty, and for rows that a step has yet to put there."""
    until_s = time.monotonic() + MOST_DRAIN_S
    empty_since_s = time.monotonic()
    while time.monotonic() < until_s:
        if segments(spool):
            empty_since_s = time.monotonic()
        elif time.monotonic() > empty_since_s + _SETTLE_S:
            return True
        time.sleep(_LOOK_EVERY_S)
    return False


def _purchases(
    spec: FeatureSpec, columns: Mapping[str, npt.NDArray[np.generic]]
) -> Purchases:
    return Purchases(
        transaction_id=columns[TRANSACTION_ID].tolist(),
        entity_id=[columns[one.key].tolist() for one in spec.entities],
        event_time_us=columns[EVENT_TIME].astype(np.int64),
        cents=np.rint(columns[AMOUNT].astype(np.float64) * 100).astype(np.int64),
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

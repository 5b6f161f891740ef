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
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from time import perf_counter

import msgspec

from clients.codec import requests_of
from clients.columns import FRAUD_INPUTS, check_columns
from loadtests.fault_kinds import FAULTS, INJECTIONS, FaultBench
from loadtests.fault_table import (
    WHOLE_IN_A_ROW,
    Outcome,
    StoreFault,
    outcome_of,
    to_markdown,
)
from loadtests.filling import HISTORY_DAYS, fill_store, served_spec, simulated_history
from loadtests.open_loop import evenly
from loadtests.paced.callers import send
from loadtests.paced.calls import Results
from loadtests.proxy import Proxy
from loadtests.repaired import ReferenceStore, StoreComparison
from loadtests.surroundings import CHECKOUT, measured_with
from loadtests.traffic import traffic_of
from tollgate.errors import TollgateError
from tollgate.server.embedded import serve
from tollgate.server.launcher import SPOOL_FOLDER
from tollgate.server.redis import EmbeddedRedis

_TIMEOUT_S = 1.0
_MOST_RECOVERY_S = 60.0  # more than `after_s`, for a busy machine
_MOST_REPAIR_S = 20.0  # limit of a restart of Redis; it reads its file


class Options(msgspec.Struct, frozen=True):
    """Options of the command line."""

    rate_per_s: float
    before_s: float
    fault_s: float
    after_s: float
    only: str | None
    out: Path | None


def main(arguments: Sequence[str]) -> int:
    """Measure every fault, print or write the table; a known error prints one line."""
    parser = argparse.ArgumentParser(prog="python -m loadtests.faults")
    parser.add_argument("--rate", type=float, default=300.0, help="requests per second")
    parser.add_argument("--before", type=float, default=3.0, metavar="SECONDS")
    parser.add_argument("--fault", type=float, default=5.0, metavar="SECONDS")
    parser.add_argument("--after", type=float, default=3.0, metavar="SECONDS")
    names = [fault.name for fault in FAULTS]
    parser.add_argument("--only", choices=names, help="one fault")
    parser.add_argument("--out", type=Path, help="Markdown here")
    given = parser.parse_args(arguments)
    options = Options(
        rate_per_s=given.rate,
        before_s=given.before,
        fault_s=given.fault,
        after_s=given.after,
        only=given.only,
        out=given.out,
    )
    command = " ".join(["python -m loadtests.faults", *arguments])
    try:
        text = to_markdown(*run_all(options, command=command))
    except TollgateError as error:
        print(f"loadtests.faults: {error}", file=sys.stderr)
        return error.exit_status
    if options.out is None:
        print(text, end="")
    else:
        options.out.write_text(text)
    return 0


def run_all(options: Options, *, command: str) -> tuple[list[Outcome], str]:
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
            description = description or _description(bench, options, command=command)
            first = 0
            for fault in faults:
                sent, edges = asyncio.run(_measure(bench, fault, options, first=first))
                count = len(sent.due_s)
                comparison = _compare_stores(bench, first, count=count)
                first += count
                outcomes.append(
                    outcome_of(fault, sent, edges=edges, comparison=comparison)
                )
                print(f"{fault.name}: done", file=sys.stderr, flush=True)
    return outcomes, description


@contextlib.contextmanager
def _bench(options: Options, *, behind_proxy: bool) -> Iterator[FaultBench]:
    repository = CHECKOUT / "model_repository"
    spec = served_spec(repository)
    history = simulated_history(spec, customers=300, terminals=600, days=HISTORY_DAYS)
    with contextlib.ExitStack() as stack:
        folder = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="tollgate-fault-"))
        )
        redis = stack.enter_context(EmbeddedRedis(folder / "store"))
        reference = stack.enter_context(EmbeddedRedis(folder / "reference"))
        for one in (redis, reference):
            fill_store(spec, history, store_url=one.url)
        proxy, url = None, redis.url
        if behind_proxy:
            proxy = stack.enter_context(
                Proxy(redis.socket_path, listen=folder / "proxy.sock")
            )
            url = proxy.url
        server = stack.enter_context(
            serve(repository, state=folder / "state", store_url=url)
        )
        traffic = traffic_of(history, days=HISTORY_DAYS)
        yield FaultBench(
            server=server,
            redis=redis,
            proxy=proxy,
            traffic=traffic,
            fault_s=options.fault_s,
            spool=folder / "state" / SPOOL_FOLDER / "fraud",
            reference=ReferenceStore(spec, reference.url),
        )


def _compare_stores(bench: FaultBench, first: int, *, count: int) -> StoreComparison:
    """Wait for the spool to drain, and compare with the store that had no fault."""
    return bench.reference.compare(
        bench.traffic.columns(first, count),
        store_url=bench.redis.url,
        spool=bench.spool,
    )


async def _measure(
    bench: FaultBench, fault: StoreFault, options: Options, *, first: int
) -> tuple[Results, tuple[float, float]]:
    """
    Load the product, and inject the fault meanwhile.

    The load goes on until enough answers in a row are complete: a busy machine takes
    longer to recover than `after_s`.
    """
    seconds = options.before_s + options.fault_s + options.after_s
    seconds += _MOST_REPAIR_S + _MOST_RECOVERY_S
    columns = bench.traffic.columns(first, round(seconds * options.rate_per_s))
    requests = list(
        requests_of(
            check_columns(columns, inputs=FRAUD_INPUTS),
            product="fraud",
            size=1,
            dry_run=False,
            deadline_s=_TIMEOUT_S,
        )
    )
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
            at_s=evenly(len(requests), rate_per_s=options.rate_per_s),
            timeout_s=_TIMEOUT_S,
            enough=(enough := asyncio.Event()),
            observe=observe,
        )
    )
    begin, end = INJECTIONS[fault.name]
    await asyncio.sleep(options.before_s)
    # In threads: the load must not wait for a Redis that starts.
    begun_s = perf_counter()
    await asyncio.to_thread(begin, bench)
    await asyncio.sleep(max(0.0, begun_s + options.fault_s - perf_counter()))
    await asyncio.to_thread(end, bench)
    ended_s = perf_counter()
    in_a_row = 0
    recovered.clear()
    await asyncio.sleep(options.after_s)
    with contextlib.suppress(asyncio.TimeoutError):
        await asyncio.wait_for(recovered.wait(), _MOST_RECOVERY_S)
    enough.set()
    return await loading, (begun_s, ended_s)


def _description(bench: FaultBench, options: Options, *, command: str) -> str:
    return (
        f"{measured_with(bench.server)}. "
        f"`{command}`: {options.rate_per_s:g} requests of one row a second, open loop, "
        f"{options.before_s:g} s before, {options.fault_s:g} s of the fault, "
        f"{options.after_s:g} s after; one run each."
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""
Send a server more than it can decide: with the gateway's limits and without.

    python -m loadtests.overload [--rates 1000 2000 4000] [--out overload.md]

docs/overload.md says what the parts mean.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec

from loadtests.gate import Gate, Limits, open_gate
from loadtests.overload_parts import CALLERS, PARTS, Part, parts_of
from loadtests.overload_table import WARM_UP_S, Flow, PartRun, table
from loadtests.paced.bench import Bench, Population, counting, served
from loadtests.paced.calls import Load, Results
from loadtests.paced.compiled import send_compiled
from loadtests.paced.requests import write_bodies
from loadtests.paced.scenario import Phase, Scenario
from loadtests.paced.schedule import arrivals
from loadtests.processes import use_of
from loadtests.surroundings import CHECKOUT
from tollgate.errors import InputError, TollgateError
from tollgate.gateway.template import BULK_IN_FLIGHT, CALLER_IN_FLIGHT, IN_FLIGHT
from tollgate.schema import BULK, CLASS_HEADER, MAX_BATCH_ROWS


class Options(msgspec.Struct, frozen=True):
    """Options of the command line."""

    parts: list[Part]
    runs: int
    seconds: float
    timeout_ms: int
    limits: Limits
    repository: Path
    population: Population
    out: Path | None
    command: str


def main(arguments: Sequence[str]) -> int:
    """Measure, and print the table; a known error prints one line."""
    try:
        options = _options(arguments)
        text = measure_all(options)
    except TollgateError as error:
        print(f"loadtests.overload: {error}", file=sys.stderr)
        return error.exit_status
    print(text)
    if options.out:
        options.out.write_text(text + "\n")
    return 0


def _options(arguments: Sequence[str]) -> Options:
    parser = argparse.ArgumentParser(prog="python -m loadtests.overload")
    add = parser.add_argument
    add("--rates", type=float, nargs="+", default=[1000, 1500, 2000, 3000, 4000])
    add("--rows", type=int, default=1, help="in each request")
    add("--bulk-rows", type=int, default=MAX_BATCH_ROWS, help="in each of bulk")
    add("--only", nargs="+", choices=PARTS, default=list(PARTS))
    add("--runs", type=int, default=1, help="of each, in turns")
    add("--seconds", type=float, default=6.0, help="of each, after a second")
    add("--timeout-ms", type=int, default=1000, help="until callers give up")
    add("--in-flight", type=int, default=IN_FLIGHT)
    add("--caller-in-flight", type=int, default=CALLER_IN_FLIGHT)
    add("--bulk-in-flight", type=int, default=BULK_IN_FLIGHT)
    add("--customers", type=int, default=Population().customers)
    add("--terminals", type=int, default=Population().terminals)
    add("--repository", type=Path, default=CHECKOUT / "model_repository")
    add("--out", type=Path, help="file for the table")
    given = parser.parse_args(arguments)
    for name in ("rows", "bulk_rows", "runs", "seconds", "timeout_ms"):
        if not getattr(given, name) > 0:
            flag = "--" + name.replace("_", "-")
            raise InputError(flag, f"{getattr(given, name)} is not above 0")
    if given.rates != sorted(given.rates) or given.rates[0] <= 0:
        raise InputError("--rates", "are not above 0 and ascending")
    return Options(
        parts=parts_of(
            given.only, rates=given.rates, rows=given.rows, bulk_rows=given.bulk_rows
        ),
        runs=given.runs,
        seconds=given.seconds,
        timeout_ms=given.timeout_ms,
        limits=Limits(given.in_flight, given.caller_in_flight, given.bulk_in_flight),
        repository=given.repository,
        population=Population(given.customers, given.terminals),
        out=given.out,
        command=shlex.join(["python", "-m", "loadtests.overload", *arguments]),
    )


def measure_all(options: Options) -> str:
    """Serve, measure part after part in turns, and write the table."""
    found: list[PartRun] = []
    sent = 0
    with _open_paths(options) as (bench, gate):
        for run in range(1, options.runs + 1):
            for part in options.parts:
                print(f"{part.name}, run {run}", file=sys.stderr, flush=True)
                one = measure(
                    bench, gate, part, options=options, first=sent, seed=len(found) + 1
                )
                sent += sum(
                    len(results.calls) * flow.rows for flow, results in one.flows
                )
                found.append(one)
        measured = bench.measured()
    return table(
        found,
        measured=measured,
        command=options.command,
        seconds=options.seconds,
    )


@contextmanager
def _open_paths(options: Options) -> Iterator[tuple[Bench, Gate | None]]:
    with ExitStack() as stack:
        place = stack.enter_context(tempfile.TemporaryDirectory(prefix="tollgate-"))
        bench = stack.enter_context(
            served(
                options.repository,
                options.population,
                folder=Path(place),
                behind_proxy=False,
                say=lambda text: print(text, file=sys.stderr, flush=True),
            )
        )
        gate = None
        if any(part.gated for part in options.parts):
            folder = Path(place) / "gate"
            folder.mkdir()
            gate = stack.enter_context(
                open_gate(
                    bench.grpc_url,
                    limits=options.limits,
                    callers=CALLERS,
                    folder=folder,
                )
            )
        yield bench, gate


def measure(
    bench: Bench,
    gate: Gate | None,
    part: Part,
    *,
    options: Options,
    first: int,
    seed: int,
) -> PartRun:
    """
    Send the streams of a part at the same time.

    Args:
        bench: The server, and the purchases to send.
        gate: The gateway before it; needed where the part is gated.
        part: Streams to send.
        options: Duration, and timeout of the callers.
        first: Index of the first purchase that was not sent yet.
        seed: Seed of the arrivals.
    """
    url, nginx = bench.grpc_url, None
    if part.gated:
        if gate is None:
            raise InputError(part.name, "needs a gateway")
        url, nginx = gate.url, gate
    loads = []
    for number, flow in enumerate(part.flows):
        load = _load(
            bench, flow, options=options, first=first, seed=seed + number * 1000
        )
        if nginx is not None:
            metadata = (nginx.keys[flow.caller], *load.metadata)
            load = msgspec.structs.replace(load, metadata=metadata)
        loads.append(load)
        first += len(load.at_s) * flow.rows
    before_s = use_of([nginx.pid]).cpu_s if nginx else 0.0
    with counting(bench.server) as counted:
        results, sender_cpu_s = _send(loads, url=url)
    gate_cpu_s = use_of([nginx.pid]).cpu_s - before_s if nginx else 0.0
    return PartRun(
        part=part.name,
        flows=list(zip(part.flows, results, strict=True)),
        server=counted[0],
        gate_cpu_s=gate_cpu_s,
        sender_cpu_s=sender_cpu_s,
    )


def _load(bench: Bench, flow: Flow, *, options: Options, first: int, seed: int) -> Load:
    scenario = Scenario(
        phases=(Phase(options.seconds + WARM_UP_S, flow.rate),),
        rows=flow.rows,
        warm_up_s=WARM_UP_S,
        timeout_ms=options.timeout_ms,
    )
    at_s = arrivals(scenario, seed=seed)
    folder = bench.folder / f"{flow.caller}-{flow.rows}"
    folder.mkdir(exist_ok=True)
    bodies = write_bodies(
        folder / "bodies.bin",
        bench.traffic,
        scenario=scenario,
        at_s=at_s,
        first=first,
        seed=seed,
    )
    metadata = ((CLASS_HEADER, BULK),) if flow.bulk else ()
    timeout_s = options.timeout_ms / 1e3
    return Load(at_s=at_s, bodies=bodies, timeout_s=timeout_s, metadata=metadata)


def _send(loads: list[Load], *, url: str) -> tuple[list[Results], float]:
    """
    Send all at the same time; return results, and the processor time of all senders.
    """

    def send(load: Load) -> Results:
        return send_compiled(load, grpc_url=url, folder=load.bodies.path.parent)

    before = os.times()
    with ThreadPoolExecutor(len(loads)) as pool:
        results = list(pool.map(send, loads))
    after = os.times()
    used_s = after.children_user + after.children_system
    return results, used_s - before.children_user - before.children_system


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

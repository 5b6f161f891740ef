"""
Send a server more than it can decide: with the gateway's limits and without.

    python -m loadtests.overload [--rates 1000 2000 4000] [--out overload.md]

docs/overload.md says what the parts mean.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from loadtests.harness import (
    Population,
    Report,
    add_population,
    add_repository,
    command_parser,
    run_command,
    say,
    temporary_folder,
)
from loadtests.paced.bench import Bench, counting, open_bench
from loadtests.paced.raw import Server
from loadtests.paced.requests import write_bodies
from loadtests.paced.scenario import Phase, Scenario, arrivals
from loadtests.results.markdown import markdown_table
from tollgate.errors import InputError
from tollgate.gateway.certificates import make_certificates
from tollgate.gateway.keys import add_key
from tollgate.gateway.nginx import Nginx
from tollgate.gateway.template import (
    BULK_IN_FLIGHT,
    CALLER_IN_FLIGHT,
    IN_FLIGHT,
    TEMPLATE,
    Gateway,
    Limits,
)
from tollgate.load.bodies import Load
from tollgate.load.compiled_sender import CompiledSender
from tollgate.load.process_usage import use_of
from tollgate.load.results import ANSWERED, Results
from tollgate.schema import BULK, CLASS_HEADER, MAX_BATCH_ROWS
from tollgate.server.processes.environment import free_port

WARM_UP_S = 1.0
REFUSED = "UNAVAILABLE"
PATHS = ("direct", "gate")  # of single streams
_HEAD = (
    *("", "requests/s", "answered/s", "of the best", "p50 ms", "p99 ms"),
    *("refused/s", "p50 ms", "p99 ms", "other/s", "worked on"),
    *("CPU µs per request: server", "gate", "sender"),
)


class Flow(msgspec.Struct, frozen=True):
    """
    A stream of requests.

    Attributes:
        caller: Name of the caller that sends it.
        rate: Mean requests per second.
        rows: Rows in each request.
        bulk: True if they are bulk requests.
    """

    caller: str
    rate: float
    rows: int
    bulk: bool = False


class PartRun(msgspec.Struct, frozen=True, eq=False):
    """
    One run of a part.

    Attributes:
        part: Name of the part.
        flows: Streams with the results of their requests; the judged stream is first.
        server: Counts of the server; None where it was not queried.
        gate_cpu_s: Processor time of nginx.
        sender_cpu_s: Processor time of all senders.
    """

    part: str
    flows: list[tuple[Flow, Results]]
    server: Server | None
    gate_cpu_s: float
    sender_cpu_s: float


class Line(msgspec.Struct, frozen=True):
    """
    One stream of one run, after the warm-up.

    Attributes:
        name: Name of the part, and of the stream where there are several.
        due_per_s, answered_per_s, refused_per_s, other_per_s: Requests per second.
        answered_ms, refused_ms: p50 and p99 of their latency; NaN without any.
    """

    name: str
    due_per_s: float
    answered_per_s: float
    refused_per_s: float
    other_per_s: float
    answered_ms: tuple[float, float]
    refused_ms: tuple[float, float]


def line_of(name: str, results: Results, *, seconds: float) -> Line:
    """Compute the figures of one stream; `seconds` is without the warm-up."""
    calls = results.calls[results.calls["due_us"] >= WARM_UP_S * 1e6]
    kinds = np.array(results.kinds)[calls["kind"]] if len(calls) else np.array([], str)
    answered, refused = kinds == ANSWERED, kinds == REFUSED
    took_ms = calls["took_us"] / 1e3
    return Line(
        name=name,
        due_per_s=len(calls) / seconds,
        answered_per_s=float(answered.sum() / seconds),
        refused_per_s=float(refused.sum() / seconds),
        other_per_s=float((~answered & ~refused).sum() / seconds),
        answered_ms=_middle_and_late(took_ms[answered]),
        refused_ms=_middle_and_late(took_ms[refused]),
    )


def table(
    found: Sequence[PartRun], *, measured: str, command: str, seconds: float
) -> str:
    """
    Write all runs unchanged; nothing is averaged.

    "of the best" is the answered rate as a share of the highest answered rate in any
    run on the same path, of single streams.
    """
    lines = [
        [_named(one, flow, results, seconds) for flow, results in one.flows]
        for one in found
    ]
    best: dict[str, float] = {}
    for one, (first, *_) in zip(found, lines, strict=True):
        path = one.part.split()[0]
        best[path] = max(best.get(path, 0.0), first.answered_per_s)
    rows = []
    for one, several in zip(found, lines, strict=True):
        path = one.part.split()[0]
        for number, line in enumerate(several):
            share = line.answered_per_s / best[path] if path in PATHS else None
            rows.append(_row(line, share=share, cpu=None if number else _cpu(one)))
    written = markdown_table(_HEAD, rows)
    return "\n".join([f"Measured {measured}.", "", f"`{command}`", "", *written])


def _named(one: PartRun, flow: Flow, results: Results, seconds: float) -> Line:
    name = one.part
    if len(one.flows) > 1:
        name += f": {'bulk' if flow.bulk else flow.caller}"
    return line_of(name, results, seconds=seconds)


def _cpu(one: PartRun) -> tuple[str, ...]:
    """Format the share of rows that reached the feature step, and CPU per request."""
    calls = sum(len(results.calls) for _, results in one.flows)
    rows = sum(len(results.calls) * flow.rows for flow, results in one.flows)
    server = one.server
    worked = f"{server.purchases / rows:.0%}" if server else ""
    used_s = (server.cpu_s if server else 0.0, one.gate_cpu_s, one.sender_cpu_s)
    return (worked, *(f"{1e6 * used / calls:,.0f}" for used in used_s))


def _row(line: Line, *, share: float | None, cpu: tuple[str, ...] | None) -> list[str]:
    return [
        line.name,
        f"{line.due_per_s:,.0f}",
        f"{line.answered_per_s:,.0f}",
        "" if share is None else f"{share:.0%}",
        *map(_ms, line.answered_ms),
        f"{line.refused_per_s:,.0f}",
        *map(_ms, line.refused_ms),
        f"{line.other_per_s:,.0f}",
        *(cpu or ("", "", "", "")),
    ]


def _ms(value: float) -> str:
    return "" if np.isnan(value) else f"{value:,.1f}"


def _middle_and_late(took_ms: npt.NDArray[np.float64]) -> tuple[float, float]:
    if not len(took_ms):
        return float("nan"), float("nan")
    p50, p99 = np.percentile(took_ms, [50, 99], method="inverted_cdf")
    return float(p50), float(p99)


CALLERS = ("shop", "bank")
PARTS = (*PATHS, "bulk", "callers")


class Part(msgspec.Struct, frozen=True):
    """
    Streams of requests that are sent at the same time.

    Attributes:
        name: Name of the line in the table.
        gated: True if they go through the gateway.
    """

    name: str
    gated: bool
    flows: tuple[Flow, ...]


def parts_of(
    wanted: Sequence[str], *, rates: Sequence[float], rows: int, bulk_rows: int
) -> list[Part]:
    """
    List the parts to measure.

    Args:
        wanted: Names of parts, of PARTS.
        rates: Requests/s, ascending: the first is a light load, the last is twice the
            server's capacity.
        rows: Rows in each request, except bulk requests.
        bulk_rows: Rows in each bulk request.
    """
    found = []
    for path in PATHS:
        if path in wanted:
            found += [
                Part(
                    f"{path} {rate:,.0f}/s", path == "gate", (Flow("shop", rate, rows),)
                )
                for rate in rates
            ]
    calm, most = rates[0], rates[-1]
    payments = Flow("shop", calm / 2, rows)
    blast = Flow("bank", most / 4, bulk_rows, bulk=True)
    if "bulk" in wanted:
        found += [
            Part("payments alone", True, (payments,)),
            Part("payments with bulk", True, (payments, blast)),
        ]
    modest = Flow("bank", calm / 5, rows)
    if "callers" in wanted:
        found += [
            Part("modest caller alone", True, (modest,)),
            Part(
                "modest caller with a greedy one",
                True,
                (modest, Flow("shop", most, rows)),
            ),
        ]
    return found


_HOST = "127.0.0.1"
_NO_LIMIT = 1_000_000  # requests/s of a caller; this test does not measure that limit


class Gate(msgspec.Struct, frozen=True):
    """
    A running gateway.

    Attributes:
        url: host:port, without TLS.
        pid: Process id of nginx.
        keys: Caller -> metadata with its key.
    """

    url: str
    pid: int
    keys: dict[str, tuple[str, str]]


@contextmanager
def open_gate(
    upstream: str, *, limits: Limits, callers: tuple[str, ...], folder: Path
) -> Iterator[Gate]:
    """
    Run the gateway's nginx without TLS.

    Args:
        upstream: host:port of Triton's gRPC.
        callers: Names of callers that get a key.
        folder: Folder for its files; must exist.

    Raises:
        SetupError: There is no nginx, or no openssl.
    """
    keys = folder / "keys"
    shown = {
        name: ("authorization", f"Bearer {add_key(keys, name)}") for name in callers
    }
    make_certificates(folder, names=[_HOST], callers=[], days=2)  # nginx reads them
    template = folder / "nginx.conf"
    template.write_text(without_tls(TEMPLATE.read_text()))
    listen = f"{_HOST}:{free_port()}"
    gateway = Gateway(
        state=folder / "gateway",
        upstream=upstream,
        listen=listen,
        health_listen=f"{_HOST}:{free_port()}",
        tls_cert=folder / "server.pem",
        tls_key=folder / "server.key",
        keys=keys,
        rate=limits.rate,
        burst=_NO_LIMIT,
        in_flight=limits.in_flight,
        caller_in_flight=limits.caller_in_flight,
        bulk_in_flight=limits.bulk_in_flight,
        workers=1,
        log=str(folder / "refused.log"),
    )
    nginx = Nginx(gateway, template=template)
    try:
        yield Gate(url=listen, pid=nginx.pid, keys=shown)
    finally:
        nginx.stop()


def without_tls(template: str) -> str:
    """Remove TLS from the gateway's configuration: one word."""
    return template.replace(" ssl http2 ", " http2 ")


def main(arguments: Sequence[str]) -> int:
    """Measure, and print and write the table."""
    parser = command_parser("overload")
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
    add_population(parser)
    add_repository(parser)
    add("--out", type=Path, help="file for the table")
    least = dict.fromkeys(("rows", "bulk_rows", "runs", "timeout_ms"), 1)
    return run_command(
        parser, arguments, measure=measure_all, least={**least, "seconds": 0.1}
    )


def measure_all(options: argparse.Namespace) -> Report:
    """Serve, measure part after part in turns, and write the table."""
    if options.rates != sorted(options.rates) or options.rates[0] <= 0:
        raise InputError("--rates", "are not above 0 and ascending")
    parts = parts_of(
        options.only,
        rates=options.rates,
        rows=options.rows,
        bulk_rows=options.bulk_rows,
    )
    found: list[PartRun] = []
    sent = 0
    with _open_paths(options, parts) as (bench, gate):
        for run in range(1, options.runs + 1):
            for part in parts:
                say(f"{part.name}, run {run}")
                one = measure(
                    bench, gate, part, options=options, first=sent, seed=len(found) + 1
                )
                sent += sum(
                    len(results.calls) * flow.rows for flow, results in one.flows
                )
                found.append(one)
        measured = bench.measured()
    return Report(
        table(
            found, measured=measured, command=options.command, seconds=options.seconds
        )
    )


@contextmanager
def _open_paths(
    options: argparse.Namespace, parts: Sequence[Part]
) -> Iterator[tuple[Bench, Gate | None]]:
    with ExitStack() as stack:
        place = stack.enter_context(temporary_folder("overload"))
        population = Population(options.customers, options.terminals)
        bench = stack.enter_context(
            open_bench(options.repository, population, folder=place, behind_proxy=False)
        )
        gate = None
        if any(part.gated for part in parts):
            folder = place / "gate"
            folder.mkdir()
            limits = Limits(
                _NO_LIMIT,
                options.in_flight,
                options.caller_in_flight,
                options.bulk_in_flight,
            )
            gate = stack.enter_context(
                open_gate(bench.grpc_url, limits=limits, callers=CALLERS, folder=folder)
            )
        yield bench, gate


def measure(
    bench: Bench,
    gate: Gate | None,
    part: Part,
    *,
    options: argparse.Namespace,
    first: int,
    seed: int,
) -> PartRun:
    """
    Send the streams of a part at the same time.

    Args:
        gate: The gateway before it; needed where the part is gated.
        options: Duration, and timeout of the callers.
        first: Index of the first purchase that was not sent yet.
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


def _load(
    bench: Bench, flow: Flow, *, options: argparse.Namespace, first: int, seed: int
) -> Load:
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
    """Send all at the same time; return results, and the senders' processor time."""

    def send(load: Load) -> Results:
        folder = load.bodies.path.parent
        return CompiledSender(url, load.timeout_s, folder).send(load)

    before = os.times()
    with ThreadPoolExecutor(len(loads)) as pool:
        results = list(pool.map(send, loads))
    after = os.times()
    used_s = after.children_user + after.children_system
    return results, used_s - before.children_user - before.children_system


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

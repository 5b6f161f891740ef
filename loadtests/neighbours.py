"""
Effect of a noisy neighbour: `python -m loadtests.neighbours`.

Two products on one server. One gets requests at a fixed rate all the time; the other
is idle, then loaded at its maximum rate, in turns. Prints the table of
docs/reliability.md: the effect of the second product on callers of the first.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from loadtests.answers import tally
from loadtests.bodies import bodies_of
from loadtests.filling import (
    HISTORY_DAYS,
    compact_store,
    fill_store,
    served_spec,
    simulated_history,
)
from loadtests.generator import TAIL_S, Generated, Generator, make_generator, run_h2load
from loadtests.latency import Latency, latency_of
from loadtests.processes import use_of
from loadtests.scenarios import Scenario
from loadtests.second_product import add_product, copy_repository
from loadtests.surroundings import CHECKOUT, measured_on
from loadtests.traffic import Traffic, traffic_of
from tollgate.errors import TollgateError
from tollgate.features.spec import SPEC_FILE, load_spec
from tollgate.server.embedded import Embedded, serve

QUIET, LOUD = "fraud", "loud"
_WARM_UP_S = 2.0
_CONNECTIONS = 4
_MOST_PER_S = 10_000  # more single rows than this machine class answers


class Options(msgspec.Struct, frozen=True):
    """Options of the command line."""

    rounds: int
    seconds: float
    rate_per_s: int
    in_flight: int
    rows: int


class Phase(msgspec.Struct, frozen=True, eq=False):
    """
    Results of the quiet product while the other one was idle or loaded.

    Attributes:
        loud_per_s: Decisions per second of the other product; 0 when idle.
        took_us: Latency of each request of the quiet product; int64 [N].
        bad: Requests and rows of either product without a decision, by reason.
        cores: Processor seconds per second of the server and its steps.
    """

    loud_per_s: float
    took_us: npt.NDArray[np.int64]
    bad: dict[str, int]
    cores: float


class Bench(msgspec.Struct, frozen=True):
    """State that all phases share."""

    server: Embedded
    generator: Generator
    traffic: Traffic
    folder: Path
    options: Options
    sent: dict[str, int] = {}  # rows sent, by product


def main(arguments: Sequence[str]) -> int:
    """Measure and print; exit status 1 when a request got no decision."""
    parser = argparse.ArgumentParser(prog="python -m loadtests.neighbours")
    parser.add_argument("--rounds", type=int, default=5, help="quiet and loud, each")
    parser.add_argument("--seconds", type=float, default=15.0, help="of each")
    parser.add_argument("--rate", type=int, default=100, help="requests per second")
    parser.add_argument("--in-flight", type=int, default=32, help="of the loud one")
    parser.add_argument("--rows", type=int, default=1, help="per request of it")
    given = parser.parse_args(arguments)
    options = Options(
        rounds=given.rounds,
        seconds=given.seconds,
        rate_per_s=given.rate,
        in_flight=given.in_flight,
        rows=given.rows,
    )
    try:
        with _bench(options) as bench:
            pairs = list(_measure(bench))
    except TollgateError as error:
        print(f"loadtests.neighbours: {error}", file=sys.stderr)
        return error.exit_status
    print("\n".join(to_markdown(pairs)))
    command = shlex.join(["python", "-m", "loadtests.neighbours", *arguments])
    load = os.getloadavg()[0]
    print(f"\n{measured_on()}, load average {load:.1f} at the end. `{command}`")
    return 1 if any(phase.bad for pair in pairs for phase in pair) else 0


@contextmanager
def _bench(options: Options) -> Iterator[Bench]:
    """Serve both products, with the same history in the store."""
    with tempfile.TemporaryDirectory(prefix="tollgate-neighbours-") as name:
        folder = Path(name)
        generator = make_generator(folder)
        source = CHECKOUT / "model_repository"
        repository = copy_repository(source, folder / "model_repository")
        add_product(repository, LOUD)
        spec = served_spec(repository)
        history = simulated_history(
            spec, customers=2_000, terminals=4_000, days=HISTORY_DAYS
        )
        state = folder / "state"
        with serve(repository, products=(QUIET, LOUD), state=state) as server:
            for product in (QUIET, LOUD):
                path = repository / f"{product}_features" / "1" / SPEC_FILE
                fill_store(load_spec(path), history, store_url=server.store_url)
            compact_store(server.store_url)
            traffic = traffic_of(history, days=HISTORY_DAYS)
            yield Bench(server, generator, traffic, folder, options)


def _measure(bench: Bench) -> Iterator[tuple[Phase, Phase]]:
    """Measure with the other product idle, then loaded, in turns."""
    for number in range(1, bench.options.rounds + 1):
        quiet = _phase(bench, loud=False)
        loud = _phase(bench, loud=True)
        yield quiet, loud
        shown = [latency_of(one.took_us).p99_ms for one in (quiet, loud)]
        print(
            f"round {number}: p99 {shown[0]:.1f} ms, beside {loud.loud_per_s:,.0f} "
            f"decisions/s {shown[1]:.1f} ms",
            file=sys.stderr,
            flush=True,
        )


def _phase(bench: Bench, *, loud: bool) -> Phase:
    options = bench.options
    run_s = _WARM_UP_S + options.seconds + TAIL_S
    server = bench.server.triton.pid
    before_s = use_of([server]).cpu_s
    with ThreadPoolExecutor(1) as pool:
        driven = pool.submit(_drive, bench, run_s=run_s) if loud else None
        generated = _run(
            bench,
            Scenario(QUIET, rows=1, connections=4, streams=64, most_requests_per_s=0),
            run_s=run_s,
            most=round(options.rate_per_s * (run_s + 1)),
            rate_per_s=options.rate_per_s,
        )
        noise = driven.result() if driven else None
    log = generated.log
    begun_us = log.start_us.min() + int(_WARM_UP_S * 1e6)
    ended_us = log.start_us + log.took_us
    inside = log.start_us >= begun_us
    until_us = begun_us + int(options.seconds * 1e6)
    inside &= ended_us <= until_us
    decided = len(noise.log.took_us) * options.rows if noise else 0
    return Phase(
        loud_per_s=decided / run_s,
        took_us=log.took_us[inside],
        bad=_bad(generated, noise, until_us=until_us),
        cores=(use_of([server]).cpu_s - before_s) / run_s,
    )


def _drive(bench: Bench, *, run_s: float) -> Generated:
    """Load the other product at its maximum rate."""
    rows = bench.options.rows
    scenario = Scenario(
        LOUD,
        rows=rows,
        connections=_CONNECTIONS,
        streams=max(1, bench.options.in_flight // _CONNECTIONS),
        most_requests_per_s=_MOST_PER_S,
    )
    return _run(bench, scenario, run_s=run_s, most=round(_MOST_PER_S * run_s / rows))


def _run(
    bench: Bench, scenario: Scenario, *, run_s: float, most: int, rate_per_s: int = 0
) -> Generated:
    """Send the next purchases to the product that the scenario names."""
    product = scenario.name
    first = bench.sent.get(product, 0)
    columns = bench.traffic.columns(first, most * scenario.rows)
    folder = bench.folder / product
    folder.mkdir(exist_ok=True)
    generated = run_h2load(
        bench.generator,
        scenario,
        bodies=bodies_of(columns, rows=scenario.rows, product=product),
        grpc_url=bench.server.grpc_url,
        run_s=run_s,
        folder=folder,
        rate_per_s=rate_per_s,
    )
    under_way = scenario.in_flight
    sent = (len(generated.log.took_us) + under_way) * scenario.rows
    bench.sent[product] = first + sent
    return generated


def _bad(*runs: Generated | None, until_us: int) -> dict[str, int]:
    """
    Count requests and rows without a decision, by reason; h2load cuts off the last.
    """
    bad: Counter[str] = Counter()
    for one in runs:
        answers = one.kept.answers if one else ()
        told = tally([answer for answer in answers if answer.ended_us <= until_us])
        bad.update(told.failures)
        if told.refused_rows:
            bad["rows with an error"] += told.refused_rows
    return dict(bad)


def to_markdown(pairs: Sequence[tuple[Phase, Phase]]) -> list[str]:
    """Write a line for each kind of phase, and the change of the p99."""
    quiet = [pair[0] for pair in pairs]
    loud = [pair[1] for pair in pairs]
    bad: Counter[str] = Counter()
    for phase in (*quiet, *loud):
        bad.update(phase.bad)
    ratios = sorted(
        latency_of(b.took_us).p99_ms / latency_of(a.took_us).p99_ms for a, b in pairs
    )
    alone = [latency_of(one.took_us).p99_ms for one in quiet]
    pooled = [latency_of(_pool(one)) for one in (quiet, loud)]
    return [
        "| the other product | its decisions/s | cores | requests "
        "| p50 ms | p99 ms | p99.9 ms | longest ms | no decision |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
        _line("left alone", quiet, pooled[0]),
        _line("driven", loud, pooled[1]),
        "",
        f"p99 of all: {pooled[1].p99_ms / pooled[0].p99_ms:.2f} times. By round: "
        f"{ratios[0]:.2f} to {ratios[-1]:.2f}, median {ratios[len(ratios) // 2]:.2f}; "
        f"p99 left alone {min(alone):.1f} to {max(alone):.1f} ms.",
        *(f"No decision, {count} times: {text}" for text, count in bad.items()),
    ]


def _pool(phases: Sequence[Phase]) -> npt.NDArray[np.int64]:
    return np.concatenate([one.took_us for one in phases])


def _line(name: str, phases: Sequence[Phase], latency: Latency) -> str:
    per_s = sum(one.loud_per_s for one in phases) / len(phases)
    cells = (
        *(name, f"{per_s:,.0f}"),
        f"{sum(one.cores for one in phases) / len(phases):.2f}",
        f"{len(_pool(phases)):,}",
        *(
            f"{one:.1f}"
            for one in (
                *(latency.p50_ms, latency.p99_ms, latency.p999_ms, latency.max_ms),
            )
        ),
        str(sum(sum(one.bad.values()) for one in phases)),
    )
    return "| " + " | ".join(cells) + " |"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

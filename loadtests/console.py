"""
Latency with and without an open console: `python -m loadtests.console`.

`tollgate up` gets single rows at a fixed rate, in pairs of turns: one in which browsers
have the console open and one in which none has. A simulated browser loads the page with
its files, and then requests the same data as the page does every two seconds; the load
begins five seconds later. The order within a pair alternates. Exit status 1 if the
median over the pairs of p99 with the console to p99 without is over 1.1, or a request
failed.
"""

from __future__ import annotations

import argparse
import re
import statistics
import sys
import threading
import time
import urllib.request
from collections.abc import Sequence

import msgspec
import numpy as np

from loadtests.harness import (
    Population,
    Report,
    StoreContents,
    add_form,
    add_repository,
    command_parser,
    run_command,
    say,
    temporary_folder,
)
from loadtests.requests.bodies import bodies_of
from loadtests.requests.generator import (
    TAIL_S,
    GeneratorRun,
    Scenario,
    make_generator,
    run_h2load,
)
from loadtests.results.markdown import markdown_table
from loadtests.results.percentiles import latency_of
from tollgate.imports import be_gentle
from tollgate.load.surroundings import measured_on
from tollgate.supervisor.supervisor_metrics import read_processes
from tollgate.testing.supervised import Supervised, supervised

MOST_RATIO = 1.1
EVERY_S = 2.0  # as console.js polls
_WARM_UP_S = 2.0
_OPENED_S = 5.0  # from the opening of the page to the load
_ADDRESS = re.compile(r'(?:href|src)="(/console/static/[^"]+)"')
_SCENARIO = Scenario(
    "paced", rows=1, connections=4, streams=64, most_requests_per_s=1_000
)


class Turn(msgspec.Struct, frozen=True):
    """
    Results of one turn.

    Attributes:
        open: True if browsers had the console open.
        requests: Answered requests inside the measured time.
        failed: Requests without an answer or with an error.
        polls: Answers that the browsers got.
        poll_p99_ms: Time of such an answer; 0 without any.
        supervisor_cpu: Share of one core that the supervisor used.
    """

    open: bool
    requests: int
    failed: int
    p50_ms: float
    p99_ms: float
    polls: int
    poll_p99_ms: float
    supervisor_cpu: float


class Browser:
    """Load the console, and request its data every two seconds until it is closed."""

    def __init__(self, url: str, *, product: str) -> None:
        self.took_s: list[float] = []
        self.failures = 0
        self._url = url
        self._product = product
        self._after_s = 0.0
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._live, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Close the page; wait for the request in progress."""
        self._closed.set()
        self._thread.join()

    def _live(self) -> None:
        be_gentle()  # in real use, another machine shows the page
        try:
            page = self._get("/console").decode()
            for address in _ADDRESS.findall(page):
                self._get(address)
            while not self._closed.wait(EVERY_S):
                self._poll()
        except (OSError, ValueError):
            self.failures += 1

    def _poll(self) -> None:
        chosen = f"product={self._product}"
        for path in ("overview", f"live?{chosen}", f"records?{chosen}"):
            self._get(f"/console/data/{path}")
        body = self._get(f"/console/data/points?{chosen}&after={self._after_s}")
        points = msgspec.json.decode(body)["points"]
        self._after_s = points[-1][0] if points else self._after_s

    def _get(self, path: str) -> bytes:
        began_s = time.monotonic()
        with urllib.request.urlopen(self._url + path, timeout=10) as answer:
            body: bytes = answer.read()
        self.took_s.append(time.monotonic() - began_s)
        return body


def main(arguments: Sequence[str]) -> int:
    """Run the pairs, and print the table."""
    parser = command_parser("console")
    add_form(parser)
    add_repository(parser)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each turn")
    parser.add_argument("--rate", type=int, default=500, help="requests per second")
    parser.add_argument("--browsers", type=int, default=1)
    return run_command(
        parser,
        arguments,
        measure=measure,
        least={"pairs": 1, "seconds": 4, "rate": 1, "browsers": 1},
    )


def measure(options: argparse.Namespace) -> Report:
    """Run the pairs, and write the table."""
    turns = run(options)
    lines = to_markdown(turns)
    lines += ["", f"{measured_on()}. `{options.command}`"]
    failed = sum(one.failed for one in turns)
    return Report("\n".join(lines), ok=not failed and ratio(turns) <= MOST_RATIO)


def run(options: argparse.Namespace) -> list[Turn]:
    """Serve, and run the pairs of turns."""
    with temporary_folder("console") as folder:
        generator = make_generator(folder)
        contents = StoreContents(Population(2_000, 4_000))
        words = ("up", "--form", options.form)
        with supervised(
            options.repository, state=folder / "state", words=words
        ) as product:
            contents.fill(product.address.store_url)
            turns: list[Turn] = []
            for pair in range(options.pairs):
                for is_open in (pair % 2 == 0, pair % 2 == 1):
                    count = round(options.rate * (options.seconds + 1))
                    columns = contents.traffic.columns(len(turns) * count, count)
                    bodies = bodies_of(columns, rows=1)
                    browsers = [
                        Browser(product.health_url, product="fraud")
                        for _ in range(options.browsers if is_open else 0)
                    ]
                    time.sleep(_OPENED_S)
                    before_s = _supervisor_cpu_s(product)
                    generated = run_h2load(
                        generator,
                        _SCENARIO,
                        bodies=bodies,
                        grpc_url=product.grpc_url,
                        run_s=options.seconds,
                        folder=folder,
                        rate_per_s=options.rate,
                    )
                    cpu_s = _supervisor_cpu_s(product) - before_s
                    for one in browsers:
                        one.close()
                    turns.append(
                        _turn(
                            generated,
                            run_s=options.seconds,
                            browsers=browsers,
                            supervisor_cpu=cpu_s / options.seconds,
                        )
                    )
                    say(f"{turns[-1]}")
            return turns


def _supervisor_cpu_s(product: Supervised) -> float:
    """Read the processor time of the supervisor alone, without its children."""
    named = (product.process.pid, "supervisor", "", "")
    return read_processes(iter([named]))[0].cpu_s


def _turn(
    generated: GeneratorRun,
    *,
    run_s: float,
    browsers: Sequence[Browser],
    supervisor_cpu: float,
) -> Turn:
    """Evaluate the requests that ended between the warm-up and the tail."""
    log = generated.log
    ended_us = log.start_us + log.took_us
    first_us = log.start_us.min() + round(_WARM_UP_S * 1e6)
    last_us = log.start_us.min() + round((run_s - TAIL_S) * 1e6)
    measured = (ended_us >= first_us) & (ended_us < last_us)
    latency = latency_of(log.took_us[measured])
    failures = sum(
        bool(one.failure) and first_us <= one.ended_us < last_us
        for one in generated.recorded.answers
    )
    took_ms = [one * 1e3 for each in browsers for one in each.took_s]
    return Turn(
        open=bool(browsers),
        requests=int(measured.sum()),
        failed=failures + sum(one.failures for one in browsers),
        p50_ms=latency.p50_ms,
        p99_ms=latency.p99_ms,
        polls=len(took_ms),
        poll_p99_ms=float(np.quantile(took_ms, 0.99)) if took_ms else 0.0,
        supervisor_cpu=supervisor_cpu,
    )


def ratios(turns: Sequence[Turn]) -> list[float]:
    """Return p99 with the console to p99 without, of each pair."""
    pairs = zip(turns[::2], turns[1::2], strict=True)
    return [
        one.p99_ms / other.p99_ms if one.open else other.p99_ms / one.p99_ms
        for one, other in pairs
    ]


def ratio(turns: Sequence[Turn]) -> float:
    """Return the median of the pairs' ratios."""
    return statistics.median(ratios(turns))


def to_markdown(turns: Sequence[Turn]) -> list[str]:
    """Write a line for each turn, and the ratios."""
    head = (
        *("console", "requests", "failed", "p50 ms", "p99 ms"),
        *("answers of the console", "their p99 ms", "supervisor, % of a core"),
    )
    rows = [
        (
            *("open" if one.open else "closed", f"{one.requests:,}", one.failed),
            *(f"{one.p50_ms:.2f}", f"{one.p99_ms:.2f}"),
            *(one.polls or "", f"{one.poll_p99_ms:.1f}" if one.polls else ""),
            f"{one.supervisor_cpu * 100:.1f}",
        )
        for one in turns
    ]
    found = sorted(ratios(turns))
    return [
        *markdown_table(head, rows),
        "",
        f"p99 open : closed, median of {len(found)} pairs: {ratio(turns):.2f} "
        f"({found[0]:.2f} … {found[-1]:.2f}), limit {MOST_RATIO}",
    ]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

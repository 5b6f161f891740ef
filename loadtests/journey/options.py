"""Parse the command line of the journey."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import msgspec

from loadtests.journey.stages import STAGES
from loadtests.requests.closed_loop import Scenario, pick
from loadtests.results.surroundings import CHECKOUT
from tollgate.errors import InputError

PROGRAM = "python -m loadtests.journey"
WARM_UP_S = 2.0
_LEAST = {"seconds": 0.5, "warm_up": 0.0, "rounds": 1, "check": 16, "rate": 0.0}


class Options(msgspec.Struct, frozen=True):
    """
    Options of the command line.

    Attributes:
        repository: The model repository.
        stages: Stages to measure, of STAGES; Tollgate is last.
        scenarios: Closed-loop scenarios.
        rounds: Number of turns of each stage in each scenario.
        seconds: Measured time of a turn, s.
        warm_up_s: Time before it, s.
        customers, terminals: Size of the simulated history.
        check: Purchases that must get the same answers before; as many again by
            sixteen.
        rate_per_s: Rate of the open loop; 0 for 0.7 of the rate that the first stage
            answered to 16 callers, in its first turn.
        out: Path of the Markdown, with JSON next to it; None prints.
    """

    repository: Path
    stages: tuple[str, ...]
    scenarios: tuple[Scenario, ...]
    rounds: int
    seconds: float
    warm_up_s: float
    customers: int
    terminals: int
    check: int
    rate_per_s: float
    out: Path | None


def read_options(arguments: Sequence[str]) -> Options:
    """
    Parse the command line.

    Raises:
        InputError: A value is out of range, or a name is unknown.
    """
    parser = argparse.ArgumentParser(prog=PROGRAM)
    parser.add_argument("--rounds", type=int, default=3, help="turns of each stage")
    parser.add_argument("--seconds", type=float, default=8.0, help="measured per turn")
    parser.add_argument("--warm-up", type=float, default=WARM_UP_S, metavar="SECONDS")
    parser.add_argument("--only", metavar="NAME", help="one scenario")
    parser.add_argument("--stages", default=",".join(STAGES), help="joined by commas")
    parser.add_argument("--customers", type=int, default=5_000)
    parser.add_argument("--terminals", type=int, default=10_000)
    parser.add_argument("--check", type=int, default=320, help="purchases compared")
    parser.add_argument("--rate", type=float, default=0.0, help="of the open loop")
    parser.add_argument("--out", type=Path, help="Markdown here, JSON next to it")
    parser.add_argument(
        "--repository", type=Path, default=CHECKOUT / "model_repository"
    )
    given = parser.parse_args(arguments)
    for name, least in _LEAST.items():
        if getattr(given, name) < least:
            flag = f"--{name.replace('_', '-')}"
            raise InputError(flag, f"{getattr(given, name)} is below {least}")
    if given.check % 16:
        raise InputError("--check", f"{given.check} is no multiple of 16")
    if given.out is not None and not given.out.resolve().parent.is_dir():
        raise InputError("--out", f"{given.out.parent} is not a folder")
    return Options(
        repository=given.repository.resolve(),
        stages=_stages(given.stages),
        scenarios=pick(given.only),
        rounds=given.rounds,
        seconds=given.seconds,
        warm_up_s=given.warm_up,
        customers=given.customers,
        terminals=given.terminals,
        check=given.check,
        rate_per_s=given.rate,
        out=given.out,
    )


def _stages(text: str) -> tuple[str, ...]:
    """Parse names of stages, in the order of the journey; Tollgate is the reference."""
    named = text.split(",")
    for name in named:
        if name not in STAGES:
            known = ", ".join(STAGES)
            raise InputError("--stages", f"{name!r} is none of {known}")
    if STAGES[-1] not in named or len(named) < 2:
        raise InputError("--stages", f"needs {STAGES[-1]}, and another to compare with")
    return tuple(name for name in STAGES if name in named)

"""Read open-loop scenarios from loadtests/scenarios.yaml or a file like it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import msgspec
import numpy as np

from tollgate.errors import InputError
from tollgate.load.arrivals import F64
from tollgate.schema import MAX_BATCH_ROWS

SCENARIOS_FILE = Path(__file__).resolve().parent.parent / "scenarios.yaml"
_MOST_REQUESTS = 50_000_000  # of a run: they are written before the run, 12 GB of them

Positive = Annotated[float, msgspec.Meta(gt=0)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]


class Phase(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """
    A span of arrivals.

    Attributes:
        seconds: Duration, s.
        rate: Mean requests per second at its beginning.
        to: Mean requests per second at its end; None when the rate does not change.
    """

    seconds: Positive
    rate: Positive
    to: Positive | None = None

    @property
    def end_rate(self) -> float:
        """Return the requests per second at the end."""
        return self.rate if self.to is None else self.to


class ScenarioFault(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """
    A fault that begins and ends during the run.

    Attributes:
        kind: Kind of the fault; scenarios.yaml describes the kinds.
        at_s: Time of its beginning, from the beginning of the run, s.
        seconds: Duration, s.
        delay_ms: Delay of a slow store, ms.
    """

    kind: Literal["store-slow", "server-stopped"]
    at_s: Annotated[float, msgspec.Meta(ge=0)]
    seconds: Positive
    delay_ms: float = 50.0


class Shift(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """
    A change of the purchases from some moment on.

    Attributes:
        at_s: Time of the change, s.
        amount_times: Factor of the amounts.
        elsewhere: Share of the purchases made at the terminal of another one.
    """

    at_s: Annotated[float, msgspec.Meta(ge=0)]
    amount_times: Positive = 1.0
    elsewhere: Share = 0.0


class Scenario(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One scenario; scenarios.yaml describes each field."""

    phases: Annotated[tuple[Phase, ...], msgspec.Meta(min_length=1)]
    says: str = ""
    rows: Annotated[int, msgspec.Meta(ge=1, le=MAX_BATCH_ROWS)] = 1
    warm_up_s: Annotated[float, msgspec.Meta(ge=0)] = 2.0
    timeout_ms: Annotated[int, msgspec.Meta(ge=1)] = 1000
    retries: Annotated[int, msgspec.Meta(ge=0, le=100)] = 0
    poison: Share = 0.0
    trouble: ScenarioFault | None = None
    shift: Shift | None = None

    @property
    def seconds(self) -> float:
        """Return the duration, s."""
        return sum(phase.seconds for phase in self.phases)

    @property
    def peak_rate(self) -> float:
        """Return the highest rate, requests per second."""
        return max(max(phase.rate, phase.end_rate) for phase in self.phases)

    def at(
        self,
        *,
        rate: float | None = None,
        seconds: float | None = None,
        rows: int | None = None,
        warm_up_s: float | None = None,
    ) -> Scenario:
        """
        Return the scenario with another size and the same shape.

        Args:
            rate: Highest rate, requests per second.
            seconds: Duration; trouble and shift move along.
            rows: Rows in each request.
            warm_up_s: Time at the beginning that is not counted, s.

        Raises:
            InputError: A number is out of range.
        """
        faster = rate / self.peak_rate if rate is not None else 1.0
        longer = seconds / self.seconds if seconds is not None else 1.0
        changed = {
            "phases": [_resized(one, faster, longer) for one in self.phases],
            "rows": self.rows if rows is None else rows,
            "warm_up_s": self.warm_up_s if warm_up_s is None else warm_up_s,
            "trouble": _moved(self.trouble, longer),
            "shift": _moved(self.shift, longer),
        }
        settings = msgspec.to_builtins(self) | msgspec.to_builtins(changed)
        try:
            sized = msgspec.convert(settings, Scenario)
        except msgspec.ValidationError as error:
            raise InputError("--rate and its like", str(error)) from error
        _check(sized, "--seconds")
        return sized


def _resized(phase: Phase, faster: float, longer: float) -> Phase:
    return Phase(
        seconds=phase.seconds * longer,
        rate=phase.rate * faster,
        to=None if phase.to is None else phase.to * faster,
    )


def _moved(
    part: ScenarioFault | Shift | None, longer: float
) -> ScenarioFault | Shift | None:
    if part is None:
        return None
    moved = msgspec.structs.replace(part, at_s=part.at_s * longer)
    if isinstance(moved, ScenarioFault):
        return msgspec.structs.replace(moved, seconds=moved.seconds * longer)
    return moved


def read_scenario(name: str) -> tuple[str, Scenario]:
    """
    Find a scenario by name.

    Args:
        name: Name of a scenario in scenarios.yaml, or FILE:NAME of one in another file.

    Returns:
        Its name without the file, and the scenario.

    Raises:
        InputError: There is no such scenario, or its file is not like scenarios.yaml.
    """
    folder, _, last = name.rpartition(":")
    file = Path(folder) if folder else SCENARIOS_FILE
    known = read_scenarios(file)
    if last not in known:
        raise InputError("scenario", f"{last!r} is none of {', '.join(known)}")
    return last, known[last]


def read_scenarios(file: Path) -> dict[str, Scenario]:
    """
    Read all scenarios of a file.

    Raises:
        InputError: It cannot be read, or breaks a rule; the error names field and
            place.
    """
    try:
        found = msgspec.yaml.decode(file.read_bytes(), type=dict[str, Scenario])
    except (OSError, msgspec.MsgspecError) as error:
        raise InputError(file, str(error)) from error
    for name, scenario in found.items():
        _check(scenario, f"{file}: {name}")
    return found


def _check(scenario: Scenario, where: str) -> None:
    phases = scenario.phases
    due = sum(one.seconds * (one.rate + one.end_rate) / 2 for one in phases)
    if not due <= _MOST_REQUESTS:  # also refuses NaN
        problem = f"{due:g} requests are more than {_MOST_REQUESTS:,}"
        raise InputError(where, problem)
    if scenario.warm_up_s >= scenario.seconds:
        problem = f"the warm-up of {scenario.warm_up_s:g} s is all there is"
        raise InputError(where, f"{problem} of {scenario.seconds:g} s")


# Draw the times at which the requests of a scenario are due.


_STEP_S = 0.01  # step of the lookup table; rates hardly change within it


def arrivals(scenario: Scenario, *, seed: int) -> F64:
    """
    Draw the arrivals of independent callers.

    The arrivals of a changing rate are those of one request per second on a clock that
    runs as fast as requests are expected: an inhomogeneous Poisson process.

    Returns:
        s from the beginning, ascending, all within the scenario; float64 [N].
    """
    at_s, expected = expected_by(scenario)
    chance = np.random.default_rng(seed)
    total = float(expected[-1])
    # More than enough: ten deviations above the mean.
    gaps = chance.exponential(1.0, round(total + 10 * np.sqrt(total) + 20))
    within = np.cumsum(gaps)
    return np.interp(within[within < total], expected, at_s)


def expected_by(scenario: Scenario) -> tuple[F64, F64]:
    """
    Return the cumulative number of expected requests over time.

    Returns:
        s from the beginning, and the requests until then; float64 [M] each.
    """
    at_s, expected = [np.zeros(1)], [np.zeros(1)]
    for phase in scenario.phases:
        steps = max(1, round(phase.seconds / _STEP_S))
        since_s = np.linspace(0, phase.seconds, steps + 1)[1:]
        slope = (phase.end_rate - phase.rate) / phase.seconds
        at_s.append(at_s[-1][-1] + since_s)
        inside = phase.rate * since_s + slope * since_s**2 / 2
        expected.append(expected[-1][-1] + inside)
    return np.concatenate(at_s), np.concatenate(expected)

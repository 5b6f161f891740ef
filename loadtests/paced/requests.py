"""Write the requests of a scenario: purchases that continue a history, some bad."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from loadtests.paced.scenario import Scenario, Shift
from loadtests.requests.bodies import bodies_of
from tollgate.load.arrivals import F64
from tollgate.load.bodies import Bodies
from tollgate.load.traffic import Traffic, fixed_width
from tollgate.schema import AMOUNT, EVENT_TIME

NAME_DIGITS = 9  # of a request's id; its number in the schedule, so that traces find it
_AT_ONCE = 20_000  # requests per write
_TERMINAL = "terminal_id"

Columns = dict[str, npt.NDArray[Any]]


def write_bodies(
    path: Path,
    traffic: Traffic,
    *,
    scenario: Scenario,
    at_s: F64,
    first: int,
    seed: int,
) -> Bodies:
    """
    Write the requests of a scenario.

    Args:
        at_s: Time at which each request is due; float64 [N].
        first: Index of the first purchase of the traffic that was not sent yet.
    """
    rows = scenario.rows
    chance = np.random.default_rng(seed)
    poisoned = np.zeros(len(at_s), np.uint8)
    lengths = np.zeros(len(at_s) + 1, np.uint64)
    with path.open("wb") as file:
        for start in range(0, len(at_s), _AT_ONCE):
            part = slice(start, min(start + _AT_ONCE, len(at_s)))
            number = np.arange(part.start, part.stop)
            columns = traffic.columns(first + start * rows, len(number) * rows)
            if scenario.shift is not None:
                late = np.repeat(at_s[part] >= scenario.shift.at_s, rows)
                shift_late(columns, scenario.shift, late, chance)
            bad = chance.random(len(number) * rows) < scenario.poison
            poison_rows(columns, np.flatnonzero(bad))
            poisoned[part] = bad.reshape(-1, rows).sum(axis=1)
            bodies = bodies_of(
                columns,
                rows=rows,
                deadline_s=scenario.timeout_ms / 1e3,
                ids=fixed_width(number, digits=NAME_DIGITS),
            )
            lengths[part.start + 1 : part.stop + 1] = bodies.shape[1]
            bodies.tofile(file)
    return Bodies(path, np.cumsum(lengths, dtype=np.uint64), rows, poisoned)


def shift_late(
    columns: Columns,
    shift: Shift,
    late: npt.NDArray[np.bool_],
    chance: np.random.Generator,
) -> None:
    """Multiply late amounts, and swap terminals among a share of late purchases."""
    columns[AMOUNT] = np.where(
        late, np.round(columns[AMOUNT] * shift.amount_times, 2), columns[AMOUNT]
    )
    if _TERMINAL not in columns:
        return
    moved = np.flatnonzero(late & (chance.random(len(late)) < shift.elsewhere))
    terminals = columns[_TERMINAL].copy()
    terminals[moved] = terminals[chance.permutation(moved)]
    columns[_TERMINAL] = terminals


def poison_rows(columns: Columns, bad: npt.NDArray[np.intp]) -> None:
    """Break one of three rules of docs/contract.md in each of these rows, in turn."""
    amount, time_us = columns[AMOUNT].copy(), columns[EVENT_TIME].copy()
    amount[bad[0::3]] = -1.0
    amount[bad[1::3]] = np.nan
    time_us[bad[2::3]] = 0  # before the year 2000
    columns[AMOUNT], columns[EVENT_TIME] = amount, time_us

"""Write the results of the users' requests as raw results, as open-loop runs do."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np

from clients.decisions import Decisions
from loadtests.paced.calls import ANSWERED, CALL, NO_ANSWER, fault_bits
from loadtests.paced.raw import About, Raw, write_raw
from loadtests.paced.scenario import Scenario
from loadtests.surroundings import measured_on
from tollgate.errors import ClientError, DeadlineExceeded

DRIVER = "locust"


class UserRequest(msgspec.Struct, frozen=True):
    """
    One request.

    Attributes:
        at_s: Time at which it was sent, from the beginning, s.
        took_s: Time until its answer, s.
        rows: Number of its rows.
        poisoned: Number of these rows that break a rule.
        attempts: Number of times that it was sent.
        kind: Result: "answered", or the reason for no answer.
        answer: The answer; None without one.
    """

    at_s: float
    took_s: float
    rows: int
    poisoned: int
    attempts: int
    kind: str
    answer: Decisions | None


def kind_of(error: ClientError) -> str:
    """Return the reason for no answer, in the terms of the open loop."""
    if isinstance(error, DeadlineExceeded):
        return NO_ANSWER
    code = getattr(error.__cause__, "code", None)
    return str(code().name) if code else type(error).__name__


class Recorder:
    """
    Results of all requests so far.

    Attributes:
        requests: Number of requests.
        decided: Rows with a decision.
        refused: Rows with an error instead of a decision.
        degraded: Rows with a degraded bit other than COLD_START.
    """

    def __init__(self, *, store: bool) -> None:
        self.requests = self.decided = self.refused = self.degraded = 0
        self._store = store
        self._rows: list[tuple[int, ...]] = []
        self._kinds = {ANSWERED: 0}

    def add(self, one: UserRequest) -> None:
        """Count a request; store it, if that was wanted."""
        decided, degraded, reviewed, declined, bits = _counts(one.answer)
        refused = one.rows - decided if one.answer is not None else 0
        self.requests += 1
        self.decided += decided
        self.refused += refused
        self.degraded += degraded
        if not self._store:
            return
        kind = self._kinds.setdefault(one.kind, len(self._kinds))
        due_us, took_us = round(one.at_s * 1e6), round(one.took_s * 1e6)
        self._rows.append(
            (
                *(due_us, 0, took_us, kind, one.rows, decided, refused, degraded),
                *(reviewed, declined, one.poisoned, one.attempts, bits),
            )
        )

    def write(self, path: Path, scenario: Scenario, *, name: str, command: str) -> None:
        """
        Write a raw result; a request is due when it is sent.

        Args:
            path: Path of the file.
            scenario: The scenario as it was run.
            name: Name of the scenario.
            command: Command that repeats the run.
        """
        calls = np.sort(np.array(self._rows, CALL), order="due_us")
        about = About(
            name=name,
            scenario=scenario,
            run=1,
            label=DRIVER,
            seed=0,
            driver=DRIVER,
            connections=1,
            command=command,
            measured=measured_on(),
            store="of its own",
            kinds=tuple(self._kinds),
            examples={},
            marks=(),
            sender_cpu_s=0.0,
        )
        write_raw(path, Raw(about, calls, {}))


def _counts(answer: Decisions | None) -> tuple[int, int, int, int, int]:
    if answer is None:
        return 0, 0, 0, 0, 0
    words = answer.decision.tolist()
    bits = [fault_bits(one) for one in answer.degraded.tolist()]
    union = 0
    for one in bits:
        union |= one
    degraded = sum(1 for one in bits if one)
    decided = sum(1 for word in words if word)
    return decided, degraded, words.count("review"), words.count("decline"), union

"""Inject faults into a server while a scenario runs."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter

import msgspec

from loadtests.paced.raw import Mark
from loadtests.paced.scenario import Scenario, ScenarioFault
from loadtests.servers.proxy import Proxy
from tollgate.errors import InputError


class Target(msgspec.Struct, frozen=True):
    """
    Parts of the system into which faults can be injected.

    Attributes:
        server_pid: Process id of tritonserver; 0 when it is not ours.
        proxy: Proxy in front of the store; None without one.
    """

    server_pid: int = 0
    proxy: Proxy | None = None


class FaultInjection:
    """The fault of one run; `began` schedules it."""

    def __init__(self, trouble: ScenarioFault | None, target: Target) -> None:
        self._timers: list[threading.Timer] = []
        self._trouble = trouble
        if trouble is not None:
            self._begin, self._end = _actions(trouble, target)

    def began(self, begin_s: float) -> None:
        """
        Schedule the fault; `begin_s` is the beginning of the run on time.perf_counter.
        """
        if self._trouble is None:
            return
        at_s = begin_s + self._trouble.at_s - perf_counter()
        for wait_s, do in (
            (at_s, self._begin),
            (at_s + self._trouble.seconds, self._end),
        ):
            timer = threading.Timer(max(0.0, wait_s), do)
            timer.start()
            self._timers.append(timer)

    def stop(self) -> None:
        """End the fault, if it has not ended."""
        for timer in self._timers:
            timer.cancel()
            timer.join()
        if self._timers:
            self._end()


@contextmanager
def fault_injection(scenario: Scenario, target: Target) -> Iterator[FaultInjection]:
    """
    Inject the fault of a scenario while the block runs.

    Raises:
        InputError: It cannot be injected into this server.
    """
    found = FaultInjection(scenario.trouble, target)
    try:
        yield found
    finally:
        found.stop()


def _actions(
    trouble: ScenarioFault, target: Target
) -> tuple[Callable[[], None], Callable[[], None]]:
    if trouble.kind == "store-slow" and target.proxy is not None:
        proxy = target.proxy
        slow = f"slow {trouble.delay_ms / 1e3:g}"
        return lambda: proxy.order(slow), lambda: proxy.order("pass")
    if trouble.kind == "server-stopped" and target.server_pid:
        pid = target.server_pid
        return (
            lambda: os.kill(pid, signal.SIGSTOP),
            lambda: os.kill(pid, signal.SIGCONT),
        )
    raise InputError("--grpc-url", f"{trouble.kind} needs a server of our own")


def marks_of(scenario: Scenario) -> tuple[Mark, ...]:
    """Return the moments at which the parts of a scenario begin, in order."""
    marks = []
    at_s = 0.0
    for phase in scenario.phases:
        to = "" if phase.to is None else f" to {phase.to:,.0f}"
        marks.append(Mark(at_s, f"{phase.rate:,.0f}{to} requests/s"))
        at_s += phase.seconds
    if scenario.trouble is not None:
        one = scenario.trouble
        marks.append(Mark(one.at_s, one.kind))
        marks.append(Mark(one.at_s + one.seconds, f"{one.kind} over"))
    if scenario.shift is not None:
        marks.append(Mark(scenario.shift.at_s, "other purchases"))
    return tuple(sorted(marks, key=lambda mark: mark.at_s))

"""
Run background loops that survive errors.

A loop repeats a step for as long as its process lives. An unforeseen error in the step
must not end the loop: the worker counts and logs the error, waits a little longer after
each consecutive failure, and runs the step again. `tallies` reads the counts of a
process, which are exported as metrics.
"""

from __future__ import annotations

import contextlib
import logging
import random
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import msgspec

from tollgate.errors import TollgateError, trace_of
from tollgate.imports import be_gentle

if TYPE_CHECKING:
    from prometheus_client.core import Metric

log = logging.getLogger(__name__)

FIRST_PAUSE_S, MOST_PAUSE_S = 0.1, 5.0
JITTER = 0.2  # of a pause, both ways, so that loops do not retry in step
STUCK_FAILURES = 5  # consecutive failures: some 3 s without progress, or more
STUCK_STEP_S = 600.0  # a restart of the server or a fetch of a release takes less
_FIRST_RETRY_S, _MOST_RETRY_S = 0.05, 1.0  # of a service that does not respond
_LOG_EVERY_S = 60.0  # shortest time between log lines of a loop's failures

ERRORS_METRIC = "tollgate_background_errors_total"
ERRORS_HELP = "Errors that a background loop of the process survived"
FAILURES_METRIC = "tollgate_background_failures"
FAILURES_HELP = "Failures of a background loop in a row; 0 when its last step worked"


class _Idle(Exception):
    """Raised when a loop had no work for its idle time."""


def run_until_idle(
    name: str,
    step: Callable[[], int],
    *,
    stopped: threading.Event,
    until_idle_s: float | None = None,
) -> None:
    """
    Run the loop of a command in the calling thread.

    Args:
        step: The work; returns how much there was. It waits for work itself.
        until_idle_s: Ends the loop after this time without work; None never does.

    Raises:
        TollgateError: The step raised it, on purpose.
    """
    worked_s = time.monotonic()

    def step_or_end() -> None:
        nonlocal worked_s
        if step():
            worked_s = time.monotonic()
        elif until_idle_s is not None and time.monotonic() - worked_s > until_idle_s:
            raise _Idle

    loop = Worker(
        name, step_or_end, pause_s=0.0, ends=(TollgateError, _Idle), stopped=stopped
    )
    with contextlib.suppress(_Idle):
        loop.run()


def backoff_s(failures: int, *, first_s: float, most_s: float) -> float:
    """
    Compute the pause after one or more failures in a row; it doubles, up to a cap.
    """
    # A float overflows at 2 ** 1024; any first pause reaches its cap before that.
    return float(min(first_s * 2.0 ** min(failures - 1, 64), most_s))


def retry(
    work: Callable[[], object],
    *,
    errors: tuple[type[Exception], ...],
    failed: Callable[[Exception], object],
    stopped: threading.Event,
) -> bool:
    """
    Repeat a call until it succeeds, or until `stopped` is set; return whether it did.

    Args:
        work: The call; repeating it must be harmless.
        errors: Errors after which it is repeated, after a pause that grows.
        failed: Called with each of these errors.
    """
    failures = 0
    while True:
        try:
            work()
        except errors as error:
            failures += 1
            failed(error)
            pause_s = backoff_s(failures, first_s=_FIRST_RETRY_S, most_s=_MOST_RETRY_S)
            if stopped.wait(pause_s * random.uniform(1 - JITTER, 1 + JITTER)):
                return False
        else:
            return True


class Tally(msgspec.Struct, frozen=True):
    """
    Errors of a loop, summed over all workers of that name in this process.

    Attributes:
        failures: Consecutive failures; 0 when the last step worked.
        problem: Type of the last of these errors; empty for none.
    """

    errors: int
    failures: int
    problem: str


# A loop may end and restart with the part that it belongs to; its counter must not go
# back then. So errors are counted by name, for as long as the process lives.
_errors: Counter[str] = Counter()
_workers: weakref.WeakSet[Worker] = weakref.WeakSet()
_counting = threading.Lock()


def tallies() -> dict[str, Tally]:
    """Count the errors of every loop that this process has run, by name."""
    with _counting:
        errors, running = _errors.copy(), [one for one in _workers if one.running]
    running.sort(key=lambda one: one.failures)
    worst = {one.name: one for one in running}
    return {
        name: Tally(
            errors[name],
            worst[name].failures if name in worst else 0,
            worst[name].problem if name in worst else "",
        )
        for name in sorted(errors)
    }


def stuck_loops() -> dict[str, str]:
    """List the loops of this process that make no progress, with the reason."""
    found = {
        name: f"failed {one.failures} times in a row: {one.problem}"
        for name, one in tallies().items()
        if one.failures >= STUCK_FAILURES
    }
    with _counting:
        workers = list(_workers)
    for one in workers:
        step_s = one.step_s
        if step_s >= STUCK_STEP_S:
            found[one.name] = f"hangs: its step has taken {step_s:.0f} s so far"
    return found


class LoopCollector:
    """Exports the tallies of this process in a registry of prometheus_client."""

    def collect(self) -> Iterator[Metric]:
        """Read the tallies, once for each scrape."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        errors = CounterMetricFamily(ERRORS_METRIC, ERRORS_HELP, labels=["loop"])
        failures = GaugeMetricFamily(FAILURES_METRIC, FAILURES_HELP, labels=["loop"])
        for name, tally in tallies().items():
            errors.add_metric([name], tally.errors)
            failures.add_metric([name], tally.failures)
        yield errors
        yield failures


class Worker:
    """
    Runs a step again and again, and survives every error in it.

    Args:
        name: Name of the loop in metrics and logs, and of its thread.
        step: The work; repeating it must be harmless.
        pause_s: Seconds before each step, or a function that computes them; None waits
            for `wake`.
        at_once: True if the first step starts without a pause.
        most_pause_s: The longest pause after a failure.
        finish: Called once after the last step, also when that failed.
        failed: Called with each error that the step raised.
        ends: Errors of the step that end the loop on purpose; `run` raises them.
        gentle: True if the thread runs at a lower priority.
        stopped: Ends the loop, and each pause, when it is set; `wake` has no effect
            then. Without it the loop ends by `stop`.

    Attributes:
        failures: Number of consecutive failed steps.
        problem: Type of the last error among these; empty for none.
    """

    def __init__(
        self,
        name: str,
        step: Callable[[], object],
        *,
        pause_s: float | Callable[[], float | None] | None,
        at_once: bool = False,
        most_pause_s: float | None = None,
        finish: Callable[[], object] | None = None,
        failed: Callable[[Exception], object] | None = None,
        ends: tuple[type[Exception], ...] = (),
        gentle: bool = False,
        stopped: threading.Event | None = None,
    ) -> None:
        self.name = name
        self.failures = 0
        self.problem = ""
        self._began_s: float | None = None  # start of the step that is running
        self._step = step
        self._pause_s = pause_s if callable(pause_s) else lambda: pause_s
        self._usual_s = pause_s if isinstance(pause_s, int | float) else 0.0
        self._most_pause_s = most_pause_s
        self._due = at_once
        self._finish = finish
        self._failed = failed
        self._ends = ends
        self._gentle = gentle
        self._stopped = stopped or threading.Event()
        self._wake = threading.Event() if stopped is None else None
        self._logged_s = -_LOG_EVERY_S
        self._log_recovery = False
        self._thread = threading.Thread(target=self._live, name=name, daemon=True)
        with _counting:
            _errors[name] += 0
            _workers.add(self)

    @property
    def running(self) -> bool:
        """Return whether the loop was not stopped."""
        return not self._stopped.is_set()

    @property
    def step_s(self) -> float:
        """Return how long the current step has taken so far, s; 0 between steps."""
        began_s = self._began_s
        return 0.0 if began_s is None else time.monotonic() - began_s

    def start(self) -> None:
        """Run the loop in its own thread; a second call does nothing."""
        if self._thread.ident is None:
            self._thread.start()

    def wake(self) -> None:
        """End the pause between two steps; a pause after a failure goes on."""
        if self._wake is not None:
            self._wake.set()

    def stop(self, timeout_s: float | None = None) -> bool:
        """
        End the loop after the current step; return whether its thread has ended.

        Args:
            timeout_s: Longest wait for its end, s; None waits as long as it takes.
        """
        self._stopped.set()
        self.wake()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def run(self) -> None:
        """
        Run the loop in the calling thread until it is stopped.

        Raises:
            Exception: An error of `ends`.
        """
        while self.running:
            try:
                if not self._due:
                    self._rest()
                self._due = False
                if self.running:
                    self._attempt()
            except self._ends:
                raise
            except Exception as error:  # noqa: BLE001 - an unforeseen error
                self._survive(error)
                self._stopped.wait(self._pause_after_failure_s())
                self._due = True
        if self._finish is not None:
            try:
                self._finish()
            except Exception as error:  # noqa: BLE001 - likewise
                self._survive(error)

    def _live(self) -> None:
        if self._gentle:
            be_gentle()
        self.run()

    def _rest(self) -> None:
        pause_s = self._pause_s()
        if self._wake is None:
            self._stopped.wait(pause_s)
        else:
            self._wake.wait(pause_s)
            self._wake.clear()

    def _attempt(self) -> None:
        """Run the step once; the load tests replace this method to inject faults."""
        self._began_s = time.monotonic()
        try:
            self._step()
        finally:
            self._began_s = None
        if self.failures:
            self.failures, self.problem = 0, ""
            if self._log_recovery:
                log.warning("%s works again", self.name)
            self._log_recovery = False

    def _survive(self, error: Exception) -> None:
        """Count and log an error, and pass it on to the loop's owner."""
        self.failures += 1
        self.problem = type(error).__name__
        self._count()
        now_s = time.monotonic()
        if now_s - self._logged_s >= _LOG_EVERY_S:
            self._logged_s, self._log_recovery = now_s, True
            # The message of an error may contain a customer's data.
            text = "%s goes on after an error nobody foresaw (%d in a row): %s"
            log.error(text, self.name, self.failures, trace_of(error))
        if self._failed is not None:
            try:
                self._failed(error)
            except Exception as second:  # noqa: BLE001 - likewise
                self._count()
                log.error(
                    "%s did not pass on an error: %s", self.name, trace_of(second)
                )

    def _count(self) -> None:
        with _counting:
            _errors[self.name] += 1

    def _pause_after_failure_s(self) -> float:
        most_s = MOST_PAUSE_S if self._most_pause_s is None else self._most_pause_s
        pause_s = backoff_s(self.failures, first_s=FIRST_PAUSE_S, most_s=most_s)
        # A loop that fails does not run its step more often than one that works.
        least_s = min(self._usual_s, most_s)
        return max(least_s, pause_s * random.uniform(1 - JITTER, 1 + JITTER))

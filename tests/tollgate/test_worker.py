"""A background loop outlives errors that nobody foresaw, and says so."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tollgate import worker
from tollgate.worker import Worker, backoff_s, stuck_loops, tallies


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr(worker, "MOST_PAUSE_S", 0.004)


def wait_until(holds: Callable[[], bool]) -> None:
    """Wait until something holds."""
    until_s = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < until_s, "it never did"
        time.sleep(0.001)


class Breakable:
    """A step that raises what it is given, and counts how often it ran."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.ran = 0

    def __call__(self) -> None:
        """Run once."""
        self.ran += 1
        if self.error is not None:
            raise self.error


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("a"),
        KeyError("b"),
        OverflowError("c"),
        MemoryError(),
        RecursionError("d"),
        type("Odd", (Exception,), {"__str__": lambda self: 1 / 0})(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_loop_survives_counts_and_recovers(error: Exception) -> None:
    """Whatever the step raises; the next step that works ends the failure."""
    step = Breakable()
    name = f"survives {type(error).__name__}"
    loop = Worker(name, step, pause_s=0.001)
    loop.start()
    wait_until(lambda: step.ran > 3)
    assert tallies()[name] == worker.Tally(errors=0, failures=0, problem="")
    step.error = error
    wait_until(lambda: name in stuck_loops())
    found = tallies()[name]
    assert found.errors >= found.failures >= worker.STUCK_FAILURES
    assert found.problem == type(error).__name__
    step.error = None
    wait_until(lambda: loop.failures == 0)
    assert name not in stuck_loops()
    assert loop.stop()


def test_a_step_that_hangs_is_stuck_until_it_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No error is raised, so the time of the step under way says it."""
    go_on = threading.Event()
    loop = Worker("hangs", go_on.wait, pause_s=0.001, at_once=True)
    loop.start()
    wait_until(lambda: loop.step_s > 0)
    assert "hangs" not in stuck_loops()
    monkeypatch.setattr(worker, "STUCK_STEP_S", 0.01)
    wait_until(lambda: "hangs" in stuck_loops())
    assert stuck_loops()["hangs"].startswith("hangs: its step has taken ")
    go_on.set()
    wait_until(lambda: loop.step_s == 0)
    assert loop.stop()
    assert "hangs" not in stuck_loops()


def test_every_error_is_counted_once() -> None:
    """A step that fails each second time: half of its runs."""
    turns = iter(range(100))

    def step() -> None:
        turn = next(turns, None)
        if turn is None:
            loop._stopped.set()
        elif turn % 2:
            raise RuntimeError("every second time")

    loop = Worker("each second", step, pause_s=0.0)
    loop.run()
    assert tallies()["each second"].errors == 50


def test_the_counter_outlives_the_worker() -> None:
    """A part that is started again starts its loop again; the counter only rises."""
    counted = 0
    for _ in range(2):
        step = Breakable()
        step.error = KeyError("x")
        loop = Worker("again", step, pause_s=0.0)
        loop.start()
        wait_until(lambda loop=loop: loop.failures > 2)
        loop.stop()
        found = tallies()["again"]
        assert found.errors >= counted + 3
        assert (found.failures, found.problem) == (0, "")  # of loops that run
        counted = found.errors


def test_the_worst_of_a_name_is_shown() -> None:
    """Two loops of one name, as two journals of one step: one that works hides none."""
    ill, well = Breakable(), Breakable()
    ill.error = ValueError("x")
    loops = [Worker("both", one, pause_s=0.001) for one in (ill, well)]
    for loop in loops:
        loop.start()
    wait_until(lambda: "both" in stuck_loops() and well.ran > 10)
    assert stuck_loops()["both"].endswith("times in a row: ValueError")
    for loop in loops:
        loop.stop()


def test_pauses_double_up_to_a_cap_and_never_overflow() -> None:
    """By hand: 2, 4, 8 … 60; the 1,025th power of two is no float any more."""
    pauses = [backoff_s(number, first_s=2.0, most_s=60.0) for number in range(1, 8)]
    assert pauses == [2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]
    assert backoff_s(1_026, first_s=2.0, most_s=60.0) == 60.0
    assert backoff_s(10**9, first_s=2.0, most_s=60.0) == 60.0


def test_a_pause_after_a_failure_is_not_cut_short(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A loop that is woken by every request does not spin while it fails."""
    monkeypatch.setattr(worker, "FIRST_PAUSE_S", 60.0)
    monkeypatch.setattr(worker, "MOST_PAUSE_S", 60.0)
    step = Breakable()
    step.error = RuntimeError("x")
    loop = Worker("spin", step, pause_s=None)
    loop.start()
    loop.wake()
    wait_until(lambda: loop.failures == 1)
    for _ in range(1_000):
        loop.wake()
    assert step.ran == 1
    assert loop.stop()  # which does cut it short


def test_the_log_has_one_line_a_minute_without_the_words(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """An error's words may hold a customer's id; where it came from is there."""
    step = Breakable()
    step.error = RuntimeError("customer 4711")
    loop = Worker("quiet", step, pause_s=0.001)
    loop.start()
    wait_until(lambda: loop.failures > 20)
    step.error = None
    wait_until(lambda: loop.failures == 0)
    loop.stop()
    first, second = caplog.messages
    assert first.startswith("quiet goes on after an error nobody foresaw (1 in a row)")
    assert "RuntimeError" in first
    assert "test_worker.py" in first
    assert "4711" not in caplog.text
    assert second == "quiet works again"


def test_the_owner_hears_of_an_error_and_may_fail_too() -> None:
    """What the owner does with it ends nothing either, and is counted."""
    heard: list[Exception] = []

    def failed(error: Exception) -> None:
        heard.append(error)
        raise ValueError("the owner's own")

    step = Breakable()
    step.error = KeyError("x")
    loop = Worker("owner", step, pause_s=0.001, failed=failed)
    loop.start()
    wait_until(lambda: len(heard) > 2)
    loop.stop()
    assert all(isinstance(error, KeyError) for error in heard)
    assert tallies()["owner"].errors == 2 * len(heard)


def test_what_computes_the_pause_may_fail() -> None:
    """It is a part of the loop."""
    step = Breakable()

    def pause_s() -> float:
        if step.ran < 3:
            raise ZeroDivisionError
        return 0.001

    loop = Worker("pause", step, pause_s=pause_s)
    loop.start()
    wait_until(lambda: step.ran > 5)
    loop.stop()
    assert tallies()["pause"].errors == 3  # the first pause is before the first step


def test_the_last_call_is_made_after_a_failure() -> None:
    """What waits is written at the end, though the steps before failed."""
    step, last = Breakable(), Breakable()
    step.error = last.error = RuntimeError("x")
    loop = Worker("last", step, pause_s=0.001, finish=last)
    loop.start()
    wait_until(lambda: step.ran > 0)
    assert loop.stop()
    assert last.ran == 1


def test_an_error_that_ends_the_loop_is_raised() -> None:
    """On purpose, and only of the kinds that were named."""
    step = Breakable()
    step.error = ConnectionError("given up")
    loop = Worker("ends", step, pause_s=0.0, ends=(ConnectionError,))
    with pytest.raises(ConnectionError, match="given up"):
        loop.run()
    assert step.ran == 1
    assert tallies()["ends"].errors == 0


def test_an_event_of_the_caller_ends_loop_and_pause() -> None:
    """As SIGTERM does for a command that runs a loop."""
    stopped = threading.Event()
    step = Breakable()
    loop = Worker("event", step, pause_s=3_600.0, at_once=True, stopped=stopped)
    loop.start()
    wait_until(lambda: step.ran == 1)
    stopped.set()
    assert loop.stop(60)


def test_a_call_is_repeated_until_it_succeeds() -> None:
    """After each error that was named; others are raised."""
    errors: list[Exception] = [ConnectionError("1"), ConnectionError("2")]
    seen: list[Exception] = []

    def call() -> None:
        if errors:
            raise errors.pop(0)

    def run() -> bool:
        return worker.retry(
            call,
            errors=(ConnectionError,),
            failed=seen.append,
            stopped=threading.Event(),
        )

    assert run()
    assert [str(one) for one in seen] == ["1", "2"]
    errors.append(ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        run()


def test_a_stopped_caller_repeats_nothing() -> None:
    """The pause ends, and the call counts as one that never succeeded."""
    stopped = threading.Event()
    stopped.set()
    step = Breakable()
    step.error = ConnectionError("away")
    assert not worker.retry(
        step, errors=(ConnectionError,), failed=lambda error: None, stopped=stopped
    )
    assert step.ran == 1


def test_every_background_loop_is_a_worker() -> None:
    """A thread of another kind ends for ever with its first error."""
    tree = Path(worker.__file__).parent
    client = tree.parent / "clients" / "python"
    found = {
        path.relative_to(tree).as_posix()
        for path in [*tree.rglob("*.py"), *client.rglob("*.py")]
        if re.search(r"\bThread\(|\bTimer\(|serve_forever", path.read_text())
    }
    # An import at a low priority, and the wait for a child process: each runs once.
    assert found == {"worker.py", "imports.py", "server/processes/child.py"}

"""Tests of child processes that do not outlive us."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tollgate.server.processes.child import Child

SLEEP = ["/bin/sleep", "600"]


def _start(argv: list[str], log: Path) -> Child:
    return Child(argv, name="sleeper", env={}, log=log)


def test_a_child_that_ends_tells_how(
    tmp_path: Path, wait_until: Callable[..., None]
) -> None:
    """The status and the output of a program that fails can be read."""
    log = tmp_path / "log"
    child = _start(["/bin/sh", "-c", "echo words; exit 3"], log)
    wait_until(lambda: not child.alive())
    assert child.status() == "ended with status 3"
    assert log.read_text() == "words\n"


def test_a_program_that_is_not_there_is_named(
    tmp_path: Path, wait_until: Callable[..., None]
) -> None:
    """Its path and the system's reason stand in the log."""
    child = _start(["/no/such/program"], tmp_path / "log")
    wait_until(lambda: not child.alive())
    words = (tmp_path / "log").read_text()
    assert words == "error: /no/such/program: No such file or directory\n"


def test_a_child_outlives_the_thread_that_asked_for_it(tmp_path: Path) -> None:
    """The kernel's death signal is bound to a thread; that must not show."""
    made: list[Child] = []
    starter = threading.Thread(
        target=lambda: made.append(_start(SLEEP, tmp_path / "log"))
    )
    starter.start()
    starter.join()
    assert not made[0].wait(0.3)
    assert made[0].stop(grace_s=10)


def test_a_child_that_ignores_us_is_killed_with_its_own(
    tmp_path: Path, gone: Callable[[int], bool], wait_until: Callable[..., None]
) -> None:
    """After the grace period the whole process group goes."""
    log = tmp_path / "log"
    child = _start(["/bin/sh", "-c", "trap '' TERM; sleep 600 & echo $!; wait"], log)
    wait_until(lambda: log.exists() and log.read_text().endswith("\n"))
    assert not child.stop(grace_s=0.2)
    assert child.status() == "was ended by SIGKILL"
    wait_until(lambda: gone(int(log.read_text())))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_child_dies_with_us(
    tmp_path: Path,
    number: signal.Signals,
    gone: Callable[[int], bool],
    wait_until: Callable[..., None],
) -> None:
    """However the parent ends, the child gets its signal from the kernel."""
    script = (
        "import pathlib, sys, time\n"
        "from tollgate.server.processes.child import Child\n"
        "log = pathlib.Path(sys.argv[1])\n"
        "child = Child(['/bin/sleep', '600'], name='sleeper', env={}, log=log)\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "log")],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    # Once it is sleep, the signal has been asked for.
    wait_until(lambda: Path(f"/proc/{pid}/comm").read_text() == "sleep\n")
    parent.send_signal(number)
    parent.communicate()
    wait_until(lambda: gone(pid))

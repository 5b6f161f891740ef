"""Tests of process 1 of a container, played by one that adopts orphans like it."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

# PR_SET_CHILD_SUBREAPER has orphans adopted as process 1 adopts them.
ADOPTING = """
import ctypes, os, signal, sys, time
from tollgate.cli.operations.first_process import reap_as_first_process

ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
reap_as_first_process()
"""
ORPHAN = """
child = os.fork()
if child == 0:
    if os.fork():
        os._exit(0)
    time.sleep(0.3)
    os._exit(0)
os.waitpid(child, 0)
"""


def _started(code: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", ADOPTING + code], stdout=subprocess.PIPE, text=True
    )


def _states_of_children(pid: int) -> list[str]:
    states = []
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        stat = Path(f"/proc/{child}/stat").read_text()
        states.append(stat.rpartition(")")[2].split()[0])
    return states


def test_an_orphan_is_reaped() -> None:
    """A process that lost its parent leaves no zombie behind."""
    code = ORPHAN + "time.sleep(0.8); print('now', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", ADOPTING + code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "now\n"
        children = _states_of_children(first.pid)
        assert len(children) == 1  # the worker alone; the orphan is gone
        assert "Z" not in children


def test_signals_reach_the_worker() -> None:
    """SIGTERM to process 1 is SIGTERM to the one that works."""
    code = (
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))\n"
        "print('here', flush=True)\nsignal.pause()"
    )
    with _started(code) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "here\n"
        first.send_signal(signal.SIGTERM)
        assert first.wait(timeout=600) == 7


def test_it_ends_as_the_worker_ended() -> None:
    """The exit status goes through; death by a signal is 128 and its number."""
    with _started("sys.exit(2)") as first:
        assert first.wait(timeout=600) == 2
    with _started("os.kill(os.getpid(), signal.SIGKILL)") as first:
        assert first.wait(timeout=600) == 128 + signal.SIGKILL

"""Imports that give way: who waits for them keeps its priority."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest

from tollgate.imports import be_gentle, gently, import_gently

CODE = """
import os, sys, threading
from tollgate.imports import import_gently
before = os.getpriority(os.PRIO_PROCESS, 0)
import_gently("wave", "no_such_module", "colorsys")
assert {"wave", "colorsys"} <= set(sys.modules)
assert os.getpriority(os.PRIO_PROCESS, 0) == before
assert threading.active_count() == 1
print("fine")
"""


def test_modules_are_there_and_nothing_else_changed() -> None:
    """One that is missing is left to whoever imports it by name."""
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("fine\n", "")


def test_only_the_thread_that_asks_is_gentle() -> None:
    """The others keep their priority."""
    found: list[int] = []

    def ask() -> None:
        be_gentle()
        found.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))

    before = os.getpriority(os.PRIO_PROCESS, 0)
    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    import_gently()
    assert found == [before + 5]
    assert os.getpriority(os.PRIO_PROCESS, 0) == before


def test_what_is_done_gently_is_handed_back() -> None:
    """What it returns, and what it raises; whoever waits keeps its priority."""
    before = os.getpriority(os.PRIO_PROCESS, 0)

    def priority() -> int:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    assert gently(priority) == before + 5
    with pytest.raises(ZeroDivisionError):
        gently(lambda: 1 // 0)
    assert os.getpriority(os.PRIO_PROCESS, 0) == before

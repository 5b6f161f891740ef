"""
Import what is heavy without getting in the way of what serves.

A step that starts beside one that serves imports numpy and the like for a third of a
second of processor time. On Linux a thread has a priority of its own, and any thread
may lower its own: so a thread imports, and the one that serves later waits for it.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import threading
from collections.abc import Callable
from typing import TypeVar

# A third of the weight: of a core that others want too, all of an idle one.
_NICER = 5

Made = TypeVar("Made")


def import_gently(*names: str) -> None:
    """
    Import modules at a lower priority, and wait for it.

    What they raise is left to whoever imports them by name.
    """
    gently(lambda: _import(names))


def gently(work: Callable[[], Made]) -> Made:
    """
    Do something at a lower priority, and wait for it.

    Args:
        work: What to do; it starts no threads, which would stay at that priority.

    Returns:
        What it returns.

    Raises:
        BaseException: What it raises.
    """
    made: list[Made] = []
    raised: list[BaseException] = []

    def do() -> None:
        be_gentle()
        try:
            made.append(work())
        except BaseException as error:  # noqa: BLE001 - raised again below
            raised.append(error)

    thread = threading.Thread(target=do, name="gently")
    thread.start()
    thread.join()
    if raised:
        raise raised[0]
    return made[0]


def be_gentle() -> None:
    """Lower the priority of the calling thread by as much, for good."""
    thread = threading.get_native_id()
    with contextlib.suppress(OSError):
        now = os.getpriority(os.PRIO_PROCESS, thread)
        os.setpriority(os.PRIO_PROCESS, thread, now + _NICER)


def _import(names: tuple[str, ...]) -> None:
    for name in names:
        with contextlib.suppress(Exception):
            importlib.import_module(name)

"""
Import heavy modules at low priority, so that a serving process is not slowed down.

A new step that starts next to one that serves spends a third of a second of processor
time on importing numpy and similar modules. On Linux each thread has its own priority,
and may lower it: so a separate thread imports, and the thread that serves later waits
for it.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import threading
from collections.abc import Callable
from typing import TypeVar

# Nice +5 has a third of the scheduler weight: that share of a busy core, and all of an
# idle one.
_NICER = 5
_AT_START_S = 0.5

Made = TypeVar("Made")


def import_gently(*names: str) -> None:
    """
    Import modules at a lower priority, and wait for it.

    It suppresses their errors: a later import by name raises them again.
    """
    gently(lambda: _import(names))


def import_at_start(name: str) -> None:
    """
    Import a module at a lower priority while Python starts, from a .pth file.

    Python's start holds the lock of `site`, so a module that imports `site` ends its
    import after the start only. So this waits for half a second at most; a later import
    by name waits for the rest.
    """
    thread = threading.Thread(target=_import_gently, args=(name,), name="gently")
    thread.start()
    thread.join(_AT_START_S)


def _import_gently(name: str) -> None:
    be_gentle()
    _import((name,))


def gently(work: Callable[[], Made]) -> Made:
    """
    Run a function at a lower priority, wait for it, and return its result.

    Args:
        work: The function; it starts no threads, which would stay at that priority.

    Raises:
        BaseException: Any exception that the function raises.
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
    """Lower the priority of the calling thread by the same amount, permanently."""
    thread = threading.get_native_id()
    with contextlib.suppress(OSError):
        now = os.getpriority(os.PRIO_PROCESS, thread)
        os.setpriority(os.PRIO_PROCESS, thread, now + _NICER)


def _import(names: tuple[str, ...]) -> None:
    for name in names:
        with contextlib.suppress(Exception):
            importlib.import_module(name)

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

# Weight 335 against 1,024: a third of a core that others want too, all of an idle one.
_NICE = 5


def import_gently(*names: str) -> None:
    """
    Import modules at a lower priority, and wait for it.

    What they raise is left to whoever imports them by name.
    """
    thread = threading.Thread(target=_import, args=(names,), name="imports")
    thread.start()
    thread.join()


def be_gentle() -> None:
    """Lower the priority of the calling thread, for good."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)


def _import(names: tuple[str, ...]) -> None:
    be_gentle()
    for name in names:
        with contextlib.suppress(Exception):
            importlib.import_module(name)

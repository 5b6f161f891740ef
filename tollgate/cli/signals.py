"""Catch the signals that end a command which runs until it is stopped."""

from __future__ import annotations

import signal
import threading


def stop_on_signal() -> threading.Event:
    """
    Return an event that SIGTERM and Ctrl-C set from now on, instead of killing.

    Call it before starting a process or announcing a port: a signal that arrives
    between that and this call would kill the command, and its clean-up would not run.
    """
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    return stopped

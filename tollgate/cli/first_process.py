"""
What the first process of a container owes to the others.

When tritonserver is killed, its Python steps become children of process 1. One that
never waits for them keeps every one as a zombie, and whoever ends the group waits for
it in vain. So process 1 only waits and passes signals on; the work is its child's.
"""

from __future__ import annotations

import os
import signal

_PASSED_ON = {
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
}
_KILLED = 128  # what a shell adds to the number of a signal


def leave_first_place() -> None:
    """
    Go on in a child; this process waits for it, reaps, and ends as it ended.

    Must be called before there are threads.
    """
    # Blocked signals are kept until they are asked for: none is lost in between.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {*_PASSED_ON, signal.SIGCHLD})
    worker = os.fork()
    if worker == 0:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return
    while True:
        number = signal.sigwait({*_PASSED_ON, signal.SIGCHLD})
        if number != signal.SIGCHLD:
            os.kill(worker, number)
            continue
        status = _reaped(worker)
        if status is not None:
            os._exit(status)


def _reaped(worker: int) -> int | None:
    """Take in all that ended; the worker's exit status if it is among them."""
    while True:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return None
        if pid == worker:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else _KILLED - code

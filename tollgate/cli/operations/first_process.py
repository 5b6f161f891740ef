"""
Reap zombies as process 1 of a container.

When tritonserver is killed, its Python steps become children of process 1. If process 1
never waits for them, they stay zombies, and a wait for the end of the process group
never returns. So process 1 only waits and forwards signals; its child does the work.
"""

from __future__ import annotations

import os
import signal

_FORWARDED = {
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
}
_KILLED = 128  # a shell adds the number of the signal to this


def reap_as_first_process() -> None:
    """
    Continue in a child; this process waits for it, reaps zombies, and exits as it did.

    Call it before any thread starts.
    """
    # The kernel holds blocked signals until they are read, so none is lost in between.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {*_FORWARDED, signal.SIGCHLD})
    worker = os.fork()
    if worker == 0:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return
    while True:
        number = signal.sigwait({*_FORWARDED, signal.SIGCHLD})
        if number != signal.SIGCHLD:
            os.kill(worker, number)
            continue
        status = _reap(worker)
        if status is not None:
            os._exit(status)


def _reap(worker: int) -> int | None:
    """Reap all ended children; return the worker's exit status if it is among them."""
    while True:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return None
        if pid == worker:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else _KILLED - code

"""
Lower the priority of Redis' child processes, so that request processing comes first.

Redis rewrites its append-only file in a child process. That takes a core for seconds,
which the store and the steps need; no request waits for the rewrite.
"""

from __future__ import annotations

import contextlib
import os
import resource
import threading
import time
from pathlib import Path

from tollgate.worker import Worker

_LOOK_S = 0.25
_LEAST = 19  # the nice value of the lowest priority
_USUAL_NICE = 20  # RLIMIT_NICE counts from 20 down to the nice value: 0
_CAP_SYS_NICE = 23  # capabilities(7), sched(7)
# Redis holds the writes of that time in memory until its child is done; on a machine
# without spare processor time, this must not go on for ever.
PATIENCE_S = 60.0


class YieldingChildren:
    """
    Run the children of a process at idle priority, for a limited time.

    A user without the right to restore the priority, such as most users, sets the
    lowest nice value instead.

    Args:
        pid: The process.
        patience_s: Seconds after which a child gets normal priority again.
    """

    def __init__(self, pid: int, *, patience_s: float = PATIENCE_S) -> None:
        self._children = Path(f"/proc/{pid}/task/{pid}/children")
        self._patience_s = patience_s
        self._found_s: dict[int, float] = {}
        self._returns = may_return()
        self._ended = threading.Event()
        self._worker = Worker(
            "redis-children", self._look, pause_s=_LOOK_S, stopped=self._ended
        )
        self._worker.start()

    def close(self) -> None:
        """Stop looking; a child that exists stays as it is."""
        self._worker.stop()

    def _look(self) -> None:
        try:
            alive = [int(one) for one in self._children.read_text().split()]
        except OSError:  # the process ended, or this kernel lists no children
            self._ended.set()
            return
        now_s = time.monotonic()
        before = self._found_s
        self._found_s = {pid: before.get(pid, now_s) for pid in alive}
        for pid, found_s in self._found_s.items():
            # The child may have ended meanwhile.
            with contextlib.suppress(OSError):
                if self._returns:
                    _allow(pid, usual=now_s - found_s >= self._patience_s)
                else:
                    os.setpriority(os.PRIO_PROCESS, pid, _LEAST)


def may_return() -> bool:
    """Return whether the priority can be restored: by CAP_SYS_NICE or RLIMIT_NICE."""
    most, _ = resource.getrlimit(resource.RLIMIT_NICE)
    if most >= _USUAL_NICE or most == resource.RLIM_INFINITY:
        return True
    lines = Path("/proc/self/status").read_text().splitlines()
    rights = next(line.split()[1] for line in lines if line.startswith("CapEff:"))
    return bool(int(rights, 16) >> _CAP_SYS_NICE & 1)


def _allow(pid: int, *, usual: bool) -> None:
    """Set normal or idle scheduling of a process."""
    policy = os.SCHED_OTHER if usual else os.SCHED_IDLE
    if os.sched_getscheduler(pid) != policy:
        os.sched_setscheduler(pid, policy, os.sched_param(0))

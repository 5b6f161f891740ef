"""
Redis' children give way to those who answer.

Redis writes its file anew in a child. That takes a core for seconds, which the store
and the steps need, and nobody waits for it.
"""

from __future__ import annotations

import contextlib
import os
import resource
import threading
import time
from pathlib import Path

from tollgate.worker import Worker

_LOOK_S = 0.1
_LEAST = 19  # the nice value of the smallest share
_USUAL_NICE = 20  # RLIMIT_NICE counts from 20 down to the nice value: 0
_CAP_SYS_NICE = 23  # capabilities(7), sched(7)
# What is written meanwhile, Redis keeps in memory until its child is done; on a machine
# without any time left over, that must not go on for ever.
PATIENCE_S = 60.0


class YieldingChildren:
    """
    Lets the children of a process run when nothing else wants to, for a while.

    Who may not give them their share back afterwards, as most users may not, gives them
    the smallest one there is instead.

    Args:
        pid: The process.
        patience_s: How long after it was found a child gets the usual share again.
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
        """Look no more; a child there is stays as it is."""
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
            # It may have ended meanwhile.
            with contextlib.suppress(OSError):
                if self._returns:
                    _allow(pid, usual=now_s - found_s >= self._patience_s)
                else:
                    os.setpriority(os.PRIO_PROCESS, pid, _LEAST)


def may_return() -> bool:
    """Tell whether a share can be given back: by right, or within RLIMIT_NICE."""
    most, _ = resource.getrlimit(resource.RLIMIT_NICE)
    if most >= _USUAL_NICE or most == resource.RLIM_INFINITY:
        return True
    lines = Path("/proc/self/status").read_text().splitlines()
    rights = next(line.split()[1] for line in lines if line.startswith("CapEff:"))
    return bool(int(rights, 16) >> _CAP_SYS_NICE & 1)


def _allow(pid: int, *, usual: bool) -> None:
    """Give a process the usual share of the processors, or what nobody else wants."""
    policy = os.SCHED_OTHER if usual else os.SCHED_IDLE
    if os.sched_getscheduler(pid) != policy:
        os.sched_setscheduler(pid, policy, os.sched_param(0))

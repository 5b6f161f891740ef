"""
Raise an unforeseen error in every background loop of a process.

Nothing in `tollgate/` knows of this: `loadtests.unforeseen` makes the processes that it
starts import this module. A round begins when the number in the file `round` of a
folder changes: then the next step of each loop raises, in odd rounds before it has done
anything, in even ones when all is done. Each process writes a file that says which
errors were injected, and whether the loop has worked since.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from pathlib import Path

import msgspec

from tollgate import worker
from tollgate.worker import Worker

ROUND_FILE = "round"
_LOOK_S = 0.5
_THREAD = "injection"
_LAZY = "store-prober"  # starts with the first outage of the store
_KINDS = (RuntimeError, KeyError, OverflowError, ValueError, IndexError, MemoryError)


class Loop(msgspec.Struct):
    """
    Results of one loop.

    Attributes:
        name: Name of its worker.
        alive: True if a step has worked since the last of these.
    """

    name: str
    injected: int = 0
    alive: bool = False


class LoopReport(msgspec.Struct):
    """LoopReport of one process."""

    pid: int
    loops: list[Loop]


class _Injector:
    """Raises an error in each loop of this process, once a round."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._round = 0
        self._due: weakref.WeakSet[Worker] = weakref.WeakSet()
        self._loops: weakref.WeakKeyDictionary[Worker, Loop] = (
            weakref.WeakKeyDictionary()
        )
        self._attempt = Worker._attempt
        injector = self

        def attempt(loop: Worker) -> None:
            injector.attempt(loop)

        Worker._attempt = attempt  # type: ignore[method-assign]

    def attempt(self, loop: Worker) -> None:
        """Run a step, or raise an error in its place."""
        entry = self._loops.setdefault(loop, Loop(loop.name))
        if loop not in self._due:
            self._attempt(loop)
            entry.alive = True
            return
        self._due.discard(loop)
        if self._round % 2 == 0:
            self._attempt(loop)
        entry.injected += 1
        entry.alive = False
        kind = _KINDS[self._round % len(_KINDS)]
        raise kind(f"injected in round {self._round}")

    def live(self) -> None:
        """Start rounds and write reports, for as long as the process lives."""
        while True:
            time.sleep(_LOOK_S)
            try:
                wanted = int((self._folder / ROUND_FILE).read_text())
            except (FileNotFoundError, ValueError):
                continue
            if wanted != self._round:
                self._round = wanted
                self._begin()
            self._report()

    def _begin(self) -> None:
        with worker._counting:
            running = [one for one in worker._workers if one.running]
        for one in running:
            self._due.add(one)
            if one.name == _LAZY:
                one.start()
            one.wake()

    def _report(self) -> None:
        if not self._loops:
            return
        report = LoopReport(os.getpid(), list(self._loops.values()))
        path = self._folder / f"{report.pid}.json"
        new = path.with_suffix(".new")
        new.write_bytes(msgspec.json.encode(report))
        new.replace(path)


def install(folder: str) -> None:
    """
    Inject errors in this process from now on.

    A second call does nothing: a step reads its .pth files twice.

    Args:
        folder: Folder of the round number and of the reports.
    """
    if any(one.name == _THREAD for one in threading.enumerate()):
        return
    injector = _Injector(Path(folder))
    threading.Thread(target=injector.live, name=_THREAD, daemon=True).start()


def reports(folder: Path) -> list[LoopReport]:
    """Read the reports of all processes."""
    return [
        msgspec.json.decode(path.read_bytes(), type=LoopReport)
        for path in sorted(folder.glob("*.json"))
    ]

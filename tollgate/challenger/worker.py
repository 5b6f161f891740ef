"""
The trial worker: counts decisions from the journal's stream, off the request path.

The worker acknowledges entries after their counts are on disk, and counts each record
once, by writer and sequence number. So a killed worker skips no record and counts none
twice. It never blocks the journal: entries that it has not read are removed from the
stream when the journal has sealed them.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import msgspec

from tollgate.audit.source import ChunkSource, StreamEntry
from tollgate.challenger.gates import broken
from tollgate.challenger.kept import Trial, TrialState
from tollgate.challenger.measures import end_trial
from tollgate.challenger.run import TrialCounter
from tollgate.challenger.trials import current_trials
from tollgate.errors import JournalError, TollgateError
from tollgate.journal.record import decode_chunk
from tollgate.repository.gates import Gates, read_gates
from tollgate.worker import run_until_idle

log = logging.getLogger(__name__)

JUDGE_S = 2.0
WORKER_LOCK = ".worker.lock"
Changing = Callable[[], AbstractContextManager[Path]]

_POLLED = 64  # entries per read
_WAIT_S, _AWAY_S = 0.5, 1.0


class TrialWorkerCounts(msgspec.Struct):
    """Counts of a worker since it started."""

    rows: int = 0
    unreadable: int = 0
    retries: int = 0
    ended: list[str] = []


class TrialWorker:
    """
    Counts the trials of one product, and ends those that break a gate.

    Args:
        source: Stream to read decisions from.
        repository: Model repository, or the local copy of it.
        product: Ensemble of the trials.
        folder: Folder of the counts.
        changing: Context that yields a folder with the repository, and applies the
            changes made there to it; by default the folder is the repository itself.
        refresh: Updates the local copy of the repository.
        judge_s: Seconds between saves of the counts, each followed by a judgement.
        say: Called with a message about each trial that starts or ends.
        on_step: Called with the name of each step; tests stop there.

    Raises:
        PolicyError: The gates cannot be read.
    """

    def __init__(
        self,
        source: ChunkSource,
        *,
        repository: Path,
        product: str,
        folder: Path,
        changing: Changing | None = None,
        refresh: Callable[[], None] = lambda: None,
        judge_s: float = JUDGE_S,
        say: Callable[[str], None] = lambda text: None,
        on_step: Callable[[str], None] = lambda step: None,
    ) -> None:
        self._source = source
        self._repository = repository
        self._product = product
        self._folder = folder
        self._changing = changing or (lambda: contextlib.nullcontext(repository))
        self._refresh = refresh
        self._judge_s = judge_s
        self._say = say
        self._on_step = on_step
        self._gates: Gates = read_gates(repository, product=product)
        self._runs: dict[Trial, TrialCounter] = {}
        self._entries: deque[StreamEntry] = deque()  # entries not counted yet
        self._ids: list[bytes] = []
        self._due_s = 0.0
        self._problem = ""
        self.tally = TrialWorkerCounts()

    def counted(self) -> list[TrialState]:
        """Return the counts of each current trial."""
        return [run.state for run in list(self._runs.values())]

    def run(
        self, stopped: threading.Event, *, until_idle_s: float | None = None
    ) -> None:
        """Work until `stopped` is set, or until no entry came for a while."""

        def step() -> int:
            try:
                return self.step()
            except TollgateError as exc:
                self._log_problem(str(exc))
                self.tally.retries += 1
                stopped.wait(_AWAY_S)
                return 0

        run_until_idle("trial-worker", step, stopped=stopped, until_idle_s=until_idle_s)
        try:
            self._save()
            self._judge()
        except TollgateError as exc:
            self._log_problem(str(exc))  # the next worker receives the entries again

    def step(self) -> int:
        """Read entries, save and judge when due; return the number of entries read."""
        if time.monotonic() >= self._due_s:
            self._save()
            self._judge()
            self._update_trials()
            self._due_s = time.monotonic() + self._judge_s
        if not self._runs:
            time.sleep(min(_WAIT_S, self._judge_s))
            return 0  # entries stay in the stream for the next trial
        if not self._entries:
            wait_s = min(_WAIT_S, self._judge_s)
            self._entries.extend(self._source.poll(most=_POLLED, wait_s=wait_s))
        number = len(self._entries)
        while self._entries:  # after an error the next step takes the rest
            self._count_entry(self._entries[0])
            self._ids.append(self._entries.popleft().id)
        return number

    def _count_entry(self, entry: StreamEntry) -> None:
        if not entry.chunk:
            return  # a writer's end, or an entry deleted while pending
        try:
            records = decode_chunk(entry.chunk)
        except JournalError:  # the journal worker makes it a dead letter
            self.tally.unreadable += 1
            return
        for run in self._runs.values():
            run.count(records)
        self.tally.rows += len(records)

    def _save(self) -> None:
        if not self._ids:
            return
        for run in self._runs.values():
            run.save()
        self._on_step("saved")
        self._source.acknowledge(self._ids)
        self._ids = []
        self._on_step("acknowledged")

    def _judge(self) -> None:
        """End the trials that break a gate; if that fails, it is tried again."""
        try:
            self._gates = read_gates(self._repository, product=self._product)
        except TollgateError as exc:
            self._log_problem(f"the previous gates still apply: {exc}")
        for trial, run in list(self._runs.items()):
            found = broken(run.judge(self._gates))
            if not found:
                continue
            reason = "; ".join(map(str, found))
            try:
                with self._changing() as folder:
                    done = end_trial(trial, repository=folder, reason=reason)
            except TollgateError as exc:
                self._log_problem(f"{trial.challenger} could not be ended: {exc}")
                continue
            if done:
                self.tally.ended.append(done)
                self._say(done)
            del self._runs[trial]

    def _update_trials(self) -> None:
        """
        Update the current trials; if they cannot be read, the previous ones continue.
        """
        try:
            self._refresh()
        except TollgateError as exc:
            self._log_problem(f"the repository cannot be refreshed: {exc}")
        trials = current_trials(
            self._repository,
            product=self._product,
            watch_s=self._gates.watch_s,
            now_s=time.time(),
        )
        for gone in self._runs.keys() - set(trials):
            del self._runs[gone]
        for trial in trials:
            if trial in self._runs:
                continue
            try:
                self._runs[trial] = TrialCounter(
                    trial, repository=self._repository, folder=self._folder
                )
            except TollgateError as exc:
                self._log_problem(f"{trial.challenger} is not counted: {exc}")
            else:
                self._say(f"{trial.mode}: {trial.challenger} against {trial.champion}")

    def _log_problem(self, problem: str) -> None:
        """Log a problem, once as long as it stays the same."""
        if problem != self._problem:
            log.warning("%s", problem)
        self._problem = problem

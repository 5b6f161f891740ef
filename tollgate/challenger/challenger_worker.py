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
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import numpy.typing as npt

from tollgate.audit.releases.past_release import OpenedRelease, open_release
from tollgate.audit.worker.chunk_source import ChunkSource, StreamEntry
from tollgate.audit.worker.sealing import slice_records
from tollgate.challenger.decision_counts import (
    ALL,
    Arm,
    Decisions,
    Group,
    Groups,
    add_groups,
    count_arm,
    count_pairs,
    group_names,
    only,
)
from tollgate.challenger.shadow_scoring import Scorer, recorded_decisions
from tollgate.challenger.trial_gates import GateResult, broken, flips, judge
from tollgate.challenger.trials import (
    Trial,
    TrialState,
    counted_numbers,
    current_trials,
    load,
    newest,
    save,
    seconds_of,
)
from tollgate.errors import InputError, JournalError, TollgateError
from tollgate.journal.decision_record import Records, decode_chunk
from tollgate.metrics import family
from tollgate.repository.gate_limits import Gates, read_gates
from tollgate.repository.releases.activation import activate, recompose_release
from tollgate.repository.releases.release_history import find_release
from tollgate.repository.releases.trial_changes import without_challenger
from tollgate.repository.snapshot import RepositorySnapshot
from tollgate.worker import run_until_idle

if TYPE_CHECKING:
    from prometheus_client.core import Metric


# End a trial whose gate is broken.

ACTOR = "challenger run"


def end_trial(trial: Trial, *, repository: Path, reason: str) -> str:
    """
    Stop a challenger, or roll a promoted release back.

    Returns:
        One line that describes the change; empty if the trial is over already.

    Raises:
        RepositoryError: The release to activate does not fit the repository, or the
            active release changed meanwhile.
        SpecError, PolicyError: A file of the release cannot be used.
    """
    snapshot = RepositorySnapshot(repository)
    current = snapshot.release(trial.product)
    if trial.mode == "watch":
        if current.name != trial.challenger or not trial.champion:
            return ""
        found = find_release(repository, trial.product, trial.champion)
        activate(
            snapshot,
            recompose_release(snapshot, found),
            action="rollback",
            actor=ACTOR,
            reason=reason,
            instead_of=current,
        )
        return f"back from {trial.challenger} to {trial.champion}: {reason}"
    there = current.challenger
    if there is None or (there.release, there.time) != (trial.challenger, trial.began):
        return ""
    activate(
        snapshot,
        without_challenger(snapshot, product=trial.product),
        action="challenger stop",
        actor=ACTOR,
        reason=f"{trial.challenger}, {trial.mode}: {reason}",
        instead_of=current,
    )
    return f"stopped {trial.challenger}: {reason}"


# Run one trial: select its rows, decide them with the other release, count them.

log = logging.getLogger(__name__)


class TrialCounter:
    """
    Counts the rows of one trial.

    Args:
        folder: Folder of the counts; counting continues from this trial's file.

    Raises:
        RepositoryError: A release of the trial cannot be opened.
        InputError: The counts cannot be read, or the challenger cannot score the
            champion's rows.
    """

    def __init__(self, trial: Trial, *, repository: Path, folder: Path) -> None:
        self.trial = trial
        self._folder = folder
        self.state: TrialState = load(folder, trial)
        self._seen = counted_numbers(self.state)
        # Releases whose answers count.
        self._own = {
            "shadow": {trial.champion},
            "canary": {trial.champion, trial.challenger},
            "watch": {trial.challenger},
        }[trial.mode]
        self._since_us = int(seconds_of(trial.began) * 1e6)
        champion = _open(trial.champion, repository, trial.product)
        challenger = _open(trial.challenger, repository, trial.product)
        compared = challenger if trial.mode == "watch" else champion
        self.state.outcomes = compared.policy.outcomes.words
        self._scorer: Scorer | None
        if trial.mode == "watch":
            self._scorer = _scorer_of_watch(challenger, champion)
            if not self.state.baseline:
                self.state.baseline = _before(folder, trial)
        else:
            self._scorer = Scorer(champion, challenger)

    def count(self, records: Records) -> None:
        """Count the rows of a chunk that are of this trial and not counted yet."""
        first = records.first_sequence
        last = first + len(records) - 1
        for low, high in self._seen.add(records.writer, first, last=last):
            self._take(slice_records(records, slice(low - first, high + 1 - first)))

    def save(self) -> None:
        """
        Save the counts; they are on disk when this returns.

        Raises:
            InputError: The file cannot be written.
        """
        self.state.seen = self._seen.spans()
        save(self._folder, self.state)

    def judge(self, gates: Gates) -> list[GateResult]:
        """Judge the counts by gates."""
        return judge(self.state, gates)

    def _take(self, records: Records) -> None:
        mine = self._mine(records)
        self.state.other += len(records) - (len(mine) if mine else 0)
        if mine is None:
            return
        scorer = self._scorer
        if scorer is not None and not scorer.fits(mine):
            self.state.unfit += len(mine)
        elif scorer is None or self._answered_by_challenger(mine):
            self._count(mine, scorer, challenger=recorded_decisions(mine))
        else:
            self._compare(mine, scorer)

    def _mine(self, records: Records) -> Records | None:
        """Return the rows of this trial; None if there are none."""
        if records.release not in self._own:
            return None
        if self.trial.mode == "shadow":
            return records  # older rows count, too: both decide them
        late = records.decided_us >= self._since_us
        if not late.any():
            return None
        # The rows of one writer are ordered by decision time.
        return slice_records(records, slice(int(np.argmax(late)), len(records)))

    def _answered_by_challenger(self, records: Records) -> bool:
        answered = records.release == self.trial.challenger
        return self.trial.mode == "canary" and answered

    def _compare(self, records: Records, scorer: Scorer) -> None:
        """Count rows that both releases decided: one then, the other now."""
        scored = scorer.score(records)
        self.state.again += len(records)
        self.state.worked_us += scored.worked_us
        one, other = scored.recorded, scored.other
        challenger: Decisions | None = other
        if self.trial.mode == "watch":
            one, other, challenger = other, one, one
        elif self.trial.mode == "canary":
            challenger = None  # only its own answers count
        self._count(
            records, scorer, champion=one, challenger=challenger, pairs=(one, other)
        )

    def _count(
        self,
        records: Records,
        scorer: Scorer | None,
        *,
        challenger: Decisions | None,
        champion: Decisions | None = None,
        pairs: tuple[Decisions, Decisions] | None = None,
    ) -> None:
        cents = records.cents
        groups: Groups = {}
        for name, rows in _groups(records, scorer).items():
            group = groups[name] = Group()
            if champion is not None:
                group.champion = count_arm(only(champion, rows), cents[rows])
            if challenger is not None:
                group.challenger = count_arm(only(challenger, rows), cents[rows])
            if pairs is not None:
                one, other = (only(each, rows) for each in pairs)
                group.pairs = count_pairs(one, other, cents[rows])
        self.state.groups = add_groups(self.state.groups, groups)


def _groups(
    records: Records, scorer: Scorer | None
) -> dict[str, npt.NDArray[np.bool_]]:
    """Return the rows of each group; without a scorer, groups by amount only."""
    if scorer is None:
        none = np.zeros(len(records), np.uint8)
        return group_names(none, records.cents, segments=())
    segment = scorer.segment(records)
    return group_names(
        segment, records.cents, segments=scorer.segments, money=scorer.money
    )


def _open(name: str, repository: Path, product: str) -> OpenedRelease:
    return open_release(name, archived=None, repository=repository, product=product)


def _before(folder: Path, trial: Trial) -> Groups:
    """
    Return the counts of the trial before a promotion: shadow or canary, whichever
    counted more of the champion's rows.
    """
    found = [
        state.groups
        for mode in ("shadow", "canary")
        if (state := newest(folder, challenger=trial.challenger, modes=(mode,)))
        and state.trial.champion == trial.champion
    ]
    return max(
        found, key=lambda one: one.get(ALL, Group()).champion.rows, default=Groups()
    )


def _scorer_of_watch(promoted: OpenedRelease, before: OpenedRelease) -> Scorer | None:
    """Return a scorer for the former release; None if its vectors cannot be derived."""
    try:
        return Scorer(promoted, before)
    except InputError as exc:
        log.warning("decisions are not compared with the former release: %s", exc)
        return None


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
        repository: Model repository, or the local copy of it.
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
        """Update the current trials; unless they can be read, the old ones go on."""
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


# Export the metrics of the worker at each scrape.


class TrialMetrics:
    """Export the counts of trials, and of the worker since its start."""

    def __init__(
        self,
        product: str,
        *,
        trials: Callable[[], list[TrialState]],
        tally: Callable[[], TrialWorkerCounts],
    ) -> None:
        from prometheus_client import CollectorRegistry

        self._product = product
        self._trials = trials
        self._tally = tally
        self.registry = CollectorRegistry()
        self.registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """Yield metric families, as prometheus_client requires."""
        tally = self._tally()
        for name, number in (
            ("taken", tally.rows),
            ("unreadable", tally.unreadable),
            ("retries", tally.retries),
            ("ended", len(tally.ended)),
        ):
            counted = family(f"tollgate_trial_{name}_total")
            counted.add_metric([self._product], number)
            yield counted
        found = [
            (
                [one.trial.product, one.trial.challenger, one.trial.mode],
                one.groups.get(ALL, Group()),
                one.outcomes,
            )
            for one in self._trials()
        ]
        yield from _pairs([(named, group) for named, group, _ in found])
        yield from _arms(found)


def _pairs(groups: list[tuple[list[str], Group]]) -> Iterator[Metric]:
    rows = family("tollgate_trial_pairs")
    flipped = family("tollgate_trial_flips")
    for named, group in groups:
        rows.add_metric(named, group.pairs.rows)
        flipped.add_metric(named, flips(group.pairs))
    yield rows
    yield flipped


def _arms(
    groups: list[tuple[list[str], Group, tuple[str, str, str]]],
) -> Iterator[Metric]:
    rows = family("tollgate_trial_rows")
    decisions = family("tollgate_trial_decisions")
    mean = family("tollgate_trial_score_mean")
    errors = family("tollgate_trial_errors")
    for named, group, words in groups:
        arms: dict[str, Arm] = {
            "champion": group.champion,
            "challenger": group.challenger,
        }
        for name, arm in arms.items():
            mine = [*named, name]
            rows.add_metric(mine, arm.rows)
            errors.add_metric(mine, arm.errors)
            if arm.scored:
                mean.add_metric(mine, arm.score_sum / arm.scored)
            for word, count in zip(words, arm.decisions, strict=True):
                decisions.add_metric([*mine, word], count)
    yield rows
    yield decisions
    yield mean
    yield errors

"""Run one trial: select its rows, decide them with the other release, count them."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tollgate.audit.opened import OpenedRelease, open_release
from tollgate.audit.sealing import slice_records
from tollgate.challenger.counts import (
    ALL,
    Decisions,
    Group,
    Groups,
    add_groups,
    count_arm,
    count_pairs,
    group_names,
    only,
)
from tollgate.challenger.gates import GateResult, judge
from tollgate.challenger.kept import (
    Trial,
    TrialState,
    counted_numbers,
    load,
    newest,
    save,
)
from tollgate.challenger.scoring import Scorer, recorded_decisions
from tollgate.challenger.trials import seconds_of
from tollgate.errors import InputError
from tollgate.journal.record import Records
from tollgate.repository.gates import Gates

log = logging.getLogger(__name__)


class TrialCounter:
    """
    Counts the rows of one trial.

    Args:
        trial: Identity of the trial.
        repository: Model repository.
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
        self._scorer: Scorer | None
        if trial.mode == "watch":
            self._scorer = _scorer_of_watch(challenger, champion)
            if not self.state.baseline:
                self.state.baseline = _before(folder, trial)
        else:
            self._scorer = Scorer(champion, challenger)

    def count(self, records: Records) -> None:
        """
        Count the rows of a chunk that belong to this trial and are not counted yet.
        """
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
        """
        Count rows that both releases decided: one when they were sent, the other now.
        """
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

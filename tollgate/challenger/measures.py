"""End a trial whose gate is broken."""

from __future__ import annotations

from pathlib import Path

from tollgate.challenger.kept import Trial
from tollgate.repository.activation import activate
from tollgate.repository.compose import recompose_release
from tollgate.repository.history import find_release
from tollgate.repository.snapshot import RepositorySnapshot
from tollgate.repository.trial import without_challenger

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

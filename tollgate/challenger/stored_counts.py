"""Store the counts of a trial on disk, with the record numbers that they include."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from tollgate.audit.worker.sequence_ranges import SequenceNumbers, Span
from tollgate.challenger.decision_counts import Groups
from tollgate.errors import InputError
from tollgate.repository.atomic import replace_file

Mode = Literal["shadow", "canary", "watch"]
MODES: tuple[Mode, ...] = ("shadow", "canary", "watch")
FOLDER = "challenger"


class Trial(msgspec.Struct, frozen=True):
    """
    Identity of a trial: the two releases and the mode.

    Attributes:
        product: Ensemble of the releases.
        mode: "shadow": the challenger decides the champion's rows again. "canary": the
            same, and the challenger answers some rows itself. "watch": after a
            promotion, the former champion decides the promoted release's rows again.
        champion: Release that answers; in a watch, the one that answered before.
        challenger: Challenger; in a watch, the promoted release.
        began: Start of the trial, RFC 3339 in UTC.
        percent: Percentage of the customers that a canary answers.
    """

    product: str
    mode: Mode
    champion: str
    challenger: str
    began: str
    percent: float = 0.0


class TrialState(msgspec.Struct):
    """
    State of a trial on disk.

    Attributes:
        trial: Identity of the trial.
        groups: Counts by group.
        seen: Sequence numbers of the counted records, by writer.
        other: Records of other releases, or from before a canary or a watch began.
        unfit: Records of the right release with other features or fields.
        worked_us: Time spent to decide rows again, µs.
        again: Number of rows that were decided again.
        baseline: Counts of an earlier trial, to compare a watch with.
    """

    trial: Trial
    groups: Groups = {}
    seen: dict[str, list[Span]] = {}
    other: int = 0
    unfit: int = 0
    worked_us: int = 0
    again: int = 0
    baseline: Groups = {}


def folder_of(state: Path, product: str) -> Path:
    """Return the folder with the trials of a product."""
    return state / FOLDER / product


def path_of(folder: Path, trial: Trial) -> Path:
    """Return the file of a trial; each trial has a separate one, by its start time."""
    moment = trial.began.replace(":", "").replace("-", "")
    return folder / f"{trial.challenger}.{trial.mode}.{moment}.json"


def load(folder: Path, trial: Trial) -> TrialState:
    """
    Read the state of a trial; a new trial has an empty one.

    Raises:
        InputError: The file cannot be read.
    """
    path = path_of(folder, trial)
    if not path.exists():
        return TrialState(trial)
    state = read(path)
    if state.trial != trial:
        # Started within the same second against another champion.
        return TrialState(trial)
    return state


def read(path: Path) -> TrialState:
    """
    Read a file of counts.

    Raises:
        InputError: The file cannot be read.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=TrialState)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as exc:
        raise InputError(path, f"cannot be read: {exc}") from exc


def save(folder: Path, state: TrialState) -> None:
    """
    Replace the file of a trial atomically; it is on disk when this returns.

    Raises:
        InputError: The file cannot be written; the old one is unchanged.
    """
    path = path_of(folder, state.trial)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(path, msgspec.json.encode(state))
    except OSError as exc:
        raise InputError(path, f"cannot be written: {exc.strerror}") from exc


def newest(
    folder: Path, *, challenger: str = "*", modes: tuple[Mode, ...] = MODES
) -> TrialState | None:
    """
    Return the latest trial of a challenger, or of any challenger; None without one.

    Raises:
        InputError: A file cannot be read.
    """
    found = [
        read(path)
        for mode in modes
        for path in folder.glob(f"{challenger}.{mode}.*.json")
    ]
    return max(found, key=lambda one: one.trial.began, default=None)


def counted_numbers(state: TrialState) -> SequenceNumbers:
    """Return the sequence numbers of the counted records."""
    seen = SequenceNumbers()
    for writer, spans in state.seen.items():
        for first, last in spans:
            seen.add(writer, first, last=last)
    return seen

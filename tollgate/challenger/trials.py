"""
Identify trials, store their counts, and list the current ones.

The counts of a trial lie in one file, with the record numbers that they include.
A current trial is that of a challenger, or the watch of a recent promotion.
"""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from typing import Literal

import msgspec

from tollgate.audit.worker.sequence_ranges import SequenceNumbers, Span
from tollgate.challenger.decision_counts import Groups
from tollgate.errors import InputError, os_errors
from tollgate.repository.atomic import replace_file
from tollgate.repository.releases.release_file import Release
from tollgate.repository.releases.release_history import (
    Entry,
    last_change,
    read_history,
)
from tollgate.schema import DEFAULT_OUTCOMES

Mode = Literal["shadow", "canary", "watch"]
MODES: tuple[Mode, ...] = ("shadow", "canary", "watch")
FOLDER = "challenger"


class Trial(msgspec.Struct, frozen=True):
    """
    Identity of a trial: the two releases and the mode.

    Attributes:
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
        seen: Sequence numbers of the counted records, by writer.
        other: Records of other releases, or from before a canary or a watch began.
        unfit: Records of the right release with other features or fields.
        worked_us: Time spent to decide rows again, µs.
        again: Number of rows that were decided again.
        baseline: Counts of an earlier trial, to compare a watch with.
        outcomes: Words for the levels of a decision, of the release whose rows are
            compared.
    """

    trial: Trial
    groups: Groups = {}
    seen: dict[str, list[Span]] = {}
    other: int = 0
    unfit: int = 0
    worked_us: int = 0
    again: int = 0
    baseline: Groups = {}
    outcomes: tuple[str, str, str] = DEFAULT_OUTCOMES.words


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
    with os_errors(InputError, path, "cannot be written"):
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(path, msgspec.json.encode(state))


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


def current_trials(
    repository: Path, *, product: str, watch_s: float, now_s: float
) -> list[Trial]:
    """
    List the current trials.

    Args:
        watch_s: Time in seconds that a promoted release is watched.
        now_s: Seconds since the epoch.

    Raises:
        RepositoryError: The history cannot be read.
    """
    entries = read_history(repository, product)
    if not entries:
        return []
    trials = []
    release = entries[-1].release
    if release.challenger is not None:
        trials.append(trial_of(release))
    promotion = _promotion(entries)
    if promotion is not None and now_s - seconds_of(promotion.time) < watch_s:
        trials.append(watch_of(promotion))
    return trials


def trial_of(release: Release) -> Trial:
    """Return the trial of a release's challenger."""
    challenger = release.challenger
    if challenger is None:
        raise ValueError(f"release {release.name} has no challenger")
    return Trial(
        product=release.product,
        mode=challenger.mode,
        champion=release.name,
        challenger=challenger.release,
        began=challenger.time,
        percent=challenger.percent,
    )


def last_trial(
    entries: list[Entry], *, challenger: str, mode: Literal["shadow", "canary"]
) -> Trial | None:
    """
    Return the trial of a challenger that started last; None without one.

    The order is that of the history: clocks get adjusted, and differ between machines.
    """
    for entry in reversed(entries):
        there = entry.release.challenger
        if there is not None and (there.release, there.mode) == (challenger, mode):
            return trial_of(entry.release)
    return None


def watch_of(promotion: Entry) -> Trial:
    """Return the watch that follows a promotion."""
    return Trial(
        product=promotion.release.product,
        mode="watch",
        champion=promotion.origin or "",
        challenger=promotion.release.name,
        began=promotion.time,
    )


def _promotion(entries: list[Entry]) -> Entry | None:
    """
    Return the promotion that activated the current release; None if it was no
    promotion.
    """
    last = last_change(entries)
    promoted = last is not None and last.action == "promote" and last.origin
    return last if promoted else None


def seconds_of(text: str) -> float:
    """Parse RFC 3339 in UTC, as releases store it; s since the epoch."""
    moment = datetime.strptime(text.partition(".")[0].rstrip("Z"), "%Y-%m-%dT%H:%M:%S")
    return moment.replace(tzinfo=timezone.utc).timestamp()

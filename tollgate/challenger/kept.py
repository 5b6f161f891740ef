"""The counts of a trial on disk, with the numbers of the rows that are in them."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from tollgate.audit.ranges import Seen, Span
from tollgate.challenger.counts import Groups
from tollgate.errors import InputError
from tollgate.repository.atomic import replace_file

Mode = Literal["shadow", "canary", "watch"]
MODES: tuple[Mode, ...] = ("shadow", "canary", "watch")
FOLDER = "challenger"


class Trial(msgspec.Struct, frozen=True):
    """
    Who is compared with whom.

    Attributes:
        product: The ensemble.
        mode: "shadow": rows of the champion, as the challenger decides them. "canary":
            likewise, and the rows that the challenger answered. "watch": after its
            promotion, its rows, as the champion of before decides them.
        champion: Release that answers; in a watch, that did before.
        challenger: Release on trial; in a watch, that was promoted.
        began: When, RFC 3339 in UTC.
        percent: Share of the customers that a canary answers.
    """

    product: str
    mode: Mode
    champion: str
    challenger: str
    began: str
    percent: float = 0.0


class Kept(msgspec.Struct):
    """
    What is known of a trial.

    Attributes:
        trial: Which.
        groups: The counts.
        seen: Numbers of the records that are in them, by writer.
        other: Records of other releases, or of before a canary's share began.
        unfit: Records of the right release with other features or fields.
        worked_us: What deciding again took.
        again: Rows that were decided again.
        baseline: Counts of a trial before this one, to compare a watch with.
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
    """Name the folder in which trials of a product are kept."""
    return state / FOLDER / product


def path_of(folder: Path, trial: Trial) -> Path:
    """Name the file of a trial: a new one each time that one begins."""
    moment = trial.began.replace(":", "").replace("-", "")
    return folder / f"{trial.challenger}.{trial.mode}.{moment}.json"


def load(folder: Path, trial: Trial) -> Kept:
    """
    Read what is known of a trial; nothing is, of a new one.

    Raises:
        InputError: The file cannot be read.
    """
    path = path_of(folder, trial)
    if not path.exists():
        return Kept(trial)
    kept = read(path)
    if kept.trial != trial:
        # Begun within the same second against another champion.
        return Kept(trial)
    return kept


def read(path: Path) -> Kept:
    """
    Read a file of counts.

    Raises:
        InputError: It cannot be read.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=Kept)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as exc:
        raise InputError(path, f"cannot be read: {exc}") from exc


def save(folder: Path, kept: Kept) -> None:
    """
    Replace the file of a trial; whole on disk when this returns.

    Raises:
        InputError: It cannot be written; the old one is untouched.
    """
    path = path_of(folder, kept.trial)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(path, msgspec.json.encode(kept))
    except OSError as exc:
        raise InputError(path, f"cannot be written: {exc.strerror}") from exc


def newest(
    folder: Path, *, challenger: str = "*", modes: tuple[Mode, ...] = MODES
) -> Kept | None:
    """
    Find the trial of a challenger, or of any, that began last; None without one.

    Raises:
        InputError: A file cannot be read.
    """
    found = [
        read(path)
        for mode in modes
        for path in folder.glob(f"{challenger}.{mode}.*.json")
    ]
    return max(found, key=lambda one: one.trial.began, default=None)


def seen_of(kept: Kept) -> Seen:
    """Take the numbers of the records that are counted."""
    seen = Seen()
    for writer, spans in kept.seen.items():
        for first, last in spans:
            seen.add(writer, first, last=last)
    return seen

"""
Log every activation of a product: release, person, time, reason, previous release.

Each time a release becomes the desired one, one line of JSON is appended to a file next
to release.json; lines are never changed. A release is logged here before it is written
to release.json, so every release that ever answered can be found. A line whose writer
was killed half-way does not count.

A proposed release waits in another file until a second person approves it.
"""

from __future__ import annotations

import difflib
import errno
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from tollgate.errors import RepositoryError, os_errors
from tollgate.repository.atomic import sync_directory
from tollgate.repository.hashes import SHORT_DIGITS
from tollgate.repository.releases.release_file import (
    Release,
    find_current,
    release_path,
)

HISTORY_FILE = "history.jsonl"

Action = Literal[
    "activate",
    "rollback",
    "promote",
    "challenger start",
    "challenger raise",
    "challenger stop",
]
# Actions that change who is on trial, but not which release answers.
TRIAL_ACTIONS: tuple[Action, ...] = (
    "challenger start",
    "challenger raise",
    "challenger stop",
)


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """
    One activation of a release, or one change of its challenger.

    Attributes:
        action: "rollback" for a release that was active before, "promote" for one that
            was on trial.
        time: Time of the change, RFC 3339 in UTC.
        approver: Person who approved it; None if no approval was required.
        origin: Name of the release before it; None if there was none.
        release: The release that became the desired one.
    """

    action: Action
    time: str
    actor: str
    reason: str
    origin: str | None
    release: Release
    approver: str | None = None


def history_path(repository: Path, product: str) -> Path:
    """Return the path of a product's history."""
    return repository / product / HISTORY_FILE


def add_entry(repository: Path, entry: Entry) -> None:
    """
    Add an entry, which is on disk when this returns.

    Raises:
        RepositoryError: It cannot be written.
    """
    path = history_path(repository, entry.release.product)
    line = msgspec.json.encode(entry) + b"\n"
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    with os_errors(RepositoryError, path, "cannot be written"):
        descriptor = os.open(path, flags, 0o644)
        try:
            size = os.fstat(descriptor).st_size
            # End the partial line of a writer that was killed, so that it stays a line
            # of its own.
            torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
            _write_whole(descriptor, b"\n" + line if torn else line, size=size)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if not size:
            sync_directory(path.parent)  # the file is new


def _write_whole(descriptor: int, content: bytes, *, size: int) -> None:
    """Append all of the content, or nothing: a full disk may accept a part."""
    try:
        if os.write(descriptor, content) != len(content):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except OSError:
        os.ftruncate(descriptor, size)
        raise


def read_history(repository: Path, product: str) -> list[Entry]:
    """
    Read a product's history, oldest first.

    A current release without an entry was written by hand or before there was a
    history; it comes last, with the author, reason and time in release.json.

    Raises:
        RepositoryError: The file, or release.json, cannot be read.
    """
    entries = written_entries(repository, product)
    return history_with(entries, find_current(repository, product=product))


def history_with(entries: list[Entry], current: Release | None) -> list[Entry]:
    """
    Add an entry for the current release, if the last entry does not have it.

    Args:
        entries: The entries of the history's file, oldest first.
        current: The release in release.json; None if there is none.
    """
    if current is None or (entries and entries[-1].release == current):
        return entries
    origin = entries[-1].release.name if entries else None
    return [*entries, _found(current, origin=origin)]


def settle(repository: Path, product: str) -> list[Entry]:
    """
    Read a product's history, after adding an entry for a current release without one.

    Raises:
        RepositoryError: The file, or release.json, cannot be read or written.
    """
    written = written_entries(repository, product)
    entries = history_with(written, find_current(repository, product=product))
    if len(entries) > len(written):
        add_entry(repository, entries[-1])
    return entries


def written_entries(repository: Path, product: str) -> list[Entry]:
    """
    Read the entries in the file of a product's history, oldest first.

    Raises:
        RepositoryError: The file cannot be read.
    """
    path = history_path(repository, product)
    entries: list[Entry] = []
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        lines = []
    except OSError as exc:
        raise RepositoryError(path, f"cannot be read: {exc.strerror}") from exc
    for number, line in enumerate(lines, start=1):
        if not line:
            continue
        try:
            entries.append(msgspec.json.decode(line, type=Entry))
        except (msgspec.ValidationError, UnicodeDecodeError) as exc:
            raise RepositoryError(path, str(exc), where=f"line {number}") from exc
        except msgspec.DecodeError:
            continue  # incomplete: its writer was killed
    return entries


def releases_of(entries: Sequence[Entry]) -> dict[str, Release]:
    """
    Collect the releases of a history by name, in the order they first appeared.

    Of two releases with one name, the later counts. Challengers are included.
    """
    found: dict[str, Release] = {}
    for entry in entries:
        found[entry.release.name] = entry.release
        trial = release_on_trial(entry.release)
        if trial is not None:
            found.setdefault(trial.name, trial)
    return found


def release_on_trial(release: Release) -> Release | None:
    """Return the challenger of a release in the form that a promotion gives it."""
    challenger = release.challenger
    if challenger is None:
        return None
    return Release(
        name=challenger.release,
        product=release.product,
        versions=challenger.versions,
        hashes=release.hashes_of(challenger.versions),
        spec_hash=challenger.spec_hash,
        actor=challenger.actor,
        reason=challenger.reason,
        time=challenger.time,
    )


def last_change(entries: Sequence[Entry]) -> Entry | None:
    """
    Find the entry that activated the current release; None for the first.

    An entry whose release.json was never written, because of a full disk or a kill,
    does not count.
    """
    took: list[Entry] = []
    for one in entries:
        undone = (
            len(took) > 1
            and one.origin == took[-1].release.name
            and one.release == took[-2].release
            # Only an entry that `settle` added: a deliberate change has its own action
            # and actor.
            and one == _found(one.release, origin=one.origin)
        )
        if undone:
            took.pop()
        else:
            took.append(one)
    changes = [one for one in took if one.origin != one.release.name]
    return changes[-1] if changes else None


def find_release(repository: Path, product: str, name: str) -> Release:
    """
    Find a release by its name.

    Raises:
        RepositoryError: There was never one of that name, or the history cannot be
            read.
    """
    found = releases_of(read_history(repository, product))
    if name not in found:
        known = ", ".join(list(found)[-5:]) or "none"
        path = history_path(repository, product)
        raise RepositoryError(path, f"there is no release {name}; known: {known}")
    return found[name]


def _found(release: Release, *, origin: str | None) -> Entry:
    """Describe a release without an entry, from release.json itself."""
    return Entry(
        action="activate",
        time=release.time,
        actor=release.actor,
        reason=release.reason,
        origin=origin,
        release=release,
    )


# Store a proposed release that waits for the approval of a second person.

PROPOSAL_FILE = "proposed.json"


class Proposal(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """
    A release that waits for the approval of a second person.

    Attributes:
        action: Action to log in the history after approval.
        actor: Person who proposes it; another person has to approve.
        instead_of: Release that this one was derived from, which must still be the
            current one; None for any.
    """

    action: Action
    actor: str
    reason: str
    release: Release
    instead_of: Release | None = None


def name_of(release: Release) -> str:
    """
    Return the name by which a person approves a release.

    A release with a challenger has the name of the one that answers already; so it is
    named after the challenger and its share: fraud-2@5.
    """
    there = release.challenger
    return release.name if there is None else f"{there.release}@{there.percent:g}"


def proposal_path(repository: Path, product: str) -> Path:
    """Return the path of the file of a pending release."""
    return release_path(repository, product).with_name(PROPOSAL_FILE)


def read_proposal(repository: Path, product: str) -> Proposal | None:
    """
    Read the pending release; None if there is none.

    Raises:
        RepositoryError: The file cannot be read.
    """
    path = proposal_path(repository, product)
    try:
        return msgspec.json.decode(path.read_bytes(), type=Proposal)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as exc:
        raise RepositoryError(path, f"cannot be read: {exc}") from exc


# List the differences between two releases, as lines for people to read.

_TEXT = (".yaml", ".yml", ".py", ".md")


def difference_lines(repository: Path, old: Release, new: Release) -> Iterator[str]:
    """
    List the differences: versions, the files of each step, and changed lines of text.

    Text is compared for files that people write, while both versions are in the
    repository.
    """
    yield f"{old.name} -> {new.name}"
    if old.spec_hash != new.spec_hash:
        yield f"spec_hash  {old.spec_hash} -> {new.spec_hash}"
    for step, version in new.versions.items():
        was = old.versions.get(step)
        if was == version:
            yield f"{step}  {version}, the same"
            continue
        yield f"{step}  {'none' if was is None else was} -> {version}"
        before = _files(old, step)
        after = _files(new, step)
        for name in sorted(before.keys() | after.keys()):
            if before.get(name) != after.get(name):
                yield f"    {name}  {_short(before, name)} -> {_short(after, name)}"
                if was is not None and name.endswith(_TEXT):
                    folder = repository / step
                    pair = (folder / str(was) / name, folder / str(version) / name)
                    yield from _text_lines(*pair)


def _files(release: Release, step: str) -> dict[str, str]:
    """Return the hash of each file of a step's version, by its path in that version."""
    version = release.versions.get(step)
    if version is None:
        return {}
    prefix = f"{step}/{version}/"
    return {
        name.removeprefix(prefix): digest
        for name, digest in release.hashes_of({step: version}).items()
    }


def _short(hashes: dict[str, str], name: str) -> str:
    return hashes[name][:SHORT_DIGITS] if name in hashes else "none"


def _text_lines(old: Path, new: Path) -> Iterator[str]:
    try:
        before, after = (path.read_text("utf-8").splitlines() for path in (old, new))
    except (OSError, UnicodeDecodeError):
        return
    for line in difflib.unified_diff(before, after, lineterm="", n=1):
        if not line.startswith(("---", "+++")):
            yield f"        {line}"

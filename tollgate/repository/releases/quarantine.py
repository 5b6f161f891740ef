"""List versions that no release names, and move bad ones into quarantine."""

from __future__ import annotations

import os
from datetime import datetime, timezone
from pathlib import Path

import msgspec

from tollgate.repository.atomic import lock_folder
from tollgate.repository.releases.release_file import read_release
from tollgate.repository.releases.release_history import read_history
from tollgate.repository.versions import list_versions

QUARANTINE_FOLDER = ".quarantine"  # in the model's folder; Triton skips it
REASON_FILE = "REASON.txt"


class Quarantined(msgspec.Struct, frozen=True):
    """
    A version that was moved away.

    Attributes:
        version: Its number before.
        folder: Its folder now.
        reason: Reason for the move, in one line.
    """

    version: int
    folder: Path
    reason: str


def releases_by_version(
    repository: Path, *, product: str, step: str
) -> dict[int, list[str]]:
    """
    Map each version of a step to the releases, current and earlier, that contain it.

    Raises:
        RepositoryError: The history or the release cannot be read.
    """
    named: dict[int, list[str]] = {}
    releases = [entry.release for entry in read_history(repository, product)]
    releases.append(read_release(repository, product=product))
    for release in releases:
        for version in release.loaded_versions(step):
            names = named.setdefault(version, [])
            if release.versions.get(step) == version and release.name not in names:
                names.append(release.name)
    return named


def unreleased_versions(repository: Path, *, product: str, step: str) -> list[int]:
    """
    List the versions of a step that no release names or ever named.

    Raises:
        RepositoryError: The repository cannot be read.
    """
    named = releases_by_version(repository, product=product, step=step)
    return [one for one in list_versions(repository, step) if one not in named]


def quarantine(
    repository: Path, *, product: str, step: str, version: int, reason: str
) -> Path | None:
    """
    Move a version that no release names away from its number.

    Returns:
        Its new folder; None if it may not be moved, is gone or is released.

    Raises:
        RepositoryError: The repository cannot be read.
    """
    model = repository / step
    now = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%SZ")
    place = model / QUARANTINE_FOLDER / f"{version}-{now}"
    with lock_folder(repository / product):
        unreleased = unreleased_versions(repository, product=product, step=step)
        if version not in unreleased:
            return None
        try:
            place.parent.mkdir(exist_ok=True)
            os.rename(model / str(version), place)
            (place / REASON_FILE).write_text(f"{' '.join(reason.split())}\n")
        except OSError:
            return place if place.is_dir() else None
    return place


def list_quarantined(model: Path) -> list[Quarantined]:
    """List the quarantined versions of a model, by number and time."""
    found = []
    for folder in sorted((model / QUARANTINE_FOLDER).glob("*-*")):
        version = folder.name.partition("-")[0]
        try:
            reason = (folder / REASON_FILE).read_text().strip()
        except OSError:
            reason = ""
        if version.isascii() and version.isdigit():
            found.append(Quarantined(int(version), folder, reason))
    return sorted(found, key=lambda one: (one.version, one.folder.name))

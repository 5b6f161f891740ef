"""A release that somebody proposed and that waits for a second person."""

from __future__ import annotations

from pathlib import Path

import msgspec

from tollgate.errors import RepositoryError
from tollgate.repository.history import Action
from tollgate.repository.release import Release, release_path

PROPOSAL_FILE = "proposed.json"


class Proposal(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """
    A release that waits for a second person.

    Attributes:
        action: What it will have been, once it is confirmed.
        actor: Who proposes it; somebody else has to confirm.
        reason: Why.
        release: The release.
        instead_of: What it was made of, and has to be there still; None for anything.
    """

    action: Action
    actor: str
    reason: str
    release: Release
    instead_of: Release | None = None


def name_of(release: Release) -> str:
    """
    Name a release as whoever confirms it has to.

    One with a challenger beside it has the name of what answers already; it is known
    by who is on trial, and for how many: fraud-2@5.
    """
    there = release.challenger
    return release.name if there is None else f"{there.release}@{there.percent:g}"


def proposal_path(repository: Path, product: str) -> Path:
    """Name the file of a release that waits for a second person."""
    return release_path(repository, product).with_name(PROPOSAL_FILE)


def read_proposal(repository: Path, product: str) -> Proposal | None:
    """
    Read the release that waits; None when none does.

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

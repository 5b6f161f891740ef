"""Store a proposed release that waits for the approval of a second person."""

from __future__ import annotations

from pathlib import Path

import msgspec

from tollgate.errors import RepositoryError
from tollgate.repository.releases.release_file import Release, release_path
from tollgate.repository.releases.release_history import Action

PROPOSAL_FILE = "proposed.json"


class Proposal(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """
    A release that waits for the approval of a second person.

    Attributes:
        action: Action to log in the history after approval.
        actor: Person who proposes it; another person has to approve.
        reason: Reason for the change.
        release: The release.
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

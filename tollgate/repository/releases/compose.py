"""Compose the next release of a product from the versions in its repository."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from datetime import datetime, timezone

import msgspec

from tollgate.errors import RepositoryError
from tollgate.repository.releases.proposals import read_proposal
from tollgate.repository.releases.release_file import (
    Release,
    Versions,
    release_path,
    require_steps,
)
from tollgate.repository.releases.release_history import releases_of
from tollgate.repository.snapshot import RepositorySnapshot


def compose_release(
    snapshot: RepositorySnapshot,
    *,
    product: str,
    versions: Mapping[str, int],
    actor: str,
    reason: str,
    spec_hash: str,
) -> Release:
    """
    Describe a new release; write nothing.

    The release in the repository becomes its `previous`. If that one pins the same
    versions, it is replaced, and the new release takes over its `previous`.

    Args:
        snapshot: The model repository.
        product: Name of the ensemble.
        versions: Version per step, for every step.
        actor: Person who makes it.
        reason: Reason for the release.
        spec_hash: Hash of the feature spec, 16 hexadecimal digits.

    Returns:
        The release with the hashes of all versions that stay loaded, named after the
        product and the next number.

    Raises:
        RepositoryError: A version is missing, a step has none, or the release in the
            repository cannot be read.
    """
    path = release_path(snapshot.folder, product)
    require_steps(path, versions, product=snapshot.product(product))
    current = snapshot.current_release(product)
    previous = _previous(snapshot, current, versions=versions)
    return Release(
        name=_next_name(snapshot, product),
        product=product,
        versions=dict(versions),
        hashes=_hashes(snapshot, versions, previous or {}),
        spec_hash=spec_hash,
        previous=previous,
        actor=actor,
        reason=reason,
        time=now_text(),
    )


def recompose_release(snapshot: RepositorySnapshot, release: Release) -> Release:
    """
    Describe an earlier release, to make it the desired one again.

    It has the same name, content, author, reason and time. The release in the
    repository becomes its `previous`.

    Raises:
        RepositoryError: The release in the repository cannot be read.
    """
    current = snapshot.current_release(release.product)
    previous = _previous(snapshot, current, versions=release.versions)
    own = release.hashes_of(release.versions)
    return msgspec.structs.replace(
        release,
        hashes=_hashes(snapshot, previous or {}) | own,
        previous=previous,
        challenger=None,
    )


def now_text() -> str:
    """Return the current time in the format of releases: RFC 3339 in UTC."""
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def _next_name(snapshot: RepositorySnapshot, product: str) -> str:
    """
    Return the next name: fraud-1, fraud-2, …; names of another form do not count.

    The name of a pending proposal is taken: a person who approves it by that name must
    not approve another release.
    """
    names = set(releases_of(snapshot.history(product)))
    with contextlib.suppress(RepositoryError):  # the next proposal replaces it
        if waiting := read_proposal(snapshot.folder, product):
            trial = waiting.release.challenger
            names |= {waiting.release.name} | ({trial.release} if trial else set())
    numbers = [name.removeprefix(f"{product}-") for name in names]
    counted = [int(one) for one in numbers if one.isascii() and one.isdigit()]
    return f"{product}-{max(counted, default=0) + 1}"


def _previous(
    snapshot: RepositorySnapshot,
    current: Release | None,
    *,
    versions: Mapping[str, int],
) -> Versions | None:
    """Choose the versions to roll back to; None if they were removed."""
    if current is None:
        return None
    previous = current.previous if current.versions == versions else current.versions
    if previous is None:
        return None
    there = all(
        (snapshot.folder / step / str(version)).is_dir()
        for step, version in previous.items()
    )
    return previous if there and previous.keys() == versions.keys() else None


def _hashes(
    snapshot: RepositorySnapshot, *releases: Mapping[str, int]
) -> dict[str, str]:
    """Hash every file of every version that one of the releases names."""
    pairs = sorted({pair for versions in releases for pair in versions.items()})
    hashes: dict[str, str] = {}
    for step, version in pairs:
        hashes |= snapshot.hashes(step, version=version)
    return hashes

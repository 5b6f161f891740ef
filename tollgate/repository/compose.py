"""Make the next release of a product out of the versions in its repository."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path

from tollgate.repository.hashes import hash_version
from tollgate.repository.product import read_product
from tollgate.repository.release import (
    Release,
    Versions,
    read_release,
    release_path,
    require_steps,
)


def compose_release(
    repository: Path,
    *,
    product: str,
    versions: Mapping[str, int],
    actor: str,
    reason: str,
    spec_hash: str,
) -> Release:
    """
    Describe a new release; nothing is written.

    The release that is in the repository becomes its `previous`. One that pins the
    same versions is replaced instead, and its own `previous` is kept.

    Args:
        repository: The model repository.
        product: Name of the ensemble.
        versions: Version per step, for every step.
        actor: Who makes it.
        reason: Why.
        spec_hash: Hash of the feature spec, 16 hexadecimal digits.

    Returns:
        The release with the hashes of all versions it keeps loaded, named after the
        product and the next number.

    Raises:
        RepositoryError: A version is missing, a step has none, or the release in the
            repository cannot be read.
    """
    path = release_path(repository, product)
    require_steps(path, versions, product=read_product(repository, product))
    current = read_release(repository, product=product) if path.exists() else None
    previous = _previous(repository, current, versions=versions)
    return Release(
        name=_next_name(product, current),
        product=product,
        versions=dict(versions),
        hashes=_hashes(repository, versions, previous or {}),
        spec_hash=spec_hash,
        previous=previous,
        actor=actor,
        reason=reason,
        time=datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
    )


def _next_name(product: str, current: Release | None) -> str:
    """Count releases: fraud-1, fraud-2, …; a name of another form starts anew."""
    number = current.name.removeprefix(f"{product}-") if current else ""
    following = int(number) + 1 if number.isascii() and number.isdigit() else 1
    return f"{product}-{following}"


def _previous(
    repository: Path, current: Release | None, *, versions: Mapping[str, int]
) -> Versions | None:
    """Choose what to roll back to; versions that were removed cannot be."""
    if current is None:
        return None
    previous = current.previous if current.versions == versions else current.versions
    if previous is None:
        return None
    there = all(
        (repository / step / str(version)).is_dir()
        for step, version in previous.items()
    )
    return previous if there and previous.keys() == versions.keys() else None


def _hashes(repository: Path, *releases: Mapping[str, int]) -> dict[str, str]:
    """Hash every file of every version that one of the releases names."""
    pairs = sorted({pair for versions in releases for pair in versions.items()})
    hashes: dict[str, str] = {}
    for step, version in pairs:
        hashes |= hash_version(repository, step, version=version)
    return hashes

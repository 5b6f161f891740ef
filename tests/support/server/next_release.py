"""Write the next release of the fraud product."""

from __future__ import annotations

from pathlib import Path

from tollgate.repository.releases.activation import compose_release
from tollgate.repository.releases.release_file import (
    Release,
    read_release,
    write_release,
)
from tollgate.repository.snapshot import RepositorySnapshot


def next_release(repository: Path, **versions: int) -> Release:
    """Write a release with other versions of some steps."""
    current = read_release(repository, product="fraud")
    release = compose_release(
        RepositorySnapshot(repository),
        product="fraud",
        versions={**current.versions, **versions},
        actor="test",
        reason="test",
        spec_hash=current.spec_hash,
    )
    write_release(repository, release)
    return release

"""Write the next release of a product."""

from __future__ import annotations

from pathlib import Path

from tollgate.repository.releases.activation import compose_release
from tollgate.repository.releases.release_file import (
    Release,
    read_release,
    write_release,
)
from tollgate.repository.snapshot import RepositorySnapshot


def next_release(
    repository: Path, *, product: str = "fraud", **versions: int
) -> Release:
    """Write a release with other versions of some steps."""
    current = read_release(repository, product=product)
    release = compose_release(
        RepositorySnapshot(repository),
        product=product,
        versions={**current.versions, **versions},
        actor="test",
        reason="test",
        spec_hash=current.spec_hash,
    )
    write_release(repository, release)
    return release

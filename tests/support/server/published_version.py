"""Publish a folder as the next version of a step."""

from __future__ import annotations

from pathlib import Path

from tollgate.repository.versions import place_version, staged_version


def publish_version(repository: Path, *, step: str, source: Path) -> int:
    """Stage a folder and put it into place; return the version's number."""
    with staged_version(repository, step=step, source=source) as staged:
        return place_version(staged, repository=repository, step=step)

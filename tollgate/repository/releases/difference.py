"""List the differences between two releases, as lines for people to read."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from pathlib import Path

from tollgate.repository.hashes import SHORT_DIGITS
from tollgate.repository.releases.release_file import Release

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

"""Record which files a converted model was made from, to find them again."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from tollgate.repository.hashes import hash_file
from tollgate.repository.releases.release_file import Sha256


class SourceFile(msgspec.Struct, frozen=True):
    """
    A file that a conversion read.

    Attributes:
        path: Path relative to the folder that the conversion wrote.
        sha256: Hash of its content at that time.
    """

    path: str
    sha256: Sha256

    def unusable(self, folder: Path) -> str:
        """Explain why the file is not the one that was read; empty if it is."""
        path = self.below(folder)
        if not path.is_file():
            return f"{path} is not there"
        if hash_file(path) != self.sha256:
            return f"{path} has changed since the conversion"
        return ""

    def below(self, folder: Path) -> Path:
        """Return the file's path, from the folder that the conversion wrote."""
        return Path(os.path.normpath(folder.absolute() / self.path))


class MadeFrom(msgspec.Struct, frozen=True):
    """
    The files of a conversion, and the options that say how the model is read.

    The Python of another environment and the trust in a pickle are not recorded: both
    run code, so a person must state them each time.

    Attributes:
        source: The trained model.
        sample: Raw rows; None if there are none.
        columns: Names of its features that a person stated.
        missing: The number that stands for a missing value; None for NaN.
    """

    source: SourceFile
    sample: SourceFile | None = None
    columns: tuple[str, ...] = ()
    missing: float | None = None


def source_file(path: Path, folder: Path) -> SourceFile:
    """Describe a file relative to a folder."""
    near = os.path.relpath(path.absolute(), folder.absolute())
    return SourceFile(path=near, sha256=hash_file(path))

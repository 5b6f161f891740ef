"""Define where a server's model repository comes from: a folder or an object store."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from tollgate.errors import RepositoryError, os_errors
from tollgate.repository.releases.release_file import Release, release_path


class Source(Protocol):
    """The repository that a server follows; `folder` may be a local part of it."""

    folder: Path

    def begin(self) -> None:
        """
        Provide a release in the folder to start with: the desired or the previous one.

        Raises:
            RepositoryError: Neither can be used.
            ObjectStoreError: The store does not answer, and there is no local release.
        """
        ...

    def look(self) -> str:
        """
        Return a value that changes with release.json; empty if the file is missing.

        Raises:
            ObjectStoreError: The store does not answer.
        """
        ...

    @property
    def release_name(self) -> str:
        """Name of its release.json in messages."""
        ...

    def read(self) -> bytes:
        """
        Read release.json.

        Raises:
            RepositoryError: It is missing, or cannot be read.
            ObjectStoreError: The store does not answer.
        """
        ...

    def bring(self, release: Release) -> None:
        """
        Provide the files of that release in the folder.

        Raises:
            RepositoryError: A file is missing, or does not match its hash in the
                release.
            ObjectStoreError: The store does not answer.
        """
        ...


class Folder:
    """A repository in a local or mounted folder."""

    def __init__(self, folder: Path, *, product: str) -> None:
        self.folder = folder
        self._product = product

    def begin(self) -> None:
        """Do nothing: the desired release is in the folder."""

    def look(self) -> str:
        """Read release.json; empty if it cannot be read."""
        try:
            path = release_path(self.folder, self._product)
            return path.read_text(errors="replace")
        except OSError:
            return ""

    @property
    def release_name(self) -> str:
        """Path of release.json."""
        return str(release_path(self.folder, self._product))

    def read(self) -> bytes:
        """Read release.json."""
        path = release_path(self.folder, self._product)
        with os_errors(RepositoryError, path, "cannot be read"):
            return path.read_bytes()

    def bring(self, release: Release) -> None:
        """Do nothing: the files are in the folder."""

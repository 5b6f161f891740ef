"""Where a server's model repository comes from: a folder, or a store of objects."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from tollgate.errors import RepositoryError
from tollgate.repository.release import Release, release_path


class Source(Protocol):
    """
    What a server follows.

    Attributes:
        folder: The repository, or what is here of it.
    """

    folder: Path

    def begin(self) -> None:
        """
        Have a release in the folder to start with: what is wanted, or the one before.

        Raises:
            RepositoryError: Neither can be used.
            ObjectStoreError: The store does not answer, and nothing is here.
        """
        ...

    def look(self) -> str:
        """
        Tell one content of release.json from another; empty when it is not there.

        Raises:
            ObjectStoreError: The store does not answer.
        """
        ...

    @property
    def release_name(self) -> str:
        """What messages call its release.json."""
        ...

    def read(self) -> bytes:
        """
        Read release.json.

        Raises:
            RepositoryError: It is not there, or cannot be read.
            ObjectStoreError: The store does not answer.
        """
        ...

    def bring(self, release: Release) -> None:
        """
        Have the files of that release in the folder.

        Raises:
            RepositoryError: A file is missing, or is not what the release says.
            ObjectStoreError: The store does not answer.
        """
        ...


class Folder:
    """
    A repository that lies here, or is mounted.

    Args:
        folder: The repository.
        product: The ensemble.
    """

    def __init__(self, folder: Path, *, product: str) -> None:
        self.folder = folder
        self._product = product

    def begin(self) -> None:
        """Do nothing: what is wanted is where it is."""

    def look(self) -> str:
        """Read release.json; empty when it cannot be read."""
        try:
            path = release_path(self.folder, self._product)
            return path.read_text(errors="replace")
        except OSError:
            return ""

    @property
    def release_name(self) -> str:
        """Its path."""
        return str(release_path(self.folder, self._product))

    def read(self) -> bytes:
        """Read release.json."""
        path = release_path(self.folder, self._product)
        try:
            return path.read_bytes()
        except OSError as exc:
            raise RepositoryError(path, f"cannot be read: {exc.strerror}") from exc

    def bring(self, release: Release) -> None:
        """Do nothing: the files are where they are."""

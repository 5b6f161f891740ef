"""
Read and write a model repository in an object store, as files by path.

This is the only module that uses fsspec. It catches every error of the library behind
an address: a missing object becomes None, everything else an ObjectStoreError.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tollgate.errors import (
    ArgumentError,
    InputError,
    ObjectChanged,
    ObjectStoreError,
    SetupError,
    install_remedy,
)
from tollgate.repository.atomic import replace_file

# Fields by which stores identify the content of an object; without one, all metadata
# counts.
_STAMPS = ("ETag", "etag", "generation", "md5Hash", "content_md5")
_READ_TRIES = 5
_MOST_READ_BYTES = 16 << 20
_CONNECT_S, _ANSWER_S = 3, 10
_REFUSED = ("PreconditionFailed", "ConditionalRequestConflict")


class Objects:
    """
    The files below one address.

    Args:
        url: For example s3://bucket/models; any address that fsspec knows. Credentials
            and endpoint come from the environment, as for the store's own tools.

    Raises:
        InputError: There is no such kind of store, or its address is not valid.
        SetupError: The library of that kind of store is not installed.
    """

    def __init__(self, url: str) -> None:
        from fsspec.core import url_to_fs

        self.url = url.rstrip("/")
        options: dict[str, Any] = {
            "use_listings_cache": False,
            "skip_instance_cache": True,
        }
        if url.startswith("s3"):
            options["config_kwargs"] = {
                "connect_timeout": _CONNECT_S,
                "read_timeout": _ANSWER_S,
                "retries": {"max_attempts": 0},
            }
        try:
            self._files, root = url_to_fs(self.url, **options)
        except ImportError as error:
            remedy = f"{install_remedy('fleet')}; or the package that this error names"
            raise SetupError(f"{self.url}: {error}", remedy=remedy) from error
        except ValueError as error:
            raise ArgumentError("repository", f"{url}: {error}") from error
        self._root = root.rstrip("/")
        if hasattr(self._files, "retries"):
            self._files.retries = 2  # of the library itself, each with a pause
        # Only S3's library is known to pass these conditions on.
        self._conditional = url.startswith("s3")
        self._local = getattr(self._files, "local_file", False)

    def name(self, path: str) -> str:
        """Print the address of a file."""
        return f"{self.url}/{path}"

    def stamp(self, path: str) -> str | None:
        """
        Identify a file's content without reading it; return None if it is missing.

        Raises:
            ObjectStoreError: The store does not answer.
        """
        info = self._info(path)
        return None if info is None else _stamp(info)

    def read(self, path: str) -> tuple[bytes, str] | None:
        """
        Read a small file and the stamp of its content; None if it is missing.

        Raises:
            InputError: The file is larger than 16 MiB.
            ObjectStoreError: The store does not answer, or the file changes all the
                time.
        """
        for _ in range(_READ_TRIES):
            info = self._info(path, most_bytes=_MOST_READ_BYTES)
            if info is None:
                return None
            before = _stamp(info)
            with self._mapped(path), contextlib.suppress(FileNotFoundError):
                content: bytes = self._files.cat_file(self._full(path))
                if self.stamp(path) == before:
                    return content, before
        raise ObjectStoreError(self.name(path), "changes each time that it is read")

    def fetch(
        self, path: str, target: Path, *, most_bytes: int | None = None
    ) -> str | None:
        """
        Copy a file to this machine; return its SHA-256, or None if it is missing.

        Args:
            most_bytes: Largest size that is taken; None for any.

        Raises:
            InputError: The file is larger.
            ObjectStoreError: The store does not answer, or the copy cannot be written.
        """
        if most_bytes is not None:
            self._info(path, most_bytes=most_bytes)
        with self._mapped(path):
            try:
                self._files.get_file(self._full(path), str(target))
            except FileNotFoundError:
                return None
            with target.open("rb") as file:
                digest = hashlib.sha256()
                while chunk := file.read(1 << 20):
                    digest.update(chunk)
        return digest.hexdigest()

    def files(self, folder: str, *, deep: bool) -> dict[str, str]:
        """
        List the files of a folder, with their stamps.

        Raises:
            ObjectStoreError: The store does not answer.
        """
        full = self._full(folder)
        with self._mapped(folder):
            try:
                if deep:
                    listed = list(self._files.find(full, detail=True).values())
                else:
                    listed = self._files.ls(full, detail=True)
            except FileNotFoundError:
                return {}
        return {
            info["name"].removeprefix(self._root).lstrip("/"): _stamp(info)
            for info in listed
            if info["type"] == "file" and not info["name"].endswith("/")
        }

    def write(self, path: str, source: Path, *, was: str | None) -> None:
        """
        Write a file in place of a given earlier content.

        On stores with conditional writes (S3), another writer's content is never lost;
        on others the stamp is compared just before the write. In a folder, the file is
        replaced as a whole, so a full disk leaves the earlier content.

        Args:
            was: Stamp of the content that it replaces; None if no file may be there.

        Raises:
            ObjectChanged: The store now has other content there.
            ObjectStoreError: The store does not answer, or refuses.
        """
        condition: dict[str, str] = {}
        if self._conditional:
            # "create" also works for uploads in parts, of more than 100 MB.
            condition = {"IfMatch": was} if was else {"mode": "create"}
        elif self.stamp(path) != was:
            raise self._changed(path)
        with self._mapped(path):
            self._make_folder(path)
            if self._local:
                replace_file(Path(self._full(path)), source.read_bytes())
                return
            try:
                self._files.pipe_file(
                    self._full(path), source.read_bytes(), **condition
                )
            except Exception as error:
                if _refused(error):
                    raise self._changed(path) from error
                raise

    def remove(self, path: str) -> None:
        """
        Remove a file; do nothing if it is missing.

        Raises:
            ObjectStoreError: The store does not answer, or refuses.
        """
        with self._mapped(path), contextlib.suppress(FileNotFoundError):
            self._files.rm_file(self._full(path))

    def _info(
        self, path: str, *, most_bytes: int | None = None
    ) -> dict[str, Any] | None:
        """Return what the store says of a file without reading it."""
        with self._mapped(path):
            try:
                info: dict[str, Any] = self._files.info(self._full(path))
            except FileNotFoundError:
                return None
        size = info.get("size") or 0
        if most_bytes is not None and size > most_bytes:
            problem = f"has {size:,} bytes; at most {most_bytes:,} are taken"
            raise InputError(self.name(path), problem)
        return info

    def _changed(self, path: str) -> ObjectChanged:
        return ObjectChanged(self.name(path), "somebody else wrote it meanwhile")

    def _make_folder(self, path: str) -> None:
        """Make the folder of a file, on stores that have folders."""
        if not self._conditional:
            parent = self._full(path).rpartition("/")[0]
            self._files.makedirs(parent, exist_ok=True)

    def _full(self, path: str) -> str:
        return f"{self._root}/{path}"

    @contextlib.contextmanager
    def _mapped(self, path: str) -> Iterator[None]:
        """Map every error of the library to one error of ours."""
        try:
            yield
        except ObjectStoreError:
            raise
        except Exception as error:
            words = " ".join(str(error).split()) or type(error).__name__
            raise ObjectStoreError(self.name(path), words) from error


def _stamp(info: dict[str, Any]) -> str:
    for key in _STAMPS:
        if info.get(key):
            return str(info[key])
    fields = sorted((key, str(value)) for key, value in info.items())
    return hashlib.sha256(repr(fields).encode()).hexdigest()


def _refused(error: BaseException | None) -> bool:
    """Return whether a store refused a write because of its condition."""
    while error is not None:
        response = getattr(error, "response", None)
        if isinstance(response, dict):
            return response.get("Error", {}).get("Code") in _REFUSED
        if isinstance(error, FileExistsError):
            return True
        error = error.__cause__
    return False

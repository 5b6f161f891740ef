"""Open the model repository of a command: a local folder or an object store."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tollgate.errors import InputError, RepositoryError, TollgateError
from tollgate.features.spec.feature_spec import SPEC_FILE, FeatureSpec
from tollgate.settings import Settings
from tollgate.suggestions import suggest

log = logging.getLogger(__name__)

if TYPE_CHECKING:
    from tollgate.repository.releases.release_file import Release
    from tollgate.repository.remote.repository_source import Source
    from tollgate.repository.remote.working_copy import WorkingCopy


def open_for_reading(chosen: Settings) -> AbstractContextManager[Path]:
    """
    Open the repository as a folder, in its current state.

    Raises:
        RepositoryError: It cannot be read.
        ObjectStoreError: Its store does not respond.
    """
    copy = _working_copy(chosen)
    if copy is None:
        return _folder(chosen)
    _require_stored(chosen)
    return copy.read()


def open_for_changes(chosen: Settings) -> AbstractContextManager[Path]:
    """
    Open the repository as a folder, and write the changes of the block back to it.

    Raises:
        RepositoryError: It cannot be read.
        ObjectStoreError: Its store does not respond, or another writer was faster.
    """
    copy = _working_copy(chosen)
    if copy:
        _require_stored(chosen)
        return copy.changed()
    require_no_mirror(chosen)
    return _folder(chosen)


def require_no_mirror(chosen: Settings) -> None:
    """
    Refuse a mirror: servers follow the object store, not another server's copy of it.

    Raises:
        InputError: The repository is a server's copy of an object store.
    """
    from tollgate.repository.remote.mirror import is_mirror

    if not chosen.repository_url and is_mirror(chosen.repository_path):
        problem = (
            f"{chosen.repository_path} is a server's copy of an object store, and "
            "nobody follows it; name the store"
        )
        raise InputError("--repository", problem)


def open_refreshable(chosen: Settings) -> tuple[Path, Callable[[], None]]:
    """
    Open the repository as a folder that can be refreshed again and again.

    Returns:
        The folder; and a function that refreshes it, which raises RepositoryError or
        ObjectStoreError.
    """
    copy = _working_copy(chosen)
    if copy is None:
        return chosen.repository_path, lambda: None
    return copy.folder, copy.refresh


def open_with_safe_refresh(chosen: Settings) -> tuple[Path | None, Callable[[], bool]]:
    """
    Open the repository as a folder with a refresh that never raises.

    Returns:
        The folder, None where there is none; and a function that refreshes it and
        returns whether that succeeded. It logs an unreadable repository; a later call
        retries.
    """
    copy = _working_copy(chosen)
    if copy is None:
        folder = chosen.repository_path
        return (folder if folder.is_dir() else None), lambda: True

    def refresh() -> bool:
        try:
            with copy.read():
                return True
        except TollgateError as error:
            log.warning("%s", error)
            return False

    refresh()
    return copy.folder, refresh


def open_source(chosen: Settings, *, product: str) -> Source:
    """Open the source that a server follows for one of its products."""
    from tollgate.repository.remote.mirror import Mirror, mirror_folder
    from tollgate.repository.remote.objects import Objects
    from tollgate.repository.remote.repository_source import Folder

    url = chosen.repository_url
    if not url:
        return Folder(chosen.repository_path, product=product)
    folder = mirror_folder(chosen.state_path, url)
    return Mirror(Objects(url), folder=folder, product=product)


def desired_release(chosen: Settings) -> Release:
    """
    Read the desired release of the repository, and nothing else of it.

    Raises:
        RepositoryError: It cannot be read.
        ObjectStoreError: Its store does not respond.
    """
    from tollgate.repository.releases.release_file import read_release
    from tollgate.repository.remote.mirror import read_wanted
    from tollgate.repository.remote.objects import Objects

    if chosen.repository_url:
        _require_stored(chosen)
        return read_wanted(Objects(chosen.repository_url), product=chosen.product)
    return read_release(chosen.repository_path, product=chosen.product)


def served_folder(chosen: Settings) -> Path:
    """Return the folder that a server of the state folder reads."""
    from tollgate.repository.remote.mirror import mirror_folder

    if chosen.repository_url:
        return mirror_folder(chosen.state_path, chosen.repository_url)
    return chosen.repository_path


def _working_copy(chosen: Settings) -> WorkingCopy | None:
    from tollgate.repository.remote.mirror import mirror_folder
    from tollgate.repository.remote.objects import Objects
    from tollgate.repository.remote.working_copy import WORKING_FOLDER, WorkingCopy

    url = chosen.repository_url
    if not url:
        return None
    folder = mirror_folder(chosen.state_path, url, kind=WORKING_FOLDER)
    return WorkingCopy(Objects(url), folder=folder, product=chosen.product)


def _require_stored(chosen: Settings) -> None:
    """
    Check that the object store has the product.

    Raises:
        InputError: It does not; the message has the nearest name and all of them.
        ObjectStoreError: It does not respond.
    """
    from tollgate.repository.configs import CONFIG_FILE
    from tollgate.repository.releases.release_file import RELEASE_FILE
    from tollgate.repository.remote.objects import Objects

    objects, name = Objects(chosen.repository_url), chosen.product
    if objects.stamp(f"{name}/{CONFIG_FILE}") is not None:
        return
    files = (path.split("/") for path in objects.files("", deep=True))
    known = [one[0] for one in files if len(one) == 2 and one[1] == RELEASE_FILE]
    if known:  # each reader reports an empty store on its own
        problem = f"{name!r:.80} is no product of {objects.url}; {suggest(name, known)}"
        raise InputError("--product", problem)


@contextmanager
def _folder(chosen: Settings) -> Iterator[Path]:
    folder = chosen.repository_path
    if not folder.is_dir():
        problem = "no such model repository; name its folder with --repository"
        raise RepositoryError(folder, problem)
    yield folder


def require_repository(folder: Path) -> None:
    """Refuse a folder that is missing, or no folder."""
    if not folder.is_dir():
        raise RepositoryError(folder, "is not a folder: name one with --repository")


def require_entities(spec: FeatureSpec) -> None:
    """Refuse a product without entities, which stores nothing between purchases."""
    if not spec.entities:
        problem = f"{spec.product} has none: the store keeps nothing of its purchases"
        raise InputError(SPEC_FILE, problem, where="entities")

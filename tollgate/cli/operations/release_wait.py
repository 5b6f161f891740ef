"""Wait until the local server serves a release after it was activated."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from tollgate.cli import console
from tollgate.errors import ServerError

if TYPE_CHECKING:
    from tollgate.repository.releases.release_file import Release
    from tollgate.settings import Settings
    from tollgate.supervisor.reconciler import ReconcileStatus

_POLL_S = 0.05


def follow(chosen: Settings, folder: Path, release: Release, *, wait_s: float) -> None:
    """
    Print the desired release, and wait until the local server serves it.

    Args:
        chosen: The settings.
        folder: The repository.
        release: The release that was made the desired one, or proposed.
        wait_s: Longest time to wait, s; 0 does not wait.

    Raises:
        ServerError: The server refused the release, or it took too long.
    """
    if chosen.require_approval:
        from tollgate.repository.releases.release_history import name_of

        name = name_of(release)
        console.out.print(
            f"proposed  {name}\n"
            f"confirm   tollgate release approve {name}, by somebody else",
            highlight=False,
        )
        return
    console.out.print(f"desired  {release.name}", highlight=False)
    url = _server(chosen)
    if not url:
        console.say(
            f"no server of {chosen.product} of this repository runs here; others "
            "follow by themselves"
        )
        return
    if not wait_s:
        return
    started_s = time.monotonic()
    wait_for(url, release, repository=folder, wait_s=wait_s)
    waited_s = time.monotonic() - started_s
    console.out.print(
        f"answers  {release.name}, after {waited_s:.1f} s", highlight=False
    )


def _server(chosen: Settings) -> str:
    """
    Find the admin port of the local server, if it serves this product from the folder.
    """
    from tollgate.server.address import find_server

    found = find_server(chosen.state_path)
    if found is None or found.repository_name != chosen.repository_name:
        return ""
    return found.side_port_url if chosen.product in found.products else ""


def wait_for(url: str, release: Release, *, repository: Path, wait_s: float) -> None:
    """
    Wait until a server serves a release that was just made the desired one.

    Raises:
        ServerError: The server refused it, it took too long, or another release became
            the desired one meanwhile.
    """
    from tollgate.repository.releases.release_file import release_content, release_path
    from tollgate.supervisor.reconciler import digest_of

    path = release_path(repository, release.product)
    until_s, printed = time.monotonic() + wait_s, ""
    file = digest_of(release_content(release))
    now = _query_status(url, release.product)
    # The release failed before and was requested again: only the new attempt counts.
    before = now.attempts if now.file == file and now.state == "failed" else 0
    while now.file != file or now.state != "converged":
        if now.file == file:
            if now.state == "failed" and now.attempts > before:
                problem = f"{release.name} was not loaded, {now.running} still answers"
                raise ServerError(release.product, f"{problem}: {now.doing}")
            if now.doing not in ("", printed):
                printed = now.doing
                console.say(f"{printed} …")
        elif _digest_now(path) not in ("", file):
            problem = f"another release than {release.name} is desired by now"
            raise ServerError(release.product, problem)
        if time.monotonic() > until_s:
            problem = f"{now.running} still answers after {wait_s:g} s"
            text = f"{problem}: {now.state} {now.doing}".rstrip()
            raise ServerError(release.product, text)
        time.sleep(_POLL_S)
        now = _query_status(url, release.product)


def _digest_now(path: Path) -> str:
    """
    Return the digest of a release.json as it is now; empty when it cannot be read.
    """
    from tollgate.supervisor.reconciler import digest_of

    try:
        return digest_of(path.read_bytes())
    except OSError:
        return ""


def _query_status(url: str, product: str) -> ReconcileStatus:
    """Request the state of one product's rollout from a server."""
    from tollgate.supervisor.replicas import query_replica

    for one in query_replica(url):
        if one.product == product:
            return one
    raise ServerError(product, f"is not served at {url} any more")

"""Commands that change what answers: `release activate|rollback|approve`."""

from __future__ import annotations

import getpass
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from tollgate.cli import console
from tollgate.cli.options import Repository
from tollgate.cli.release import Product, State
from tollgate.cli.repositories import to_change
from tollgate.errors import InputError, RepositoryError, ServerError

if TYPE_CHECKING:
    from pathlib import Path

    from tollgate.repository.history import Action
    from tollgate.repository.release import Release
    from tollgate.settings import Settings

Actor = Annotated[
    str | None, typer.Option(help="Who does it.", show_default="the user")
]
Reason = Annotated[str, typer.Option(help="Why; it is kept.", show_default=False)]
RequireApproval = Annotated[
    bool | None,
    typer.Option(
        "--require-approval",
        help="Only propose it: somebody else has to confirm.",
        show_default="setting require_approval",
    ),
]
Wait = Annotated[
    float,
    typer.Option(
        help="Seconds to wait for the server of --state to answer as it; 0: do not.",
        min=0,
    ),
]
WAIT_S = 60.0
_LOOK_S = 0.05


def activate(
    name: Annotated[
        str | None, typer.Argument(help="A release that was active before.")
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="STEP=VERSION for a new release; features, model and decision will "
            "do. May be given again; the other steps stay.",
            metavar="STEP=VERSION",
        ),
    ] = None,
    reason: Reason = ...,  # type: ignore[assignment]
    actor: Actor = None,
    require_approval: RequireApproval = None,
    repository: Repository = None,
    product: Product = None,
    state: State = None,
    wait: Wait = WAIT_S,
) -> None:
    """Make a release the one that answers: one of before, or one with new versions."""
    from tollgate.repository.activation import compose_next
    from tollgate.repository.compose import recompose_release
    from tollgate.repository.history import find_release

    chosen = settings_of(repository, product, state, require_approval)
    who = actor or getpass.getuser()
    if (name is None) == (not set_):
        raise InputError("release activate", "name a release, or versions with --set")
    with to_change(chosen) as folder:
        if name is not None:
            found = find_release(folder, chosen.product, name)
            release = recompose_release(folder, found)
        else:
            release = compose_next(
                folder,
                product=chosen.product,
                versions=versions_of(folder, chosen.product, set_ or []),
                actor=who,
                reason=reason,
            )
        change(chosen, folder, release, action="activate", actor=who, reason=reason)
    follow(chosen, folder, release, wait_s=wait)


def rollback(
    to: Annotated[
        str | None, typer.Option(help="A release.", show_default="the one before")
    ] = None,
    reason: Reason = ...,  # type: ignore[assignment]
    actor: Actor = None,
    require_approval: RequireApproval = None,
    repository: Repository = None,
    product: Product = None,
    state: State = None,
    wait: Wait = WAIT_S,
) -> None:
    """Go back to the release before this one; its steps are loaded still."""
    from tollgate.repository.compose import recompose_release
    from tollgate.repository.history import find_release, origin_of, read_history

    chosen = settings_of(repository, product, state, require_approval)
    who = actor or getpass.getuser()
    with to_change(chosen) as folder:
        entries = read_history(folder, chosen.product)
        name = to or origin_of(entries)
        if name is None:
            path = folder / chosen.product
            raise RepositoryError(path, "there is no release before this one")
        release = recompose_release(folder, find_release(folder, chosen.product, name))
        change(chosen, folder, release, action="rollback", actor=who, reason=reason)
    follow(chosen, folder, release, wait_s=wait)


def approve(
    name: Annotated[str, typer.Argument(help="The release that waits.")],
    actor: Actor = None,
    repository: Repository = None,
    product: Product = None,
    state: State = None,
    wait: Wait = WAIT_S,
) -> None:
    """Confirm a release that somebody else proposed; from then on it answers."""
    from tollgate.repository import activation

    chosen = console.settings(repository=repository, product=product, state=state)
    with to_change(chosen) as folder:
        release = activation.approve(
            folder,
            product=chosen.product,
            name=name,
            actor=actor or getpass.getuser(),
        )
    chosen = msgspec.structs.replace(chosen, require_approval=False)
    follow(chosen, folder, release, wait_s=wait)


def settings_of(
    repository: str | None,
    product: str | None,
    state: str | None,
    require_approval: bool | None,
) -> Settings:
    return console.settings(
        repository=repository,
        product=product,
        state=state,
        require_approval=require_approval,
    )


def change(
    chosen: Settings,
    folder: Path,
    release: Release,
    *,
    action: Action,
    actor: str,
    reason: str,
    instead_of: Release | None = None,
) -> None:
    """
    Make a release the desired one, or propose it.

    Args:
        chosen: Where things are.
        folder: The repository.
        release: The release.
        action: What is done.
        actor: Who does it.
        reason: Why.
        instead_of: What it was made of; None for anything.
    """
    from tollgate.repository import activation

    if not reason.strip():
        raise InputError("--reason", "is empty")
    write = activation.propose if chosen.require_approval else activation.activate
    write(
        folder,
        release,
        action=action,
        actor=actor,
        reason=reason,
        instead_of=instead_of,
    )


def follow(chosen: Settings, folder: Path, release: Release, *, wait_s: float) -> None:
    """Say what is desired now, and wait until the server here answers as it."""
    if chosen.require_approval:
        console.out.print(
            f"proposed  {release.name}\n"
            f"confirm   tollgate release approve {release.name}, by somebody else",
            highlight=False,
        )
        return
    console.out.print(f"desired  {release.name}", highlight=False)
    url = _server(chosen)
    if not url:
        console.say(
            "no server of this repository runs here; others follow by themselves"
        )
        return
    if not wait_s:
        return
    begun_s = time.monotonic()
    _wait(url, release, repository=folder, wait_s=wait_s)
    taken_s = time.monotonic() - begun_s
    console.out.print(
        f"answers  {release.name}, after {taken_s:.1f} s", highlight=False
    )


def _server(chosen: Settings) -> str:
    """Find the side port of the server here, if it serves this repository."""
    from tollgate.server.address import find_server

    found = find_server(chosen.state_path)
    if found is None or found.repository_name != chosen.repository_name:
        return ""
    return found.side_port_url


def _wait(url: str, release: Release, *, repository: Path, wait_s: float) -> None:
    """
    Wait until a server answers as a release that was just made the desired one.

    Raises:
        ServerError: It would not take it, or it took too long.
    """
    from tollgate.repository.release import release_path
    from tollgate.supervisor.converging import digest_of
    from tollgate.supervisor.replicas import ask_replica

    until_s, said = time.monotonic() + wait_s, ""
    file = digest_of(release_path(repository, release.product).read_bytes())
    while True:
        (now,) = (one for one in ask_replica(url) if one.product == release.product)
        if now.file == file:
            if now.state == "failed":
                problem = f"{release.name} was not taken, {now.running} goes on"
                raise ServerError(release.product, f"{problem}: {now.doing}")
            if now.state == "converged":
                return
            if now.doing not in ("", said):
                said = now.doing
                console.say(f"{said} …")
        if time.monotonic() > until_s:
            problem = f"{now.running} answers still, after {wait_s:g} s"
            text = f"{problem}: {now.state} {now.doing}".rstrip()
            raise ServerError(release.product, text)
        time.sleep(_LOOK_S)


def versions_of(folder: Path, product: str, given: Sequence[str]) -> dict[str, int]:
    """
    Read STEP=VERSION.

    Raises:
        InputError: One is not that, or a step stands there twice.
    """
    from tollgate.repository.product import read_product

    models = read_product(folder, product)
    roles = {
        "features": models.features_step,
        "model": models.model_step,
        "decision": models.decision_step,
    }
    versions: dict[str, int] = {}
    for one in given:
        step, _, version = one.partition("=")
        step = roles.get(step, step)
        if not (version.isascii() and version.isdigit()):
            raise InputError("--set", f"{one!r} is not STEP=VERSION")
        if step in versions:
            raise InputError("--set", f"{step} stands there twice")
        versions[step] = int(version)
    return versions

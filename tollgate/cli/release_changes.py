"""Change the active release: `tollgate release activate|rollback|approve`."""

from __future__ import annotations

import getpass
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from tollgate.cli import console
from tollgate.cli.following import follow
from tollgate.cli.options import Repository
from tollgate.cli.release import Product, State
from tollgate.cli.repositories import open_for_changes
from tollgate.errors import InputError, RepositoryError

if TYPE_CHECKING:
    from pathlib import Path

    from tollgate.repository.history import Action, Entry
    from tollgate.repository.release import Release
    from tollgate.repository.snapshot import RepositorySnapshot
    from tollgate.settings import Settings

Actor = Annotated[
    str | None,
    typer.Option(
        help="Name of the person who makes the change.", show_default="the user"
    ),
]
Reason = Annotated[
    str,
    typer.Option(
        help="Reason for the change, recorded in the history.", show_default=False
    ),
]
RequireApproval = Annotated[
    bool | None,
    typer.Option(
        "--require-approval",
        help="Only propose the change; another person must approve it.",
        show_default="setting require_approval",
    ),
]
Wait = Annotated[
    float,
    typer.Option(
        help="Maximum seconds until the server of --state serves the "
        "release; 0: do not wait.",
        min=0,
    ),
]
WAIT_S = 60.0


def activate(
    name: Annotated[
        str | None, typer.Argument(help="Release that was active before.")
    ] = None,
    versions: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="STEP=VERSION of a new release; STEP can be features, model "
            "or decision. May be repeated; other steps keep their "
            "versions.",
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
    """Activate an earlier release, or a new one with other versions."""
    from tollgate.repository.activation import compose_next
    from tollgate.repository.compose import recompose_release
    from tollgate.repository.history import find_release
    from tollgate.repository.snapshot import RepositorySnapshot

    chosen = settings_of(repository, product, state, require_approval)
    who = actor or getpass.getuser()
    if (name is None) == (not versions):
        raise InputError("release activate", "name a release, or versions with --set")
    with open_for_changes(chosen) as folder:
        snapshot = RepositorySnapshot(folder)
        before = snapshot.current_release(chosen.product)
        if name is not None:
            found = find_release(folder, chosen.product, name)
            release = recompose_release(snapshot, found)
        else:
            release = compose_next(
                snapshot,
                product=chosen.product,
                versions=versions_of(snapshot, chosen.product, versions or []),
                actor=who,
                reason=reason,
            )
        change(
            chosen,
            snapshot,
            release,
            action="activate",
            actor=who,
            reason=reason,
            instead_of=before,
        )
    follow(chosen, folder, release, wait_s=wait)


def rollback(
    to: Annotated[
        str | None,
        typer.Option(help="Release to go back to.", show_default="the one before"),
    ] = None,
    reason: Reason = ...,  # type: ignore[assignment]
    actor: Actor = None,
    require_approval: RequireApproval = None,
    repository: Repository = None,
    product: Product = None,
    state: State = None,
    wait: Wait = WAIT_S,
) -> None:
    """Go back to the release before this one."""
    from tollgate.repository.compose import recompose_release
    from tollgate.repository.history import find_release
    from tollgate.repository.snapshot import RepositorySnapshot

    chosen = settings_of(repository, product, state, require_approval)
    who = actor or getpass.getuser()
    with open_for_changes(chosen) as folder:
        snapshot = RepositorySnapshot(folder)
        entries = snapshot.history(chosen.product)
        name = to or _release_before(folder / chosen.product, entries)
        found = find_release(folder, chosen.product, name)
        release = recompose_release(snapshot, found)
        change(
            chosen,
            snapshot,
            release,
            action="rollback",
            actor=who,
            reason=reason,
            instead_of=entries[-1].release,
        )
    follow(chosen, folder, release, wait_s=wait)


def _release_before(path: Path, entries: Sequence[Entry]) -> str:
    """
    Choose the release to go back to.

    Raises:
        RepositoryError: There is no earlier release, or the last change was a rollback:
            another one would restore the release that it left.
    """
    from tollgate.repository.history import last_change

    last = last_change(entries)
    if last is None or last.origin is None:
        raise RepositoryError(path, "there is no release before this one")
    if last.action == "rollback":
        problem = (
            f"{last.actor} went back already, from {last.origin} to "
            f"{last.release.name}, at {last.time}; another release takes --to"
        )
        raise RepositoryError(path, problem)
    return last.origin


def approve(
    name: Annotated[str, typer.Argument(help="Proposed release to approve.")],
    actor: Actor = None,
    repository: Repository = None,
    product: Product = None,
    state: State = None,
    wait: Wait = WAIT_S,
) -> None:
    """Approve a release that another person proposed; it becomes active."""
    from tollgate.repository import activation
    from tollgate.repository.snapshot import RepositorySnapshot

    chosen = console.settings(repository=repository, product=product, state=state)
    with open_for_changes(chosen) as folder:
        release = activation.approve(
            RepositorySnapshot(folder),
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
    snapshot: RepositorySnapshot,
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
        chosen: The settings.
        snapshot: The model repository.
        release: The release.
        action: Name of the action.
        actor: Person who does it.
        reason: Their reason.
        instead_of: Release that the change is based on; None for any.
    """
    from tollgate.repository import activation

    if not reason.strip():
        raise InputError("--reason", "is empty")
    write = activation.propose if chosen.require_approval else activation.activate
    write(
        snapshot,
        release,
        action=action,
        actor=actor,
        reason=reason,
        instead_of=instead_of,
    )


def versions_of(
    snapshot: RepositorySnapshot, product: str, given: Sequence[str]
) -> dict[str, int]:
    """
    Read STEP=VERSION arguments.

    Raises:
        InputError: An argument has another form, or a step appears twice.
    """
    models = snapshot.product(product)
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

"""Inspect releases: `tollgate release list|show|diff|history|render|status`."""

from __future__ import annotations

import getpass
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from tollgate.cli import console
from tollgate.cli.options import Json, ModelConfigName, Product, Repository, State
from tollgate.cli.repositories import (
    desired_release,
    open_for_changes,
    open_for_reading,
)
from tollgate.errors import (
    InputError,
    RepositoryError,
    ServerError,
    SetupError,
    StoreError,
)

if TYPE_CHECKING:
    from tollgate.repository.releases.release_file import Release
    from tollgate.repository.releases.release_history import Action, Entry
    from tollgate.repository.snapshot import RepositorySnapshot
    from tollgate.settings import Settings
    from tollgate.supervisor.replicas import Replica


_STORE_DEADLINE_S = 1.0
_BEHIND = 1  # exit status: a replica does not run the desired release


def list_releases(
    repository: Repository = None, product: Product = None, as_json: Json = False
) -> None:
    """List every release that was ever active, with its versions."""
    from rich.markup import escape
    from rich.table import Table

    from tollgate.repository.releases.release_history import read_history, releases_of

    chosen = console.settings(repository=repository, product=product)
    with open_for_reading(chosen) as folder:
        entries = read_history(folder, chosen.product)
    releases = releases_of(entries)
    if as_json:
        console.print_json(list(releases.values()))
        return
    states = _states(entries[-1].release) if entries else {}
    table = Table("release", "", "versions", "made", "by", "why", box=None)
    for release in releases.values():
        table.add_row(
            release.name,
            states.get(release.name, ""),
            _versions(release),
            _minute(release.time),
            escape(release.actor),
            escape(release.reason),
        )
    console.out.print(table)


def show(
    name: Annotated[
        str | None,
        typer.Argument(
            help="Active, earlier or proposed release; the active one if omitted."
        ),
    ] = None,
    repository: Repository = None,
    product: Product = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="No effect: the output is always JSON.")
    ] = True,
) -> None:
    """Print a release as JSON: versions, hashes, actor, reason, time."""

    chosen = console.settings(repository=repository, product=product)
    with open_for_reading(chosen) as folder:
        release = _release(folder, chosen.product, name)
    console.print_json(release)


def diff(
    old: Annotated[str, typer.Argument(help="Release to compare from.")],
    new: Annotated[
        str | None,
        typer.Argument(help="Release to compare with; the active one if omitted."),
    ] = None,
    repository: Repository = None,
    product: Product = None,
    as_json: Json = False,
) -> None:
    """Show the changes from one release to another: versions, files, their text."""
    from tollgate.repository.releases.release_history import difference_lines

    chosen = console.settings(repository=repository, product=product)
    with open_for_reading(chosen) as folder:
        first = _compared(folder, chosen.product, old)
        second = _compared(folder, chosen.product, new)
        lines = list(difference_lines(folder, first, second))
    if as_json:
        report = {
            "old": first.name,
            "new": second.name,
            "versions": {
                step: {"old": first.versions.get(step), "new": version}
                for step, version in second.versions.items()
            },
            "lines": lines[1:],
        }
        console.print_json(report)
    else:
        for line in lines:
            console.result(line)


def history(
    repository: Repository = None, product: Product = None, as_json: Json = False
) -> None:
    """Show every activation: actor, time, reason, and the release that it replaced."""
    from rich.markup import escape
    from rich.table import Table

    from tollgate.repository.releases.release_history import TRIAL_ACTIONS, read_history

    chosen = console.settings(repository=repository, product=product)
    with open_for_reading(chosen) as folder:
        entries = read_history(folder, chosen.product)
    if as_json:
        console.print_json(entries)
        return
    table = Table("time", "", "release", "from", "by", "confirmed", "why", box=None)
    before = None
    for one in entries:
        # A challenger's entry names the challenger here; "from" has the active release.
        there = one.release.challenger or before
        on_trial = there is not None and one.action in TRIAL_ACTIONS
        before = one.release.challenger
        table.add_row(
            _minute(one.time),
            one.action,
            there.release if there and on_trial else one.release.name,
            one.origin or "",
            escape(one.actor),
            escape(one.approver or ""),
            escape(one.reason),
        )
    console.out.print(table)


def render(
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder to write MODEL/config.pbtxt into; printed if omitted."
        ),
    ] = None,
    repository: Repository = None,
    product: Product = None,
    model_config_name: ModelConfigName = None,
) -> None:
    """Merge release and configurations, for a Triton that Tollgate does not run."""
    from tollgate.repository.configs import CONFIG_FILE
    from tollgate.repository.releases.rendering import render as rendered

    chosen = console.settings(
        repository=repository, product=product, model_config_name=model_config_name
    )
    with open_for_reading(chosen) as folder:
        texts = rendered(folder, chosen.product, config_name=chosen.model_config_name)
    for model, text in texts.items():
        if out is None:
            console.result(f"# {model}/{CONFIG_FILE}")
            console.result(text)
        else:
            path = out / model / CONFIG_FILE
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            console.say(f"wrote {path}")


def status(
    replica: Annotated[
        list[str] | None,
        typer.Option(
            help="host:port of a replica's admin port, or of a headless "
            "service; may be repeated.",
            show_default="the server of --state",
        ),
    ] = None,
    repository: Repository = None,
    product: Product = None,
    state: State = None,
    as_json: Json = False,
) -> None:
    """
    Compare the desired release with the release that each replica runs.

    Exit status 0: all replicas run it; 1: a replica does not, or does not respond.
    """
    from rich.markup import escape
    from rich.table import Table

    from tollgate.cli.running_server import admin_port_url
    from tollgate.supervisor.reconciler import describe_canary
    from tollgate.supervisor.replicas import find_replicas, query_replicas

    chosen = console.settings(repository=repository, product=product, state=state)
    release = desired_release(chosen)
    wanted, canary = release.name, describe_canary(release)
    if replica:
        addresses = find_replicas(replica)
    else:
        addresses = [admin_port_url(chosen).removeprefix("http://")]
    replicas = query_replicas(addresses)
    behind = [one for one in replicas if not _runs(one, chosen.product, wanted, canary)]
    if as_json:
        console.print_json({"desired": wanted, "replicas": replicas})
    else:
        console.result(f"desired  {wanted}")
        table = Table("replica", "runs", "", "since", box=None)
        for one in replicas:
            for found in one.products:
                if found.product == chosen.product:
                    words = ": ".join(filter(None, (found.state, found.doing)))
                    words = escape(words)
                    if found.unreachable:
                        words += f" [red]({escape(found.unreachable)})[/]"
                    runs = ", ".join(filter(None, (found.running, found.canary)))
                    table.add_row(one.address, runs, words, _minute(found.since))
            if one.problem:
                table.add_row(one.address, "", f"[red]{escape(one.problem)}[/]", "")
        console.out.print(table)
    if behind:
        share = f" with {canary}" if canary else ""
        console.say(f"{len(behind)} of {len(replicas)} do not run {wanted}{share}")
        raise typer.Exit(_BEHIND)


def _runs(replica: Replica, product: str, wanted: str, canary: str) -> bool:
    """Return whether a replica runs the wanted release, with its canary's share."""
    return any(
        (found.product, found.running, found.canary) == (product, wanted, canary)
        for found in replica.products
    )


def _release(folder: Path, product: str, name: str | None) -> Release:
    """Find a release: the active one, an earlier one, or a pending proposal."""
    from tollgate.repository.releases.release_file import read_release
    from tollgate.repository.releases.release_history import (
        find_release,
        name_of,
        read_proposal,
    )

    if name is None:
        return read_release(folder, product=product)
    try:
        return find_release(folder, product, name)
    except RepositoryError:
        waiting = read_proposal(folder, product)
        if waiting is None or name_of(waiting.release) != name:
            raise
        return waiting.release


def _compared(folder: Path, product: str, name: str | None) -> Release:
    """Find a release; for a pending canary, the release that it would put on trial."""
    from tollgate.repository.releases.release_history import name_of, release_on_trial

    found = _release(folder, product, name)
    trial = release_on_trial(found)
    return trial if trial and name == name_of(found) else found


def _states(active: Release) -> dict[str, str]:
    """Map release names to their current state."""
    challenger = active.challenger
    trial = {challenger.release: f"on trial, {challenger.mode}"} if challenger else {}
    return {**trial, active.name: "active"}


def _versions(release: Release) -> str:
    prefix = f"{release.product}_"
    return ", ".join(
        f"{step.removeprefix(prefix)} {version}"
        for step, version in release.versions.items()
    )


def _minute(time: str) -> str:
    """Format a time in UTC, to the minute."""
    return time[:16].replace("T", " ")


# Change the active release: `tollgate release activate|rollback|approve`.

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
    from tollgate.repository.releases.activation import compose_next, recompose_release
    from tollgate.repository.releases.release_history import find_release
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
    from tollgate.repository.releases.activation import recompose_release
    from tollgate.repository.releases.release_history import find_release
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
    from tollgate.repository.releases.release_history import last_change

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
    from tollgate.repository.releases import activation
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


def follow(chosen: Settings, folder: Path, release: Release, *, wait_s: float) -> None:
    """
    Print the desired release, and wait until the local server serves it.

    Args:
        release: The release that was made the desired one, or proposed.
        wait_s: Longest time to wait, s; 0 does not wait.

    Raises:
        ServerError: The server refused the release, or it took too long.
    """
    from tollgate.supervisor.replicas import wait_for_release

    if chosen.require_approval:
        from tollgate.repository.releases.release_history import name_of

        name = name_of(release)
        console.result(
            f"proposed  {name}\n"
            f"confirm   tollgate release approve {name}, by somebody else"
        )
        return
    console.result(f"desired  {release.name}")
    url = _server_url(chosen)
    if not url:
        console.say(
            f"no server of {chosen.product} of this repository runs here; others "
            "follow by themselves"
        )
        return
    if not wait_s:
        return
    started_s = time.monotonic()
    wait_for_release(
        url,
        release,
        repository=folder,
        wait_s=wait_s,
        report=lambda line: console.say(f"{line} …"),
    )
    waited_s = time.monotonic() - started_s
    console.result(f"answers  {release.name}, after {waited_s:.1f} s")


def _server_url(chosen: Settings) -> str:
    """Find the local server's admin port, if it serves this product from the folder."""
    from tollgate.server.address import find_server

    found = find_server(chosen.state_path)
    if found is None or found.repository_name != chosen.repository_name:
        return ""
    return found.side_port_url if chosen.product in found.products else ""


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
        instead_of: Release that the change is based on; None for any.
    """
    from tollgate.repository.releases import activation

    if not reason.strip():
        raise InputError("--reason", "is empty")
    if instead_of is not None:
        _warn_of_other_values(chosen, snapshot, release, instead_of=instead_of)
    write = activation.propose if chosen.require_approval else activation.activate
    write(
        snapshot,
        release,
        action=action,
        actor=actor,
        reason=reason,
        instead_of=instead_of,
    )


def _warn_of_other_values(
    chosen: Settings,
    snapshot: RepositorySnapshot,
    release: Release,
    *,
    instead_of: Release,
) -> None:
    """Print a warning if a release reads values that are not known to be complete."""
    from tollgate.backfill.copying import read_states
    from tollgate.cli.running_server import store_url
    from tollgate.repository.releases.served_versions import released_spec
    from tollgate.store.dual_writes import state_text
    from tollgate.store.redis.cluster_store import open_store

    models = snapshot.product(chosen.product)
    try:
        old, new = (released_spec(one, models) for one in (instead_of, release))
        if old.state_hash == new.state_hash or not new.entities:
            return
        store = open_store(store_url(chosen), deadline_s=_STORE_DEADLINE_S)
        states = read_states(chosen.product, store)
        store.close()
    except (SetupError, StoreError):
        states = []
    except InputError:
        return  # a version of the other release is gone; the change itself is checked
    name = state_text(new)
    if not any(one.state == name and one.filled for one in states):
        console.say(
            f"warning: {release.name} reads other values ({name}) than "
            f"{instead_of.name}, and they are not known to be complete: its windows "
            "may lack events; see `tollgate migrate`"
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


# List versions of a product's model and whether each is valid: `release versions`.

_RELEASED = "released"


class Row(msgspec.Struct, frozen=True):
    """
    A version of the model.

    Attributes:
        state: "released", "sound", "incomplete" or "bad".
        reason: Why it is not sound; empty when it is.
        moved_to: Folder that a bad version was moved to; empty while it is at its
            number.
    """

    version: int
    state: str
    releases: list[str] = []
    reason: str = ""
    moved_to: str = ""


def versions(
    repository: Repository = None,
    product: Product = None,
    state: State = None,
    as_json: Json = False,
) -> None:
    """
    List the versions of the model: released, sound, incomplete or bad.

    For a version that no release names, the server of --state reports the state if it
    serves this repository; otherwise the command checks the version here.
    """
    from rich.markup import escape
    from rich.table import Table

    chosen = console.settings(repository=repository, product=product, state=state)
    with open_for_reading(chosen) as folder:
        rows = _rows(chosen, folder)
    if as_json:
        console.print_json(rows)
        return
    table = Table("version", "", "releases", "why", box=None)
    for row in rows:
        where = f"moved to {row.moved_to}" if row.moved_to else ""
        why = "; ".join(filter(None, (row.reason, where)))
        table.add_row(str(row.version), row.state, ", ".join(row.releases), escape(why))
    console.out.print(table)


def _rows(chosen: Settings, folder: Path) -> list[Row]:
    from tollgate.repository.product_models import read_product
    from tollgate.repository.releases.quarantine import (
        list_quarantined,
        releases_by_version,
    )
    from tollgate.repository.versions import list_versions

    step = read_product(folder, chosen.product).model_step
    named = releases_by_version(folder, product=chosen.product, step=step)
    rows = [
        Row(one.version, "bad", [], one.reason, str(one.folder))
        for one in list_quarantined(folder / step)
    ]
    reported = _reported(chosen)
    for version in list_versions(folder, step):
        if version in named:
            rows.append(Row(version, _RELEASED, named[version]))
        else:
            rows.append(reported.get(version) or _validated(chosen, folder, version))
    return sorted(rows, key=lambda row: (row.version, row.moved_to))


def _reported(chosen: Settings) -> dict[int, Row]:
    """Request the findings of the local server, which knows the copies in progress."""
    from tollgate.server.address import find_server
    from tollgate.supervisor.replicas import query_versions

    found = find_server(chosen.state_path)
    if found is None or found.repository_name != chosen.repository_name:
        return {}
    try:
        detected = query_versions(found.side_port_url)
    except ServerError:
        return {}
    return {
        one.version: Row(one.version, one.state, [], one.reason)
        for one in detected
        if one.product == chosen.product and not one.moved_to
    }


def _validated(chosen: Settings, folder: Path, version: int) -> Row:
    from tollgate.supervisor.version_checks import validate_in_subprocess

    verdict = validate_in_subprocess(folder, product=chosen.product, version=version)
    return Row(version, verdict.state, [], verdict.reason)

"""Inspect releases: `tollgate release list|show|diff|history|render|status`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tollgate.cli import console
from tollgate.cli.options import Json, ModelConfigName, Repository
from tollgate.cli.repositories import desired_release, open_for_reading

if TYPE_CHECKING:
    from tollgate.repository.release import Release
    from tollgate.supervisor.replicas import Replica

Product = Annotated[
    str | None,
    typer.Option(help="Product, by the name of its ensemble.", show_default="fraud"),
]
State = Annotated[
    str | None,
    typer.Option(
        help="State folder of a server on this machine.", show_default=".tollgate"
    ),
]

_BEHIND = 1  # exit status: a replica does not run the desired release


def list_releases(
    repository: Repository = None, product: Product = None, as_json: Json = False
) -> None:
    """List every release that was ever active, with its versions."""
    from rich.markup import escape
    from rich.table import Table

    from tollgate.repository.history import read_history, releases_of

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
    from tollgate.repository.difference import difference_lines

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
            console.out.print(line, highlight=False, markup=False, soft_wrap=True)


def history(
    repository: Repository = None, product: Product = None, as_json: Json = False
) -> None:
    """Show every activation: actor, time, reason, and the release that it replaced."""
    from rich.markup import escape
    from rich.table import Table

    from tollgate.repository.history import TRIAL_ACTIONS, read_history

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
    from tollgate.repository.rendering import render as rendered

    chosen = console.settings(
        repository=repository, product=product, model_config_name=model_config_name
    )
    with open_for_reading(chosen) as folder:
        texts = rendered(folder, chosen.product, config_name=chosen.model_config_name)
    for model, text in texts.items():
        if out is None:
            console.out.print(f"# {model}/{CONFIG_FILE}", highlight=False)
            console.out.print(text, highlight=False, markup=False, soft_wrap=True)
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

    from tollgate.cli.running import admin_port_url
    from tollgate.supervisor.converging import describe_canary
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
        console.out.print(f"desired  {wanted}", highlight=False)
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
    """
    Return whether a replica runs the wanted release, with the share of its canary.
    """
    return any(
        (found.product, found.running, found.canary) == (product, wanted, canary)
        for found in replica.products
    )


def _release(folder: Path, product: str, name: str | None) -> Release:
    """Find a release: the active one, an earlier one, or a pending proposal."""
    from tollgate.errors import RepositoryError
    from tollgate.repository.history import find_release
    from tollgate.repository.proposals import name_of, read_proposal
    from tollgate.repository.release import read_release

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
    from tollgate.repository.history import release_on_trial
    from tollgate.repository.proposals import name_of

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

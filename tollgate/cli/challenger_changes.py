"""
Start, widen, stop and promote a challenger: `challenger start|raise|promote|stop`.
"""

from __future__ import annotations

import getpass
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from tollgate.cli import console
from tollgate.cli.following import follow
from tollgate.cli.options import Repository
from tollgate.cli.release import Product, State
from tollgate.cli.release_changes import (
    WAIT_S,
    Actor,
    Reason,
    RequireApproval,
    Wait,
    change,
    settings_of,
    versions_of,
)
from tollgate.cli.repositories import open_for_changes
from tollgate.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

    from tollgate.repository.release import Release
    from tollgate.settings import Settings


def start(
    versions: Annotated[
        list[str],
        typer.Option(
            "--set",
            help="STEP=VERSION that differs from the active release; STEP "
            "can be features, model or decision. May be repeated.",
            metavar="STEP=VERSION",
        ),
    ],
    reason: Reason = ...,  # type: ignore[assignment]
    mode: Annotated[
        Literal["shadow", "canary"],
        typer.Option(
            help="shadow: score off the request path; canary: answer some customers."
        ),
    ] = "shadow",
    percent: Annotated[
        float,
        typer.Option(
            help="Percentage of customers that a canary answers.", min=0, max=100
        ),
    ] = 5.0,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Start a canary without a shadow that passed the gates."
        ),
    ] = False,
    actor: Actor = None,
    require_approval: RequireApproval = None,
    repository: Repository = None,
    product: Product = None,
    state: State = None,
    wait: Wait = WAIT_S,
) -> None:
    """Start a trial: a shadow, or a canary if its shadow passed the gates."""
    from tollgate.repository.snapshot import RepositorySnapshot
    from tollgate.repository.trial import with_challenger

    # A shadow decides for no caller, so no second person must confirm it.
    asks = require_approval if mode == "canary" else False
    chosen = settings_of(repository, product, state, asks)
    who = actor or getpass.getuser()
    with open_for_changes(chosen) as folder:
        snapshot = RepositorySnapshot(folder)
        current = snapshot.release(chosen.product)
        changed = with_challenger(
            snapshot,
            product=chosen.product,
            versions=versions_of(snapshot, chosen.product, versions),
            mode=mode,
            percent=percent,
            actor=who,
            reason=reason,
        )
        _require_scorable(folder, changed)
        if mode == "canary" and not force:
            _require_passed(chosen, folder, changed)
        change(
            chosen,
            snapshot,
            changed,
            action="challenger start",
            actor=who,
            reason=f"forced: {reason}" if force and mode == "canary" else reason,
            instead_of=current,
        )
    follow(chosen, folder, changed, wait_s=wait)
    _print_next_steps(chosen, changed)


def raise_share(
    percent: Annotated[
        float,
        typer.Option(
            help="Percentage of customers that the canary answers.", min=0, max=100
        ),
    ],
    reason: Reason = ...,  # type: ignore[assignment]
    actor: Actor = None,
    require_approval: RequireApproval = None,
    repository: Repository = None,
    product: Product = None,
    state: State = None,
    wait: Wait = WAIT_S,
) -> None:
    """
    Raise a canary's share of customers; customers that it already serves stay with it.
    """
    from tollgate.repository.snapshot import RepositorySnapshot
    from tollgate.repository.trial import with_percent

    chosen = settings_of(repository, product, state, require_approval)
    who = actor or getpass.getuser()
    with open_for_changes(chosen) as folder:
        snapshot = RepositorySnapshot(folder)
        current = snapshot.release(chosen.product)
        changed = with_percent(
            snapshot,
            product=chosen.product,
            percent=percent,
            actor=who,
            reason=reason,
        )
        change(
            chosen,
            snapshot,
            changed,
            action="challenger raise",
            actor=who,
            reason=reason,
            instead_of=current,
        )
    follow(chosen, folder, changed, wait_s=wait)
    _print_next_steps(chosen, changed)


def stop(
    reason: Reason = ...,  # type: ignore[assignment]
    actor: Actor = None,
    repository: Repository = None,
    product: Product = None,
    state: State = None,
    wait: Wait = WAIT_S,
) -> None:
    """End a trial; the active release keeps serving."""
    from tollgate.repository.snapshot import RepositorySnapshot
    from tollgate.repository.trial import without_challenger

    # Stopping a trial needs no approval.
    chosen = settings_of(repository, product, state, False)
    with open_for_changes(chosen) as folder:
        snapshot = RepositorySnapshot(folder)
        current = snapshot.release(chosen.product)
        changed = without_challenger(snapshot, product=chosen.product)
        change(
            chosen,
            snapshot,
            changed,
            action="challenger stop",
            actor=actor or getpass.getuser(),
            reason=reason,
            instead_of=current,
        )
    follow(chosen, folder, changed, wait_s=wait)


def promote(
    reason: Reason = ...,  # type: ignore[assignment]
    actor: Actor = None,
    require_approval: RequireApproval = None,
    repository: Repository = None,
    product: Product = None,
    state: State = None,
    wait: Wait = WAIT_S,
) -> None:
    """Make the challenger the active release, under its own name."""
    from tollgate.repository.snapshot import RepositorySnapshot
    from tollgate.repository.trial import promoted

    chosen = settings_of(repository, product, state, require_approval)
    with open_for_changes(chosen) as folder:
        snapshot = RepositorySnapshot(folder)
        current = snapshot.release(chosen.product)
        release = promoted(snapshot, product=chosen.product)
        change(
            chosen,
            snapshot,
            release,
            action="promote",
            actor=actor or getpass.getuser(),
            reason=reason,
            instead_of=current,
        )
    follow(chosen, folder, release, wait_s=wait)


def _require_scorable(folder: Path, changed: Release) -> None:
    """Check that the challenger can score the rows of the active release."""
    from tollgate.audit.opened import ReleaseFiles, open_files
    from tollgate.challenger.scoring import Scorer
    from tollgate.repository.history import release_on_trial

    trial = release_on_trial(changed)
    if trial is None:
        return
    champion, challenger = (
        open_files(ReleaseFiles(one, archived={}, repository=folder))
        for one in (changed, trial)
    )
    Scorer(champion, challenger)


def _require_passed(chosen: Settings, folder: Path, changed: Release) -> None:
    """
    Check that the challenger's shadow passed its gates.

    Raises:
        InputError: It did not pass, or there was none; the message gives the reason.
    """
    from tollgate.challenger.gates import judge, passed
    from tollgate.challenger.kept import folder_of, load
    from tollgate.challenger.trials import last_trial
    from tollgate.repository.gates import read_gates
    from tollgate.repository.history import read_history

    challenger = changed.challenger
    if challenger is None:
        return
    name = challenger.release
    counts = folder_of(chosen.state_path, chosen.product)
    entries = read_history(folder, chosen.product)
    shadow = last_trial(entries, challenger=name, mode="shadow")
    is_compared = shadow is not None and shadow.champion == changed.name
    trial = load(counts, shadow) if shadow and is_compared else None
    if trial is None or not trial.groups:
        problem = f"{name} was no shadow of {changed.name} yet; that first, or --force"
        raise InputError("--mode canary", problem)
    gates = read_gates(folder, product=chosen.product)
    verdicts = judge(trial, gates)
    if not passed(verdicts):
        short = "; ".join(
            str(one) for one in verdicts if one.state in ("waits", "broken")
        )
        raise InputError("--mode canary", f"its shadow has not passed: {short}")


def _print_next_steps(chosen: Settings, changed: Release) -> None:
    there = changed.challenger
    if there is not None:
        verb = "would be on trial" if chosen.require_approval else "on trial"
        share = f", {there.percent:g} % of customers" if there.percent else ""
        console.out.print(
            f"{verb} {there.release}, {there.mode}{share}", highlight=False
        )

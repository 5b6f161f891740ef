"""
Make a release the desired one: checked whole, written down, then put in its place.

Servers follow the file; nothing here speaks to one.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from tollgate.errors import InputError, RepositoryError
from tollgate.features.spec import SPEC_FILE, load_spec
from tollgate.repository.atomic import replace_file
from tollgate.repository.check import require_sound
from tollgate.repository.compose import compose_release, now_text
from tollgate.repository.history import (
    TRIAL_ACTIONS,
    Action,
    Entry,
    add_entry,
    read_history,
    releases_of,
    settle,
)
from tollgate.repository.hook_trial import prove_hook
from tollgate.repository.product import read_product
from tollgate.repository.release import (
    Release,
    release_path,
    spec_hash_text,
    write_release,
)
from tollgate.repository.turns import one_at_a_time

PROPOSAL_FILE = "proposed.json"


class Proposal(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """
    A release that waits for a second person.

    Attributes:
        action: What it will have been, once it is confirmed.
        actor: Who proposes it; somebody else has to confirm.
        reason: Why.
        release: The release.
        instead_of: What it was made of, and has to be there still; None for anything.
    """

    action: Action
    actor: str
    reason: str
    release: Release
    instead_of: Release | None = None


def compose_next(
    repository: Path,
    *,
    product: str,
    versions: Mapping[str, int],
    actor: str,
    reason: str,
) -> Release:
    """
    Describe the release that follows, with other versions of some steps.

    Args:
        repository: The model repository.
        product: Name of the ensemble.
        versions: Version per step that changes.
        actor: Who makes it.
        reason: Why.

    Raises:
        RepositoryError: There is no such step or version.
        SpecError: The features.yaml cannot be used.
    """
    models = read_product(repository, product)
    entries = read_history(repository, product)
    before = dict(entries[-1].release.versions) if entries else {}
    for step in versions:
        if step not in models.steps:
            there = ", ".join(models.steps)
            problem = f'"{step}" is not a step of "{product}"; there are {there}'
            raise InputError("--set", problem)
    wanted = {**before, **versions}
    step = models.features_step
    if step not in wanted:
        raise InputError("--set", f"names no version of {step}, and no release does")
    spec = load_spec(repository / step / str(wanted[step]) / SPEC_FILE)
    return compose_release(
        repository,
        product=product,
        versions=wanted,
        actor=actor,
        reason=reason,
        spec_hash=spec_hash_text(spec.spec_hash),
    )


def activate(
    repository: Path,
    release: Release,
    *,
    action: Action,
    actor: str,
    reason: str,
    approver: str | None = None,
    instead_of: Release | None = None,
) -> None:
    """
    Make a release the desired one.

    Args:
        repository: The model repository.
        release: The release.
        action: What is done.
        actor: Who does it.
        reason: Why.
        approver: Who confirmed it; None when nobody was asked.
        instead_of: What it was made of, and has to be there still; None for anything.

    Raises:
        RepositoryError: It does not fit the repository, or cannot be written; the
            release before it stays.
        SpecError: The features.yaml cannot be used, or its hook failed its trial.
        PolicyError: The policy.yaml cannot be used.
    """
    product = release.product
    require_sound(repository, product=product, release=release)
    _prove_hook(repository, release)
    with one_at_a_time(repository / product):
        entries = settle(repository, product)
        _require_new(repository, release, entries)
        _require_there(release, entries, action=action, expected=instead_of)
        entry = Entry(
            action=action,
            time=now_text(),
            actor=actor,
            approver=approver,
            reason=reason,
            origin=entries[-1].release.name if entries else None,
            release=release,
        )
        add_entry(repository, entry)
        write_release(repository, release)
        if approver is not None or action not in TRIAL_ACTIONS:
            proposal_path(repository, product).unlink(missing_ok=True)


def _prove_hook(repository: Path, release: Release) -> None:
    """Run the hook of a release's features, if it has one, where it can do no harm."""
    step = read_product(repository, release.product).features_step
    prove_hook(repository / step / str(release.versions[step]) / SPEC_FILE)


def _require_there(
    release: Release, entries: list[Entry], *, action: Action, expected: Release | None
) -> None:
    """Demand that nobody changed in between what a change was made of."""
    there = entries[-1].release if entries else None
    other = expected is not None and there != expected
    # Whoever changes the challenger of a release must not bring that release back.
    if action in TRIAL_ACTIONS:
        other = other or there is None or there.name != release.name
    if other:
        problem = "somebody changed the release in between; look, and do it again"
        raise RepositoryError(release.product, problem)


def _require_new(repository: Path, release: Release, entries: list[Entry]) -> None:
    """Demand that a name means what it meant before, if it meant something."""
    known = releases_of(entries).get(release.name)
    if known is not None and known.versions != release.versions:
        path = release_path(repository, release.product)
        problem = f"{release.name} is another release by now: somebody was faster"
        raise RepositoryError(path, problem)


def propose(
    repository: Path,
    release: Release,
    *,
    action: Action,
    actor: str,
    reason: str,
    instead_of: Release | None = None,
) -> Path:
    """
    Lay a release down for a second person; it replaces one that waits.

    Raises:
        RepositoryError: It does not fit the repository, or cannot be written.
        SpecError: The features.yaml cannot be used, or its hook failed its trial.
    """
    require_sound(repository, product=release.product, release=release)
    _prove_hook(repository, release)
    path = proposal_path(repository, release.product)
    proposal = Proposal(
        action=action,
        actor=actor,
        reason=reason,
        release=release,
        instead_of=instead_of,
    )
    text = msgspec.json.format(msgspec.json.encode(proposal), indent=2)
    try:
        replace_file(path, text + b"\n")
    except OSError as exc:
        raise RepositoryError(path, f"cannot be written: {exc.strerror}") from exc
    return path


def approve(repository: Path, *, product: str, name: str, actor: str) -> Release:
    """
    Confirm the release that waits, as somebody else than who proposed it.

    Raises:
        RepositoryError: None waits, another one does, or it does not fit any more.
        InputError: The same person proposed it.
    """
    path = proposal_path(repository, product)
    try:
        proposal = msgspec.json.decode(path.read_bytes(), type=Proposal)
    except FileNotFoundError as exc:
        raise RepositoryError(path, f"no release of {product} waits") from exc
    except (OSError, msgspec.MsgspecError) as exc:
        raise RepositoryError(path, f"cannot be read: {exc}") from exc
    if proposal.release.name != name:
        raise RepositoryError(path, f"{proposal.release.name} waits, not {name}")
    if proposal.actor == actor:
        raise InputError("--actor", f"{actor} proposed it; somebody else confirms")
    activate(
        repository,
        proposal.release,
        action=proposal.action,
        actor=proposal.actor,
        reason=proposal.reason,
        approver=actor,
        instead_of=proposal.instead_of,
    )
    return proposal.release


def proposal_path(repository: Path, product: str) -> Path:
    """Name the file of a release that waits for a second person."""
    return release_path(repository, product).with_name(PROPOSAL_FILE)

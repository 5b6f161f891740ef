"""
Activate a release: compose it, check it completely, log it, write release.json.

Servers follow the file; this module talks to no server.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path

import msgspec

from tollgate.errors import ArgumentError, RepositoryError, os_errors
from tollgate.features.spec.feature_spec import SPEC_FILE, load_spec
from tollgate.repository.atomic import lock_folder, replace_file
from tollgate.repository.lint.product_rules import require_sound
from tollgate.repository.models.hook_trial import prove_hook
from tollgate.repository.releases.release_file import (
    Release,
    Versions,
    release_path,
    require_steps,
    spec_hash_text,
    write_release,
)
from tollgate.repository.releases.release_history import (
    TRIAL_ACTIONS,
    Action,
    Entry,
    Proposal,
    add_entry,
    name_of,
    proposal_path,
    read_proposal,
    releases_of,
    settle,
)
from tollgate.repository.snapshot import RepositorySnapshot


def compose_release(
    snapshot: RepositorySnapshot,
    *,
    product: str,
    versions: Mapping[str, int],
    actor: str,
    reason: str,
    spec_hash: str,
) -> Release:
    """
    Describe a new release; write nothing.

    The release in the repository becomes its `previous`. If that one pins the same
    versions, it is replaced, and the new release takes over its `previous`.

    Args:
        versions: Version per step, for every step.
        spec_hash: Hash of the feature spec, 16 hexadecimal digits.

    Returns:
        The release with the hashes of all versions that stay loaded, named after the
        product and the next number.

    Raises:
        RepositoryError: A version is missing, a step has none, or the release in the
            repository cannot be read.
    """
    path = release_path(snapshot.folder, product)
    require_steps(path, versions, product=snapshot.product(product))
    current = snapshot.current_release(product)
    previous = _previous(snapshot, current, versions=versions)
    return Release(
        name=_next_name(snapshot, product),
        product=product,
        versions=dict(versions),
        hashes=_hashes(snapshot, versions, previous or {}),
        spec_hash=spec_hash,
        previous=previous,
        actor=actor,
        reason=reason,
        time=now_text(),
    )


def recompose_release(snapshot: RepositorySnapshot, release: Release) -> Release:
    """
    Describe an earlier release, to make it the desired one again.

    It has the same name, content, author, reason and time. The release in the
    repository becomes its `previous`.

    Raises:
        RepositoryError: The release in the repository cannot be read.
    """
    current = snapshot.current_release(release.product)
    previous = _previous(snapshot, current, versions=release.versions)
    own = release.hashes_of(release.versions)
    return msgspec.structs.replace(
        release,
        hashes=_hashes(snapshot, previous or {}) | own,
        previous=previous,
        challenger=None,
    )


def now_text() -> str:
    """Return the current time in the format of releases: RFC 3339 in UTC."""
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def _next_name(snapshot: RepositorySnapshot, product: str) -> str:
    """
    Return the next name: fraud-1, fraud-2, …; names of another form do not count.

    The name of a pending proposal is taken: a person who approves it by that name must
    not approve another release.
    """
    names = set(releases_of(snapshot.history(product)))
    with contextlib.suppress(RepositoryError):  # the next proposal replaces it
        if waiting := read_proposal(snapshot.folder, product):
            trial = waiting.release.challenger
            names |= {waiting.release.name} | ({trial.release} if trial else set())
    numbers = [name.removeprefix(f"{product}-") for name in names]
    counted = [int(one) for one in numbers if one.isascii() and one.isdigit()]
    return f"{product}-{max(counted, default=0) + 1}"


def _previous(
    snapshot: RepositorySnapshot,
    current: Release | None,
    *,
    versions: Mapping[str, int],
) -> Versions | None:
    """Choose the versions to roll back to; None if they were removed."""
    if current is None:
        return None
    previous = current.previous if current.versions == versions else current.versions
    if previous is None:
        return None
    there = all(
        (snapshot.folder / step / str(version)).is_dir()
        for step, version in previous.items()
    )
    return previous if there and previous.keys() == versions.keys() else None


def _hashes(
    snapshot: RepositorySnapshot, *releases: Mapping[str, int]
) -> dict[str, str]:
    """Hash every file of every version that one of the releases names."""
    pairs = sorted({pair for versions in releases for pair in versions.items()})
    hashes: dict[str, str] = {}
    for step, version in pairs:
        hashes |= snapshot.hashes(step, version=version)
    return hashes


# Actions that change which release answers; they end any trial.
_ENDS_TRIAL: tuple[Action, ...] = ("activate", "rollback")


def compose_next(
    snapshot: RepositorySnapshot,
    *,
    product: str,
    versions: Mapping[str, int],
    actor: str,
    reason: str,
) -> Release:
    """
    Describe the next release, with other versions of some steps.

    Raises:
        RepositoryError: There is no such step or version.
        SpecError: The features.yaml cannot be used.
    """
    models = snapshot.product(product)
    entries = snapshot.history(product)
    before = dict(entries[-1].release.versions) if entries else {}
    for step in versions:
        if step not in models.steps:
            there = ", ".join(models.steps)
            problem = f'"{step}" is not a step of "{product}"; there are {there}'
            raise ArgumentError("versions", problem)
    wanted = {**before, **versions}
    step = models.features_step
    if step not in wanted:
        raise ArgumentError(
            "versions", f"names no version of {step}, and no release does"
        )
    spec = load_spec(snapshot.folder / step / str(wanted[step]) / SPEC_FILE)
    return compose_release(
        snapshot,
        product=product,
        versions=wanted,
        actor=actor,
        reason=reason,
        spec_hash=spec_hash_text(spec.spec_hash),
    )


def activate(
    snapshot: RepositorySnapshot,
    release: Release,
    *,
    action: Action,
    actor: str,
    reason: str,
    instead_of: Release | None = None,
) -> None:
    """
    Make a release the desired one.

    Args:
        action: Action to log in the history.
        instead_of: Release that this one was derived from, which must still be the
            current one; None for any.

    Raises:
        RepositoryError: It does not fit the repository, or cannot be written; the
            release before it stays.
        SpecError: The features.yaml cannot be used, or its hook failed its trial.
        PolicyError: The policy.yaml cannot be used.
    """
    _change(
        snapshot,
        Proposal(action, actor, reason, release, instead_of),
        approver=None,
    )


def _change(
    snapshot: RepositorySnapshot, wanted: Proposal, *, approver: str | None
) -> None:
    """Make the release of a proposal the desired one; record its approver, if any."""
    release, product = wanted.release, wanted.release.product
    require_sound(snapshot, product=product, release=release)
    _prove_hook(snapshot, release)
    # Under the lock, compare with the files: the snapshot may be older than another
    # person's change.
    repository = snapshot.folder
    with lock_folder(repository / product):
        if approver is not None and read_proposal(repository, product) != wanted:
            raise _changed(product, "what waits")
        entries = settle(repository, product)
        _require_new(repository, release, entries)
        _require_unchanged(wanted, entries)
        _require_versions(repository, release)
        entry = Entry(
            action=wanted.action,
            time=now_text(),
            actor=wanted.actor,
            approver=approver,
            reason=wanted.reason,
            origin=entries[-1].release.name if entries else None,
            release=release,
        )
        add_entry(repository, entry)
        write_release(repository, release)
        if approver is not None or wanted.action not in TRIAL_ACTIONS:
            proposal_path(repository, product).unlink(missing_ok=True)


def _prove_hook(snapshot: RepositorySnapshot, release: Release) -> None:
    """Run the hook of a release's features, if it has one, in separate processes."""
    step = snapshot.product(release.product).features_step
    path = snapshot.folder / step / str(release.versions[step]) / SPEC_FILE
    if load_spec(path).hook is not None:
        prove_hook(path)


def _require_unchanged(wanted: Proposal, entries: list[Entry]) -> None:
    """Fail if the base release of a change is no longer the current one."""
    there = entries[-1].release if entries else None
    made_of = wanted.instead_of
    if wanted.action in _ENDS_TRIAL:
        # The challenger does not matter here: the change ends its trial.
        other = made_of is not None and (there is None or there.name != made_of.name)
    else:
        other = made_of is not None and there != made_of
    # A change of a release's challenger must not bring that release back.
    if wanted.action in TRIAL_ACTIONS:
        other = other or there is None or there.name != wanted.release.name
    if other:
        raise _changed(wanted.release.product, "the release")


def _changed(product: str, what: str) -> RepositoryError:
    problem = f"somebody changed {what} in between; look, and do it again"
    return RepositoryError(product, problem)


def _require_versions(repository: Path, release: Release) -> None:
    """Check that all versions exist: a release's version must not be moved away."""
    for step in release.versions:
        for version in release.loaded_versions(step):
            if not (repository / step / str(version)).is_dir():
                path = release_path(repository, release.product)
                problem = f"version {version} is not in the repository any more"
                raise RepositoryError(path, problem, where=step)


def _require_new(repository: Path, release: Release, entries: list[Entry]) -> None:
    """Fail if the name already belongs to a release with other versions."""
    known = releases_of(entries).get(release.name)
    if known is not None and known.versions != release.versions:
        path = release_path(repository, release.product)
        problem = f"{release.name} is another release by now: somebody was faster"
        raise RepositoryError(path, problem)


def propose(
    snapshot: RepositorySnapshot,
    release: Release,
    *,
    action: Action,
    actor: str,
    reason: str,
    instead_of: Release | None = None,
) -> Path:
    """
    Store a release for the approval of a second person; it replaces a pending one.

    Raises:
        RepositoryError: It does not fit the repository, or cannot be written.
        SpecError: The features.yaml cannot be used, or its hook failed its trial.
    """
    product = release.product
    require_sound(snapshot, product=product, release=release)
    _prove_hook(snapshot, release)
    path = proposal_path(snapshot.folder, product)
    proposal = Proposal(action, actor, reason, release, instead_of)
    text = msgspec.json.format(msgspec.json.encode(proposal), indent=2)
    with (
        os_errors(RepositoryError, path, "cannot be written"),
        lock_folder(snapshot.folder / product),
    ):
        replace_file(path, text + b"\n")
    return path


def approve(
    snapshot: RepositorySnapshot, *, product: str, name: str, actor: str
) -> Release:
    """
    Approve the pending release, as another person than its proposer.

    Raises:
        RepositoryError: None is pending, another one is, or it does not fit any more.
        InputError: The same person proposed it.
    """
    path = proposal_path(snapshot.folder, product)
    proposal = read_proposal(snapshot.folder, product)
    if proposal is None:
        raise RepositoryError(path, f"no release of {product} waits")
    if name_of(proposal.release) != name:
        raise RepositoryError(path, f"{name_of(proposal.release)} waits, not {name}")
    if proposal.actor == actor:
        raise ArgumentError("actor", f"{actor} proposed it; somebody else confirms")
    _change(snapshot, proposal, approver=actor)
    return proposal.release

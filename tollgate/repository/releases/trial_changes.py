"""
Start, raise, stop and promote a challenger's trial against the active release.

Each function describes the release.json that follows; `activation.activate` makes it
the desired one, and refuses if the file changed meanwhile.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from tollgate.errors import ArgumentError, RepositoryError
from tollgate.repository.lint.product_rules import require_sound
from tollgate.repository.releases.activation import (
    compose_next,
    now_text,
    recompose_release,
)
from tollgate.repository.releases.release_file import (
    Challenger,
    Release,
    Versions,
    release_path,
)
from tollgate.repository.releases.release_history import (
    Entry,
    release_on_trial,
    releases_of,
)
from tollgate.repository.snapshot import RepositorySnapshot

Mode = Literal["shadow", "canary"]


def with_challenger(
    snapshot: RepositorySnapshot,
    *,
    product: str,
    versions: Mapping[str, int],
    mode: Mode,
    percent: float,
    actor: str,
    reason: str,
    interleaved: bool = False,
) -> Release:
    """
    Describe the release that answers, with a challenger next to it.

    A challenger with the versions of an earlier release gets that release's name; a
    challenger that was a canary before gets the same customers.

    Args:
        versions: Version per step in which the challenger differs.
        percent: Share of the customers that a canary answers; above 0, to 100.
        interleaved: True if a canary of a product that ranks is interleaved with the
            release in that share of the requests.

    Raises:
        InputError: There is no such step, or the share is not valid.
        RepositoryError: Another one is on trial, it is no other release, it does not
            fit the repository, or a canary differs in more than the model.
        SpecError: The features.yaml cannot be used.
        PolicyError: The policy.yaml cannot be used.
    """
    current = snapshot.release(product)
    path = release_path(snapshot.folder, product)
    trial = compose_next(
        snapshot,
        product=product,
        versions={**current.versions, **versions},
        actor=actor,
        reason=reason,
    )
    if trial.versions == current.versions:
        raise RepositoryError(path, f"that is {current.name}, which answers already")
    entries = snapshot.history(product)
    name = _known_name(trial, entries) or trial.name
    there = current.challenger
    if there is not None and (there.release, there.mode) == (name, mode):
        hint = ": raise its share" if mode == "canary" else ""
        raise RepositoryError(path, f"{name} is on trial as a {mode} already{hint}")
    if there is not None and there.release != name:
        raise RepositoryError(path, f"{there.release} is on trial: stop it first")
    challenger = Challenger(
        release=name,
        versions=trial.versions,
        spec_hash=trial.spec_hash,
        mode=mode,
        percent=_share(percent) if mode == "canary" else 0.0,
        seed=_seed(name, entries) if mode == "canary" else 0,
        interleaved=interleaved,
        actor=actor,
        reason=reason,
        time=now_text(),
    )
    if mode == "canary":
        require_canary(snapshot, current, challenger)
    own = trial.hashes_of(trial.versions)
    changed = _changed(snapshot, current, challenger=challenger, hashes=own)
    alone = release_on_trial(changed)
    if alone is not None:  # check its policy and model as if it answered
        require_sound(snapshot, product=product, release=alone)
    return changed


def with_percent(
    snapshot: RepositorySnapshot,
    *,
    product: str,
    percent: float,
    actor: str,
    reason: str,
) -> Release:
    """
    Describe the release with a canary that answers a larger share.

    Raises:
        InputError: The share is not valid, or not larger.
        RepositoryError: No canary answers.
    """
    current, challenger = on_trial(snapshot, product=product)
    if challenger.mode != "canary":
        problem = f"{challenger.release} is a shadow: it answers nobody"
        raise RepositoryError(release_path(snapshot.folder, product), problem)
    if _share(percent) <= challenger.percent:
        problem = f"{percent:g} is not above {challenger.percent:g}, which it has"
        raise ArgumentError("percent", problem)
    raised = msgspec.structs.replace(
        challenger, percent=percent, actor=actor, reason=reason, time=now_text()
    )
    return _changed(snapshot, current, challenger=raised, hashes=current.hashes)


def without_challenger(snapshot: RepositorySnapshot, *, product: str) -> Release:
    """
    Describe the release without its challenger.

    Raises:
        RepositoryError: No challenger is on trial.
    """
    current, _ = on_trial(snapshot, product=product)
    return _changed(snapshot, current, challenger=None, hashes={})


def promoted(snapshot: RepositorySnapshot, *, product: str) -> Release:
    """
    Describe the challenger as the release that answers, under its name.

    Raises:
        RepositoryError: No challenger is on trial.
    """
    current = snapshot.release(product)
    trial = release_on_trial(current)
    if trial is None:
        raise _nobody(snapshot, current)
    return recompose_release(snapshot, trial)


def on_trial(
    snapshot: RepositorySnapshot, *, product: str
) -> tuple[Release, Challenger]:
    """
    Read the release that answers and its challenger.

    Raises:
        RepositoryError: No challenger is on trial, or the release cannot be read.
    """
    current = snapshot.release(product)
    if current.challenger is None:
        raise _nobody(snapshot, current)
    return current, current.challenger


def _nobody(snapshot: RepositorySnapshot, current: Release) -> RepositoryError:
    path = release_path(snapshot.folder, current.product)
    return RepositoryError(path, f"no challenger is on trial next to {current.name}")


def require_canary(
    snapshot: RepositorySnapshot, current: Release, challenger: Challenger
) -> None:
    """
    Check that a challenger shares all but the model with the release that answers.

    Raises:
        RepositoryError: It differs in another step, which the message names; or it is
            interleaved, and the product does not rank.
    """
    models = snapshot.product(current.product)
    if challenger.interleaved and not models.ranks:
        problem = f"{models.name} decides: only lists can be interleaved"
        raise RepositoryError(release_path(snapshot.folder, current.product), problem)
    model = models.model_step
    others = [
        f"{step} {version}, not {current.versions.get(step)}"
        for step, version in challenger.versions.items()
        if step != model and version != current.versions.get(step)
    ]
    if challenger.spec_hash != current.spec_hash:
        others.append("its features are others")
    if others:
        problem = (
            f"{challenger.release} has {', '.join(others)}; a canary is another model "
            "on the same features and policy: shadow only, until it is promoted"
        )
        raise RepositoryError(release_path(snapshot.folder, current.product), problem)


def _changed(
    snapshot: RepositorySnapshot,
    current: Release,
    *,
    challenger: Challenger | None,
    hashes: Mapping[str, str],
) -> Release:
    """Change the challenger; include only the hashes of versions that stay loaded."""
    previous = current.previous
    if previous is not None and not _there(snapshot, previous):
        previous = None  # it was removed, so a rollback to it is not possible
    trial = challenger.versions if challenger else {}
    known = {**hashes, **current.hashes}
    own = msgspec.structs.replace(current, hashes=known)
    parts = [own.hashes_of(one) for one in (current.versions, previous or {}, trial)]
    return msgspec.structs.replace(
        current,
        hashes={name: digest for part in parts for name, digest in part.items()},
        previous=previous,
        challenger=challenger,
    )


def _there(snapshot: RepositorySnapshot, versions: Versions) -> bool:
    return all(
        (snapshot.folder / step / str(version)).is_dir()
        for step, version in versions.items()
    )


def _known_name(trial: Release, entries: Sequence[Entry]) -> str | None:
    """Find the earlier name of these versions, if their files are unchanged."""
    own = trial.hashes_of(trial.versions)
    for release in reversed(releases_of(entries).values()):
        same = release.versions == trial.versions
        if same and release.hashes_of(release.versions) == own:
            return release.name
    return None


def _seed(name: str, entries: Sequence[Entry]) -> int:
    """Choose the seed of a canary's customers: its earlier one, or a random one."""
    for entry in reversed(entries):
        before = entry.release.challenger
        if before is not None and (before.release, before.mode) == (name, "canary"):
            return before.seed
    return secrets.randbelow(2**62)


def _share(percent: float) -> float:
    if not 0 < percent <= 100:
        raise ArgumentError("percent", f"{percent:g} is not above 0 and at most 100")
    return percent

"""
Check a model repository for everything that Triton finds late, or never.

The check reads files and starts no server.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path

from tollgate.errors import HookError, PolicyError, RepositoryError, SpecError
from tollgate.features.spec import SPEC_FILE, load_spec
from tollgate.repository.artifact import read_artifact
from tollgate.repository.contents import content_findings
from tollgate.repository.findings import Finding, collecting
from tollgate.repository.product import Product
from tollgate.repository.release import (
    Release,
    release_path,
    require_steps,
    spec_hash_text,
    verify_release,
)
from tollgate.repository.rules import rule_findings
from tollgate.repository.snapshot import RepositorySnapshot
from tollgate.repository.versions import list_versions
from tollgate.repository.wiring import wiring_findings

__all__ = ["Finding", "check", "check_staged", "product_findings", "require_sound"]


def check(
    snapshot: RepositorySnapshot, *, product: str, release: Release | None = None
) -> list[Finding]:
    """
    Find everything that would keep a product from loading or from deciding right.

    This covers the wiring of the ensemble, our rules for each configuration, the
    release with its hashes, and the contents of the versions it pins (of the newest
    versions, if the release cannot be read).

    Args:
        snapshot: The model repository, with the named configuration to check.
        product: Name of the ensemble.
        release: Release to check instead of release.json.

    Returns:
        The findings, wiring first; empty if the repository is valid.

    Raises:
        SpecError: The features.yaml cannot be used.
        PolicyError: The policy.yaml cannot be used.
    """
    return _collect([], snapshot, product=product, given=release)


def check_staged(
    snapshot: RepositorySnapshot, *, product: str, staged: Path
) -> list[Finding]:
    """
    Find the problems of a product as if a staged model were in its place.

    Like `check`, with the staged version instead of the pinned one of the model step,
    and with the version of the features that it was made for, if the repository has it.
    The product may still be without a release, and without another model.

    Args:
        snapshot: The model repository.
        product: Name of the ensemble.
        staged: Directory with the files of the model's version.

    Returns:
        The findings, wiring first.

    Raises:
        SpecError: The features.yaml cannot be used.
        PolicyError: The policy.yaml cannot be used.
    """
    return _collect([], snapshot, product=product, staged=staged)


def require_sound(
    snapshot: RepositorySnapshot, *, product: str, release: Release | None = None
) -> None:
    """
    Fail if the repository has a finding, with another release in it if one is given.

    Raises:
        RepositoryError: The first finding.
        SpecError: The features.yaml cannot be used.
        PolicyError: The policy.yaml cannot be used.
    """
    for finding in check(snapshot, product=product, release=release):
        raise finding.as_error()


def product_findings(snapshot: RepositorySnapshot, *, product: str) -> list[Finding]:
    """
    Find the same as `check`, with errors of features.yaml or policy.yaml as findings.

    Args:
        snapshot: The model repository, with the named configuration to check.
        product: Name of the ensemble.
    """
    findings: list[Finding] = []
    with (
        collecting(findings, code="TG317", caught=SpecError),
        collecting(findings, code="TG322", caught=HookError),
        collecting(findings, code="TG318", caught=PolicyError),
    ):
        _collect(findings, snapshot, product=product)
    return findings


def _collect(
    findings: list[Finding],
    snapshot: RepositorySnapshot,
    *,
    product: str,
    staged: Path | None = None,
    given: Release | None = None,
) -> list[Finding]:
    """
    Add all findings, on the pinned versions or with a staged model, and return them.

    Errors of features.yaml and policy.yaml are raised; findings made before them stay
    in the list.
    """
    with collecting(findings, code="TG001"):
        models = snapshot.product(product)
        findings += wiring_findings(models)
        release = None
        release_problems: list[Finding] = []
        released = release_path(snapshot.folder, product).exists()
        if given or staged is None or released:
            release = _usable_release(
                snapshot, given, product=models, problems=release_problems
            )
        findings += rule_findings(models, release=release)
        try:
            with collecting(findings, code="TG122"):
                findings += _content_findings(models, release=release, staged=staged)
        finally:
            # Last: a finding on the content says more about a changed file than its
            # hash.
            findings += release_problems
    return findings


def _usable_release(
    snapshot: RepositorySnapshot,
    given: Release | None,
    *,
    product: Product,
    problems: list[Finding],
) -> Release | None:
    """Read and verify the release; None if it does not pin this product's steps."""
    release = None
    with collecting(problems, code="TG310"):
        found = given or snapshot.release(product.name)
        path = release_path(snapshot.folder, product.name)
        require_steps(path, found.versions, product=product)
        release = found
        verify_release(snapshot.folder, release)
    return release


def _content_findings(
    models: Product, *, release: Release | None, staged: Path | None
) -> list[Finding]:
    """Check the pinned versions; of a step whose pinned one is missing, the newest."""
    findings: list[Finding] = []
    given = {models.model_step: staged} if staged else {}
    newest: dict[str, int] = {}
    for name in [*models.steps, models.name]:
        there = list_versions(models.repository, name)
        if there:
            newest[name] = there[-1]
        elif name not in given:
            file = str(models.repository / name)
            problem = "has no version: Triton needs a directory 1, for ensembles too"
            findings.append(Finding(code="TG002", file=file, where="", problem=problem))
    if findings:
        return findings
    pinned = release.versions if release else {}
    directories = dict(given)
    for step in models.steps.keys() - given.keys():
        directory = models.repository / step / str(pinned.get(step))
        if not directory.is_dir():
            directory = models.repository / step / str(newest[step])
        directories[step] = directory
    if staged and (others := _features_of(staged, models, directories)):
        # The model is for features that will be released with it, not for the current
        # release's.
        directories[models.features_step], release = others, None
    return content_findings(models, directories=directories, release=release)


def _features_of(
    staged: Path, models: Product, directories: Mapping[str, Path]
) -> Path | None:
    """Find the version of the features that a model was made for, if it is another."""
    step = models.features_step
    try:
        wanted = read_artifact(staged).spec_hash
    except RepositoryError:
        return None  # the next reader of the record reports it
    newest_first = reversed(list_versions(models.repository, step))
    versions = [models.repository / step / str(one) for one in newest_first]
    for directory in (directories[step], *versions):
        with contextlib.suppress(SpecError):  # an unreleased one may be incomplete
            spec = load_spec(directory / SPEC_FILE)
            if spec_hash_text(spec.spec_hash) == wanted:
                return None if directory == directories[step] else directory
    return None

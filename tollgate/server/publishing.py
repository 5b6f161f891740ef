"""
Publish a model: check it, add it as the next version, load it into a running server.

Publishing does not change which release answers requests: activating a release is a
separate decision, made by other people.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from tollgate.errors import RepositoryError, ServerError
from tollgate.repository.budget import ModelBudget
from tollgate.repository.candidate import require_files, require_unchanged
from tollgate.repository.new_features import new_features
from tollgate.repository.product import Product
from tollgate.repository.release import read_release, release_path
from tollgate.repository.snapshot import RepositorySnapshot
from tollgate.repository.speed import Measure, us_per_row
from tollgate.repository.staging import Staging
from tollgate.repository.versions import (
    place_version,
    staged_version,
    withdraw_version,
)
from tollgate.server.beside import require_server, side_load
from tollgate.server.control import Reachable
from tollgate.server.model_trial import SourceAnswers, Trial
from tollgate.server.proving import prove
from tollgate.server.rehearsal import rehearse


class Published(msgspec.Struct, frozen=True):
    """
    A version that is in the repository now.

    Attributes:
        step: The model.
        version: Its number.
        us_per_row: Rows of a batch -> the fastest time per row, µs.
        budget: Budget that the time was compared with.
        release: Release that goes on deciding at the server that loaded the version;
            empty if no server loaded it.
        features: Version of the features step with the new features.yaml, added or
            already there; None if none was given.
    """

    step: str
    version: int
    us_per_row: dict[int, float]
    budget: ModelBudget
    release: str
    features: int | None = None


def publish(
    source: Path,
    *,
    repository: Path,
    product: str,
    server: Reachable | None = None,
    dry_load: bool = True,
    spec: Path | None = None,
    answers: SourceAnswers | None = None,
    measure: Measure = us_per_row,
    progress: Callable[[str], None] = lambda done: None,
) -> Published:
    """
    Make a converted model the next version of a product's model step.

    docs/publishing.md describes the order of the steps, and what a crash leaves behind.

    Args:
        source: Folder with model.onnx and artifact.json; it is not changed.
        repository: The model repository.
        product: Name of the ensemble.
        server: A server of that repository to load the version into, next to those that
            serve; None publishes the files alone.
        dry_load: Load it into a temporary server before it is published.
        spec: A features.yaml that the model was made for and that is to become the next
            version of the features step; None if it is in the repository.
        answers: The source model's answers to raw rows; a server that loads the version
            must give the same. None compares nothing.
        measure: Times a model.onnx: rows of a batch -> µs per row.
        progress: Called with a description of each check that passed.

    Raises:
        RepositoryError: The folder is no model of this product, the model breaks its
            budget, or the repository is not valid; nothing is published.
        SpecError: The features.yaml cannot be used.
        PolicyError: The policy.yaml cannot be used.
        SetupError: This machine cannot run the dry load.
        ServerError: The model does not load or does not answer as its file does;
            nothing is published, and the server has the same versions as before.
    """
    snapshot = RepositorySnapshot(repository)
    models = snapshot.product(product)
    step = models.model_step
    require_files(source)
    require_unchanged(repository, step)
    if server is not None:
        require_server(server, models)
    with (
        new_features(spec, models, source=source) as features,
        staged_version(repository, step=step, source=source) as staged,
    ):
        with _named_as(source, staged.version):
            proven = prove(
                staged.version,
                snapshot,
                product=product,
                measure=measure,
                progress=progress,
            )
            trial = msgspec.structs.replace(proven.trial, source=answers)
            if dry_load:
                apart = rehearse(staged, models=models, trial=trial)
                progress("a throw-away server loads it and answers as the file does")
                if answers is not None:
                    progress(
                        f"served = source on {len(answers.rows):,} raw rows: largest "
                        f"difference {apart:.2g}"
                    )
        version = place_version(staged, repository=repository, step=step)
        release = ""
        if server is not None:
            release = _load(server, staged, models=models, version=version, trial=trial)
            also = "" if answers is None else ", and raw rows as the source does"
            progress(f"{server.grpc_url} has it too, answers as the file does{also}")
    return Published(step, version, proven.us_per_row, proven.budget, release, features)


def _load(
    server: Reachable, staged: Staging, *, models: Product, version: int, trial: Trial
) -> str:
    """Load a placed version; remove it again if the server cannot use it."""
    try:
        return side_load(server, models=models, version=version, trial=trial)
    except BaseException:
        if not _is_released(models, version=version):
            withdraw_version(
                staged, models.repository / models.model_step, number=version
            )
        raise


def _is_released(models: Product, *, version: int) -> bool:
    """Return whether a release already names a version that was just added."""
    if not release_path(models.repository, models.name).exists():
        return False
    release = read_release(models.repository, product=models.name)
    return version in release.loaded_versions(models.model_step)


@contextmanager
def _named_as(source: Path, staged: Path) -> Iterator[None]:
    """Make errors name the folder that the caller passed, not its copy."""
    try:
        yield
    except RepositoryError as error:
        named, problem = (
            text.replace(str(staged), str(source))
            for text in (error.source, error.problem)
        )
        raise RepositoryError(named, problem, where=error.where) from error
    except ServerError as error:
        problem = error.problem.replace(str(staged), str(source))
        raise ServerError(error.process, problem, log=error.log) from error

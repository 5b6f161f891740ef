"""
Publish a model: check it, add it as the next version, load it into a running server.

Publishing does not change which release answers requests: activating a release is a
separate decision, made by other people.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from google.protobuf import json_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from tollgate.errors import RepositoryError, ServerError
from tollgate.repository.atomic import lock_folder
from tollgate.repository.configs import NAMED_CONFIGS, merge, read_config, to_json
from tollgate.repository.hashes import hash_version
from tollgate.repository.models.candidate import require_files, require_unchanged
from tollgate.repository.models.features_version import new_features
from tollgate.repository.models.speed import Measure, ModelBudget, us_per_row
from tollgate.repository.product_models import Product
from tollgate.repository.releases.release_file import read_release, release_path
from tollgate.repository.releases.serving_plan import Part
from tollgate.repository.snapshot import RepositorySnapshot
from tollgate.repository.versions import (
    Staging,
    list_versions,
    place_version,
    staged_version,
    withdraw_version,
)
from tollgate.schema import public_name
from tollgate.server.model_trial import SourceAnswers, Trial, prove, require_answers
from tollgate.server.serving.copy_slots import Slots
from tollgate.server.triton import control, placement
from tollgate.server.triton.control import Reachable
from tollgate.server.triton.launcher import TritonServer
from tollgate.server.triton.private_names import hide_instances, link_private
from tollgate.server.triton.probe import probe

# Side-load a new version of a model into a running server and verify its answers.

log = logging.getLogger(__name__)


def require_server(server: Reachable, models: Product) -> None:
    """
    Fail unless a server serves a product and lets us load models.

    Raises:
        ServerError: No server answers, the secret is wrong, or the product is not
            served.
    """
    names = [models.model_step, models.name]
    if control.ready_versions(server, models.name) and control.is_fused(
        server, models.name
    ):
        names = [models.name]
    for name in names:
        if not control.ready_versions(server, name):
            problem = f"{name} is not loaded at {server.grpc_url}: nothing to add to"
            raise ServerError("tritonserver", problem)


def side_load(server: Reachable, *, models: Product, version: int, trial: Trial) -> str:
    """
    Load one more version of a product's model into a server, and query it directly.

    The server receives the configuration that it runs, with one more version in its
    policy, so the versions that serve are left alone. If the new one fails, the server
    unloads it again. A server that runs the product fused has no such model: it loads
    the version for these queries alone.

    Args:
        models: The product, whose repository the server reads.

    Returns:
        The release that goes on deciding.

    Raises:
        ServerError: It did not load, or does not answer as its file does; the server
            has the same versions as before.
    """
    step = models.model_step
    with lock_folder((server.own_repository or models.repository) / models.name):
        if control.is_fused(server, models.name):
            return _load_alone(server, models, version=version, trial=trial)
        running = _running_config(server, models)
        served = control.ready_versions(server, step)
        if version in served:
            problem = f"has a version {version} already: it serves another repository"
            raise ServerError(step, f"{server.grpc_url} {problem}")
        _copy(server, models, version=version, served=served)
        try:
            _load_trial(server, running, versions=[*served, version])
            require_answers(server, step, version=version, trial=trial)
            return probe(server, models.name).release
        except BaseException:
            _restore(server, running, versions=served)
            raise


def _load_alone(
    server: Reachable, models: Product, *, version: int, trial: Trial
) -> str:
    """Load a version as a model of its own, query it, and unload it again."""
    step, folder = models.model_step, server.own_repository
    _copy(server, models, version=version, served=())
    name = step
    if folder is not None:
        name = link_private(folder, step, suffix=server.private_suffix)
    loaded = _as_loaded(models.steps[step], name=name)
    running = json_format.ParseDict(loaded, ModelConfig())
    try:
        _load_trial(server, running, versions=[version])
        require_answers(server, step, version=version, trial=trial)
    finally:
        with contextlib.suppress(ServerError):  # it was not loaded
            control.unload_model(server, name)
    return probe(server, models.name).release


def _copy(
    server: Reachable, models: Product, *, version: int, served: Sequence[int]
) -> None:
    """Copy the version's files to a server that does not read the repository itself."""
    own = server.own_repository
    if own is None or own == models.repository.resolve():
        return
    slots = Slots(own)
    if slots.origin != models.repository.resolve():
        problem = f"{server.grpc_url} serves another repository, {slots.origin}"
        raise ServerError(models.model_step, problem)
    slots.place(_part(models, version), repository=models.repository, loaded=served)


def _part(models: Product, version: int) -> Part:
    """Describe a version of the model, with the current hashes of its files."""
    step = models.model_step
    prefix = f"{step}/{version}/"
    hashes = hash_version(models.repository, step, version=version)
    return Part(
        step=step,
        version=version,
        hashes={name.removeprefix(prefix): sha for name, sha in hashes.items()},
        parameters=None,
    )


def _running_config(server: Reachable, models: Product) -> ModelConfig:
    """
    Read a model's running configuration, as config.pbtxt writes what still applies.

    Triton completes a configuration, and takes the completed form for a changed one: it
    would start the versions that serve a second time.
    """
    running = control.model_config(server, models.model_step)
    chosen = running
    for config in _written_configs(models):
        written = _as_loaded(config, name=running["name"])
        written.pop("version_policy", None)
        if _within(written, running):
            # Parameters that a server received since its start stay: the count of
            # renewals.
            chosen = written | {"parameters": running.get("parameters", {})}
            break
    return json_format.ParseDict(chosen, ModelConfig(), ignore_unknown_fields=True)


def _as_loaded(config: ModelConfig, *, name: str) -> dict[str, Any]:
    """Return a configuration in the form in which a server loads it under a name."""
    loaded = ModelConfig()
    loaded.CopyFrom(config)
    if name != config.name:
        hide_instances(loaded, config.name)
        loaded.name = name
    written: dict[str, Any] = json.loads(
        placement.placed(to_json(loaded), gpu=placement.has_gpu())
    )
    return written


def _written_configs(models: Product) -> Iterator[ModelConfig]:
    """Yield config.pbtxt, then the named configurations, one of which is running."""
    step = models.model_step
    yield models.steps[step]
    for path in sorted((models.repository / step / NAMED_CONFIGS).glob("*.pbtxt")):
        with contextlib.suppress(RepositoryError):  # no server runs one it cannot read
            yield read_config(models.repository, step, config_name=path.stem)


def _within(part: Any, whole: Any) -> bool:
    """Return whether one JSON value contains all of another."""
    if isinstance(part, dict) and isinstance(whole, dict):
        return all(
            key in whole and _within(value, whole[key]) for key, value in part.items()
        )
    if isinstance(part, list) and isinstance(whole, list):
        return len(part) == len(whole) and all(map(_within, part, whole))
    return bool(part == whole)


def _load_trial(
    server: Reachable, running: ModelConfig, *, versions: Sequence[int]
) -> None:
    config = to_json(merge(running, versions=versions))
    try:
        control.load_model(server, running.name, config=config)
    except ServerError as error:
        problem = f"did not load: {public_name(error.problem)}"
        raise ServerError(public_name(running.name), problem) from error


def _restore(
    server: Reachable, running: ModelConfig, *, versions: Sequence[int]
) -> None:
    """Load only the old versions into a server again; the server may be what failed."""
    try:
        _load_trial(server, running, versions=versions)
    except ServerError as error:
        log.warning("%s keeps the new version loaded: %s", server.grpc_url, error)


# Load an unpublished version into a temporary server that runs for this test alone.

_VERSION = 1  # version number in the temporary repository


def rehearse(staged: Staging, *, models: Product, trial: Trial) -> float:
    """
    Check that a real server loads a staged model and answers as the file does.

    Args:
        staged: The version; server and repository are created next to it.

    Returns:
        The largest difference from the source, as `require_answers`.

    Raises:
        SetupError: This machine lacks something.
        ServerError: The model does not load, or its answers differ.
    """
    step = models.model_step
    repository = staged.rehearsal / "repository"
    _mirror(models.repository, step, repository=repository, version=staged.version)
    config = to_json(merge(models.steps[step], versions=[_VERSION]))
    server = TritonServer(repository, state=staged.rehearsal / "state", store_url="")
    with server:
        try:
            placed = placement.placed(config, gpu=placement.has_gpu())
            control.load_model(server, step, config=placed)
        except ServerError as error:
            inside = str(repository / step / str(_VERSION))
            problem = error.problem.replace(inside, str(staged.version))
            raise ServerError(step, f"did not load: {problem}") from error
        return require_answers(server, step, version=_VERSION, trial=trial)


def _mirror(origin: Path, step: str, *, repository: Path, version: Path) -> None:
    """Build a repository of one model with one version, out of links."""
    model = repository / step
    model.mkdir(parents=True)
    versions = {str(number) for number in list_versions(origin, step)}
    for path in (origin / step).resolve().iterdir():
        if path.name not in versions:  # config.pbtxt and files that it may refer to
            (model / path.name).symlink_to(path)
    (model / str(_VERSION)).symlink_to(version.resolve())


class Published(msgspec.Struct, frozen=True):
    """
    A version that is in the repository now.

    Attributes:
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

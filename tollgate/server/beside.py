"""Side-load a new version of a model into a running server and verify its answers."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Iterator, Sequence
from typing import Any

from google.protobuf import json_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from tollgate.errors import RepositoryError, ServerError
from tollgate.repository.configs import NAMED_CONFIGS, merge, read_config, to_json
from tollgate.repository.hashes import hash_version
from tollgate.repository.product import Product
from tollgate.repository.serving_plan import Part
from tollgate.repository.turns import lock_folder
from tollgate.schema import public_name
from tollgate.server import control, placement
from tollgate.server.control import Reachable
from tollgate.server.model_trial import Trial, require_answers
from tollgate.server.private_names import hide_instances
from tollgate.server.probe import probe
from tollgate.server.slots import Slots

log = logging.getLogger(__name__)


def require_server(server: Reachable, models: Product) -> None:
    """
    Fail unless a server serves a product and lets us load models.

    Raises:
        ServerError: No server answers, the secret is wrong, or the product is not
            served.
    """
    for name in (models.model_step, models.name):
        if not control.ready_versions(server, name):
            problem = f"{name} is not loaded at {server.grpc_url}: nothing to add to"
            raise ServerError("tritonserver", problem)


def side_load(server: Reachable, *, models: Product, version: int, trial: Trial) -> str:
    """
    Load one more version of a product's model into a server, and query it directly.

    The server receives the configuration that it runs, with one more version in its
    policy, so the versions that serve are left alone. If the new one fails, the server
    unloads it again.

    Args:
        server: A server of the product.
        models: The product, whose repository the server reads.
        version: The new version, which lies in that repository.
        trial: Rows to send and the expected answers.

    Returns:
        The release that goes on deciding.

    Raises:
        ServerError: It did not load, or does not answer as its file does; the server
            has the same versions as before.
    """
    step = models.model_step
    with lock_folder((server.own_repository or models.repository) / models.name):
        running = _running_config(server, models)
        served = control.ready_versions(server, step)
        if version in served:
            problem = f"has a version {version} already: it serves another repository"
            raise ServerError(step, f"{server.grpc_url} {problem}")
        _copy(server, models, version=version, served=served)
        try:
            _load(server, running, versions=[*served, version])
            require_answers(server, step, version=version, trial=trial)
            return probe(server, models.name).release
        except BaseException:
            _restore(server, running, versions=served)
            raise


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


def _load(server: Reachable, running: ModelConfig, *, versions: Sequence[int]) -> None:
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
        _load(server, running, versions=versions)
    except ServerError as error:
        log.warning("%s keeps the new version loaded: %s", server.grpc_url, error)

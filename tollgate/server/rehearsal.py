"""Load an unpublished version into a temporary server that runs for this test alone."""

from __future__ import annotations

from pathlib import Path

from tollgate.errors import ServerError
from tollgate.repository.configs import merge, to_json
from tollgate.repository.product import Product
from tollgate.repository.staging import Staging
from tollgate.repository.versions import list_versions
from tollgate.server import control, placement
from tollgate.server.launcher import TritonServer
from tollgate.server.model_trial import Trial, require_answers

_VERSION = 1  # version number in the temporary repository


def rehearse(staged: Staging, *, models: Product, trial: Trial) -> float:
    """
    Check that a real server loads a staged model and answers as the file does.

    Args:
        staged: The version; server and repository are created next to it.
        models: The product that it is for.
        trial: Rows to send and the expected answers.

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

"""Present a model repository to the rules: read once, never changed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import msgspec
from tritonclient.grpc.model_config_pb2 import ModelConfig

from tollgate.errors import RepositoryError
from tollgate.repository.configs import NAMED_CONFIGS, config_path
from tollgate.repository.findings import Finding, collecting
from tollgate.repository.lint.product_rules import PYTHON_BACKEND
from tollgate.repository.models.model_files import MODEL_FILE
from tollgate.repository.product_models import is_product
from tollgate.repository.releases.release_file import RELEASE_FILE
from tollgate.repository.snapshot import RepositorySnapshot
from tollgate.repository.versions import list_versions

ONNX_BACKEND = "onnxruntime"
_BACKENDS = {
    "onnxruntime_onnx": ONNX_BACKEND,
    "tensorrt_plan": "tensorrt",
    "pytorch_libtorch": "pytorch",
    "tensorflow_graphdef": "tensorflow",
    "tensorflow_savedmodel": "tensorflow",
}


class Model(msgspec.Struct, frozen=True):
    """
    One model of a repository.

    Attributes:
        name: Name of its directory.
        path: Its config.pbtxt, or the named configuration in its place.
        config: Parsed configuration; None if there is none, which leaves it to the
            backend, or if it cannot be read.
        versions: Version directories, ascending.
    """

    name: str
    path: Path
    config: ModelConfig | None
    versions: tuple[int, ...]

    @property
    def file(self) -> str:
        """The configuration file, for a finding."""
        return str(self.path)

    @property
    def directory(self) -> Path:
        """The model's directory."""
        inner = self.path.parent
        return inner if inner.name == self.name else inner.parent

    @property
    def backend(self) -> str:
        """The backend that runs it; empty if it cannot be determined."""
        if self.config is None:
            return ""
        if self.config.backend:
            return str(self.config.backend)
        if known := _BACKENDS.get(self.config.platform):
            return known
        files = [self.directory / str(one) / MODEL_FILE for one in self.versions]
        return ONNX_BACKEND if any(path.is_file() for path in files) else ""

    @property
    def is_python(self) -> bool:
        """Return whether the Python backend runs it."""
        return self.backend == PYTHON_BACKEND

    @property
    def is_ensemble(self) -> bool:
        """Return whether it only carries tensors between others."""
        return self.config is not None and self.config.HasField("ensemble_scheduling")


class View(msgspec.Struct, frozen=True):
    """
    A repository, and the known facts on the machine that is to serve it.

    Attributes:
        snapshot: The repository, with the named configuration that was requested.
        products: Names of ensembles that are products of Tollgate.
        in_products: Names of these ensembles and of all their steps.
        cores: Number of cores that the server may use.
        objectives_ms: Maximum time to an answer, by model, if it is known.
    """

    snapshot: RepositorySnapshot
    models: Mapping[str, Model]
    products: tuple[str, ...]
    in_products: frozenset[str]
    cores: int
    objectives_ms: Mapping[str, float]

    @property
    def repository(self) -> Path:
        """The folder of the repository."""
        return self.snapshot.folder

    def configured(self) -> Iterator[tuple[Model, ModelConfig]]:
        """Yield the models that have a configuration."""
        for model in self.models.values():
            if model.config is not None:
                yield model, model.config

    def ensembles(self) -> Iterator[tuple[Model, ModelConfig]]:
        """Yield the ensembles."""
        for model, config in self.configured():
            if model.is_ensemble:
                yield model, config

    def steps(self, ensemble: ModelConfig) -> list[tuple[Model, ModelConfig]]:
        """List the existing models that an ensemble names, once each."""
        names = dict.fromkeys(
            step.model_name for step in ensemble.ensemble_scheduling.step
        )
        found = [self.models[name] for name in names if name in self.models]
        return [(model, model.config) for model in found if model.config is not None]


def read_models(
    snapshot: RepositorySnapshot, *, findings: list[Finding]
) -> dict[str, Model]:
    """
    Read every model of a repository.

    Args:
        findings: List that gets one finding for each configuration that cannot be read.

    Raises:
        RepositoryError: There is no such folder, or no model in it.
    """
    repository, config_name = snapshot.folder, snapshot.config_name
    if not repository.is_dir():
        raise RepositoryError(repository, "no such model repository")
    models: dict[str, Model] = {}
    for folder in sorted(repository.iterdir()):
        if not folder.is_dir() or folder.name.startswith("."):
            continue
        versions = tuple(list_versions(repository, folder.name))
        path = config_path(repository, folder.name, config_name=config_name)
        if not path.exists() and not versions:
            continue  # documents, tests, data: no model
        config = None
        with collecting(findings, code="TG001"):
            if path.exists():
                config = snapshot.config(folder.name)
        models[folder.name] = Model(
            name=folder.name, path=path, config=config, versions=versions
        )
    named = NAMED_CONFIGS, f"{config_name}.pbtxt"
    if config_name and not any(repository.glob("/".join(("*", *named)))):
        raise RepositoryError(
            repository, f"no model has {'/'.join(named)}", where="model config name"
        )
    if not models:
        raise RepositoryError(repository, "has no model: no folder with a config.pbtxt")
    return models


def find_products(repository: Path, models: Mapping[str, Model]) -> list[str]:
    """List the ensembles that have a release, or that answer as a product."""
    released = {path.parent.name for path in repository.glob(f"*/{RELEASE_FILE}")}
    answering = {
        model.name
        for model in models.values()
        if model.is_ensemble and model.config is not None and is_product(model.config)
    }
    return sorted(released | answering)


def with_steps(products: Iterable[str], models: Mapping[str, Model]) -> frozenset[str]:
    """Return the names of ensembles and of all their steps."""
    names = set(products)
    for product in products:
        model = models.get(product)
        if model is not None and model.config is not None:
            steps = model.config.ensemble_scheduling.step
            names |= {step.model_name for step in steps}
    return frozenset(names)

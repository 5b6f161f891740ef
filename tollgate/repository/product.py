"""Which models make up a product; read from its ensemble, not guessed from names."""

from __future__ import annotations

from pathlib import Path

import msgspec
from tritonclient.grpc.model_config_pb2 import ModelConfig

from tollgate import schema
from tollgate.errors import RepositoryError
from tollgate.repository.configs import config_path, read_config


class Product(msgspec.Struct, frozen=True):
    """
    An ensemble and its steps, as their files have them.

    Attributes:
        repository: The model repository it was read from.
        name: Name of the ensemble.
        ensemble: Its configuration.
        steps: Configuration per step, in the order in which data flows.
    """

    repository: Path
    name: str
    ensemble: ModelConfig
    steps: dict[str, ModelConfig]

    def producer(self, tensor: str) -> str:
        """
        Name the step that produces a tensor of the contract.

        Raises:
            RepositoryError: No step, or more than one, has such an output.
        """
        names = [
            name
            for name, config in self.steps.items()
            if any(output.name == tensor for output in config.output)
        ]
        if len(names) != 1:
            found = f"by {' and '.join(names)}" if names else "by no step"
            problem = f"must be produced by exactly one step, is {found}"
            file = config_path(self.repository, self.name)
            raise RepositoryError(file, problem, where=f"tensor {tensor}")
        return names[0]

    @property
    def features_step(self) -> str:
        """The step that validates rows and assembles features."""
        return self.producer(schema.CONTEXT)

    @property
    def model_step(self) -> str:
        """The step that runs the trained model."""
        return self.producer(schema.PROBABILITIES)

    @property
    def decision_step(self) -> str:
        """The step that applies the policy."""
        return self.producer("decision")


def read_product(repository: Path, product: str) -> Product:
    """
    Read a product's ensemble and the steps that it names.

    Args:
        repository: The model repository.
        product: Name of the ensemble.

    Raises:
        RepositoryError: A file cannot be read, or the model is not an ensemble.
    """
    ensemble = read_config(repository, product)
    names = [step.model_name for step in ensemble.ensemble_scheduling.step]
    path = config_path(repository, product)
    if not names:
        raise RepositoryError(path, "has no step: not an ensemble", where="step")
    for name in names:
        if names.count(name) > 1:
            raise RepositoryError(path, f'"{name}" stands there twice', where="step")
    steps = {name: read_config(repository, name) for name in names}
    return Product(repository=repository, name=product, ensemble=ensemble, steps=steps)

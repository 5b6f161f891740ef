"""Read the models of a product from its ensemble, without guessing from names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import msgspec
from tritonclient.grpc.model_config_pb2 import ModelConfig

from tollgate import schema
from tollgate.errors import RepositoryError
from tollgate.repository.configs import (
    NAMED_CONFIGS,
    config_path,
    read_config,
    require_config_name,
)


class Product(msgspec.Struct, frozen=True):
    """
    An ensemble and its steps, as their files have them.

    Attributes:
        repository: The model repository it was read from.
        steps: Configuration per step, in the order in which data flows.
        config_name: Named configuration that was requested; empty for none.
    """

    repository: Path
    name: str
    ensemble: ModelConfig
    steps: dict[str, ModelConfig]
    config_name: str = ""

    def config_path(self, model: str) -> Path:
        """Return the file that the configuration of a model was read from."""
        return config_path(self.repository, model, config_name=self.config_name)

    def producer(self, tensor: str) -> str:
        """
        Return the step that produces a tensor of the contract.

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
            file = self.config_path(self.name)
            raise RepositoryError(file, problem, where=f"tensor {tensor}")
        return names[0]

    @property
    def ranks(self) -> bool:
        """Whether it ranks items: the answer has items instead of a decision."""
        return is_ranking(self.ensemble)

    @property
    def features_step(self) -> str:
        """The step that validates rows, and assembles features or candidates."""
        return self.producer(schema.CONTEXT)

    @property
    def model_input(self) -> str:
        """The tensor that the model scores, as the contract names it."""
        return schema.CANDIDATE_FEATURES if self.ranks else schema.FEATURES

    @property
    def model_output(self) -> str:
        """The tensor with the answer of the model."""
        return schema.RELEVANCE if self.ranks else schema.PROBABILITIES

    @property
    def challenger_output(self) -> str:
        """The same of a challenger, an optional input of the decision step."""
        return schema.CHALLENGER_OUTPUTS[self.model_output]

    @property
    def answer_types(self) -> Mapping[str, str]:
        """Triton's type of each output of the ensemble, by name."""
        return schema.RANKED_TYPES if self.ranks else schema.ANSWER_TYPES

    @property
    def model_step(self) -> str:
        """The step that runs the trained model."""
        return self.producer(self.model_output)

    @property
    def decision_step(self) -> str:
        """The step that applies the policy: it decides, or ranks the candidates."""
        return self.producer(_ITEMS if self.ranks else _DECISION)


# The first output of each kind of answer.
_DECISION, _ITEMS = next(iter(schema.ANSWER_TYPES)), next(iter(schema.RANKED_TYPES))


def is_ranking(ensemble: ModelConfig) -> bool:
    """Return whether an ensemble answers with items and without a decision."""
    names = {output.name for output in ensemble.output}
    return _ITEMS in names and _DECISION not in names


def is_product(ensemble: ModelConfig) -> bool:
    """Return whether an ensemble answers as a product: a decision, or ranked items."""
    names = {output.name for output in ensemble.output}
    # Other ensembles may have items, too.
    return _DECISION in names or {_ITEMS, schema.RELEASE_PARAMETER} <= names


def read_product(repository: Path, product: str, *, config_name: str = "") -> Product:
    """
    Read a product's ensemble and the steps that it names, and nothing else.

    An operation that needs more of the repository takes a `RepositorySnapshot`.

    Raises:
        RepositoryError: A file cannot be read, the model is not an ensemble, or none of
            its models has a configuration of that name.
        InputError: The name is not valid.
    """
    read = partial(read_config, repository, config_name=config_name)
    return assemble_product(repository, product, config_name=config_name, read=read)


def assemble_product(
    repository: Path,
    product: str,
    *,
    config_name: str,
    read: Callable[[str], ModelConfig],
) -> Product:
    """
    Assemble a product from the configurations that a function returns.

    Raises:
        RepositoryError: As `read_product`.
        InputError: The name is not valid.
    """
    require_config_name(config_name)
    ensemble = read(product)
    names = [step.model_name for step in ensemble.ensemble_scheduling.step]
    path = config_path(repository, product, config_name=config_name)
    if not names:
        raise RepositoryError(path, "has no step: not an ensemble", where="step")
    for name in names:
        if names.count(name) > 1:
            raise RepositoryError(path, f'"{name}" stands there twice', where="step")
    if config_name:
        _require_somewhere(repository, [product, *names], config_name=config_name)
    return Product(
        repository=repository,
        name=product,
        ensemble=ensemble,
        steps={name: read(name) for name in names},
        config_name=config_name,
    )


def _require_somewhere(
    repository: Path, names: Sequence[str], *, config_name: str
) -> None:
    """Check that some model has a configuration of that name: else it is a typo."""
    found: set[str] = set()
    for name in names:
        files = (repository / name / NAMED_CONFIGS).glob("*.pbtxt")
        found.update(path.stem for path in files)
    if config_name not in found:
        there = f"; there are {', '.join(sorted(found))}" if found else ""
        problem = f"no model of {names[0]} has {NAMED_CONFIGS}/{config_name}.pbtxt"
        raise RepositoryError(repository, problem + there, where="model config name")

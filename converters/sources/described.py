"""Add facts to a model that its file lacks: feature names and category words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from converters.model import Facts, TrainedModel, Vocabulary
from tollgate.errors import ArgumentError, InputError
from tollgate.features.spec.spec_definition import FeatureSpec
from tollgate.repository.models.artifact_file import word_differences


class DescribedModel:
    """
    A model with more facts than its file contains.

    Args:
        facts: The facts to use instead.
    """

    def __init__(self, model: TrainedModel, facts: Facts) -> None:
        self._model = model
        self.facts = facts

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def pruned(self, *, trees: int | None, depth: int | None) -> DescribedModel:
        """Return the model with fewer or shallower trees."""
        smaller = self._model.pruned(trees=trees, depth=depth)
        facts = msgspec.structs.replace(self.facts, trees=smaller.facts.trees)
        return DescribedModel(smaller, facts)


def placed(facts: Facts, columns: Sequence[int]) -> Facts:
    """
    Assign lists of words without a column to the columns known to hold words.

    Args:
        columns: The columns of categories, ascending.

    Returns:
        The facts with these words among the categories; unchanged where there are
        more or fewer lists of words than columns.
    """
    if not facts.unplaced or len(columns) != len(facts.unplaced):
        return facts
    found = {
        column: Vocabulary(codes=True, known=known)
        for column, known in zip(columns, facts.unplaced, strict=True)
    }
    both = {**facts.categories, **found}
    return msgspec.structs.replace(facts, categories=both, unplaced=())


def with_names(
    model: TrainedModel, columns: tuple[str, ...], *, origin: str
) -> TrainedModel:
    """
    Set the feature names that the user supplies, if the model has none.

    Raises:
        InputError: The number of names differs, a name appears twice, or the file has
            other names.
    """
    if not columns:
        return model
    facts = model.facts
    if len(columns) != facts.columns:
        problem = f"names {len(columns)} columns, {origin} has {facts.columns} features"
        raise ArgumentError("columns", problem)
    if len(set(columns)) < len(columns):
        raise ArgumentError("columns", "names a column twice")
    for at, own in enumerate(facts.names or ()):
        if own != columns[at]:
            problem = f"feature {at} of {origin} is {own!r}, not {columns[at]!r}"
            raise ArgumentError("columns", problem)
    return DescribedModel(model, msgspec.structs.replace(facts, names=columns))


def with_words(origin: str, model: TrainedModel, spec: FeatureSpec) -> TrainedModel:
    """
    Compare a model's words with those of the product's features.

    Returns:
        The model, with words that its file assigns to no column assigned to columns.

    Raises:
        InputError: A word, the order of words or their number differs.
    """
    facts = model.facts
    coded = [at for at, one in enumerate(spec.features) if one.category is not None]
    found = placed(facts, coded)
    if found.unplaced:
        problem = (
            f"knows the words of {len(found.unplaced)} columns, and features.yaml has "
            f"{len(coded)} features with `category`: declare each of them as one, with "
            "the model's words as its vocabulary"
        )
        raise InputError(origin, problem, where="categories")
    known = {spec.feature_names[at]: one for at, one in found.categories.items()}
    for where, problem in word_differences(known, spec):
        raise InputError(origin, problem.replace("artifact.json", "it"), where=where)
    return model if found == facts else DescribedModel(model, found)

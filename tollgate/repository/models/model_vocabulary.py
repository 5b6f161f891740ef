"""Compare a model's training categories with those of its features.yaml."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from tollgate.features.spec.spec_definition import Feature, FeatureSpec

Words = tuple[str | int | float, ...]


class Vocabulary(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """
    The categories that a model knows of one feature.

    Attributes:
        codes: The feature holds the position of a category in `known`; otherwise it
            holds the category itself, a number.
        known: The categories; without `codes`, of a boosted model, those that some
            split tests.
    """

    codes: bool
    known: Words


def same_word(known: str | int | float, text: str) -> bool:
    """Return whether a text names a category: 10 and 10.0 are both the number 10."""
    if isinstance(known, str):
        truths = ("true", "false")
        return text == known or (known in truths and text.lower() == known)
    try:
        return float(text) == known
    except ValueError:
        return False


def word_differences(
    categories: Mapping[str, Vocabulary], spec: FeatureSpec
) -> Iterator[tuple[str, str]]:
    """
    Find where a model's categories differ from those of its features.yaml.

    Args:
        categories: Feature -> the categories that the model knows of it.
        spec: The features.

    Yields:
        The key in artifact.json, and the problem with what to do.
    """
    for feature in spec.features:
        known = categories.get(feature.name)
        if known is None:
            continue
        problem = _difference(known, feature, spec)
        if problem:
            yield f"categories.{feature.name}", problem


def _difference(known: Vocabulary, feature: Feature, spec: FeatureSpec) -> str:
    coded = known.codes or any(isinstance(one, str) for one in known.known)
    if feature.category is None:
        if not coded:
            return ""
        shown = ", ".join(repr(one) for one in known.known[:3])
        return (
            f"the model knows {len(known.known)} words of it ({shown}, …), features."
            "yaml hands it a number: declare a field `type: category` with the model's "
            "words as its vocabulary"
        )
    words = spec.field(feature.category).vocabulary
    if not coded:
        most = max((one for one in known.known if not isinstance(one, str)), default=-1)
        if most < len(words):
            return ""
        return (
            f"the model tests code {most:g}, and the vocabulary of field "
            f"{feature.category!r} in features.yaml ends at code {len(words) - 1}: "
            "list all words that it was trained with, in the order of their codes"
        )
    for place in range(max(len(words), len(known.known))):
        ours = words[place] if place < len(words) else None
        model = known.known[place] if place < len(known.known) else None
        if ours is not None and model is not None and same_word(model, ours):
            continue
        return (
            f"word {place} is {_shown(model)} in artifact.json and {_shown(ours)} in "
            f"the vocabulary of field {feature.category!r} in features.yaml: list the "
            f"model's {len(known.known)} words there in the model's order, or train "
            "the model on these features"
        )
    return ""


def _shown(word: str | int | float | None) -> str:
    return "absent" if word is None else f"{word!r:.60}"

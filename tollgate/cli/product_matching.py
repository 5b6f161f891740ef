"""Match the features of a trained model to the columns of a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from tollgate.errors import InputError
from tollgate.product.columns import Column
from tollgate.product.plan import Field, Plan
from tollgate.product.words import category_column, read_words, require_same_words
from tollgate.repository.vocabulary import Vocabulary, Words

if TYPE_CHECKING:
    from converters.model import Facts


class MatchedFeatures(msgspec.Struct, frozen=True):
    """
    Features of a model as columns of a table.

    Attributes:
        fields: In the order of the features.
        categories: Feature -> its words, as the table writes them.
    """

    fields: tuple[Field, ...]
    categories: dict[int, Vocabulary]


def match_features(
    path: Path,
    facts: Facts,
    plan: Plan,
    *,
    columns: Sequence[str] = (),
    words: Path | None = None,
) -> MatchedFeatures:
    """
    Order the fields as the model has its features, with the model's words.

    Args:
        path: The model's file, for messages.
        facts: Known facts of the model.
        plan: Known facts of the table.
        columns: The table's columns in the order of the features, from the user.
        words: File with the words of columns, from the user.

    Raises:
        InputError: The order of the features or a column's words are not known, or a
            feature is no column of the table.
    """
    names = _names(path, facts, plan, columns=columns)
    fields = [_field(path, name, plan) for name in names]
    stated = {} if words is None else read_words(words)
    for name in stated:
        known = {one for field in fields for one in (field.name, field.column.source)}
        if name not in known:
            raise InputError(words or "--words", f"{name!r} is no feature of the model")
    own = _own_words(facts, fields)
    categories = {}
    for at, field in enumerate(fields):
        column = field.column
        user_words = stated.get(column.source, stated.get(field.name))
        if at in own:
            if user_words is not None:
                where = str(words)
                require_same_words(
                    user_words, own[at], origin=where, source=column.source
                )
            taken = _category(path, own[at], column, plan)
        elif user_words is not None:
            taken = _category(words or path, user_words, column, plan)
        elif column.kind == "number":
            continue
        else:
            raise _unknown_words(path, facts, column, at=at)
        fields[at] = Field(field.name, taken)
        categories[at] = Vocabulary(codes=True, known=taken.words)
    return MatchedFeatures(tuple(fields), categories)


def _names(
    path: Path, facts: Facts, plan: Plan, *, columns: Sequence[str]
) -> tuple[str, ...]:
    """Return the features' names, from the model's file or else from the user."""
    if facts.names is None and not columns:
        example = ",".join(one.column.source for one in plan.fields[:3])
        problem = (
            f"has {facts.columns} features without names: --columns names the table's "
            "columns in the order that it was trained on, such as --columns "
            f"{example}{',…' if facts.columns > 3 else ''}"
        )
        raise InputError(path, problem)
    if not columns:
        return facts.names or ()
    if len(columns) != facts.columns:
        problem = f"names {len(columns)} columns, {path} has {facts.columns} features"
        raise InputError("--columns", problem)
    if facts.names is not None:
        for at, (own, stated_name) in enumerate(zip(facts.names, columns, strict=True)):
            if own != stated_name:
                problem = (
                    f"feature {at} of {path} is {own!r}, not {stated_name!r}: leave "
                    "--columns out, the file names its features"
                )
                raise InputError("--columns", problem)
    for name in columns:
        if list(columns).count(name) > 1:
            raise InputError("--columns", f"names {name!r} twice")
    return tuple(columns)


def _field(path: Path, name: str, plan: Plan) -> Field:
    """Find a feature's column, also if it was left out only because of its values."""
    known = {one.column.source: one for one in plan.fields}
    for one in plan.fields:
        known.setdefault(one.name, one)
    if name in known:
        return known[name]
    left = {one.source: one for one in plan.excluded}
    if name in left and left[name].by_values:
        column = plan.frame[name]
        return Field(plan.name_of(name), Column(name, "category", values=column))
    why = f" ({left[name].reason})" if name in left else ""
    problem = f"was trained with {name!r}, which the product has not{why}"
    raise InputError(path, problem)


def _own_words(facts: Facts, fields: Sequence[Field]) -> Mapping[int, Words]:
    """
    Return the words of the model's file, by feature.

    If the file does not assign its words to columns, the table shows which have words.
    """
    from converters.sources.described import placed

    texts = [at for at, one in enumerate(fields) if one.column.kind == "category"]
    found = placed(facts, texts).categories
    return {
        at: one.known
        for at, one in found.items()
        if one.codes or any(isinstance(word, str) for word in one.known)
    }


def _category(origin: Path, known: Words, column: Column, plan: Plan) -> Column:
    return category_column(plan.frame[column.source], known, origin=str(origin))


def _unknown_words(path: Path, facts: Facts, column: Column, *, at: int) -> InputError:
    """Build the error for a column of words that the model's file does not list."""
    why = "was trained on numbers there, and its file has no words"
    if facts.unplaced:
        why = "keeps words of columns, and its file does not say of which"
    elif at in facts.categories:
        why = "was trained on codes there, and its file has no words that can be read"
    example = ", ".join(f'"{one}"' for one in column.words[:2] or ("a", "b"))
    problem = (
        f"{why}: --words FILE lists them in the order of their codes, such as "
        f'{{"{column.source}": [{example}, …]}}'
    )
    return InputError(path, problem, where=column.source)

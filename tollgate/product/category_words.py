"""Convert a column of a table to the category that a model was trained on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from tollgate.errors import InputError
from tollgate.features.spec.spec_validation import MAX_TEXT_BYTES, MAX_VOCABULARY
from tollgate.product.columns import Column, long_words_note
from tollgate.product.table_reading import as_text, too_long
from tollgate.repository.models.artifact_file import Words, same_word

if TYPE_CHECKING:
    import polars as pl

Stated = Mapping[str, tuple[str, ...]]


def read_words(path: Path) -> dict[str, tuple[str, ...]]:
    """
    Read the words of a model's columns, in the order of their codes.

    Args:
        path: YAML or JSON: column -> list of words.

    Raises:
        InputError: It cannot be read, or is something else.
    """
    try:
        return msgspec.yaml.decode(path.read_bytes(), type=dict[str, tuple[str, ...]])
    except OSError as error:
        raise InputError(path, f"cannot be read: {error.strerror}") from error
    except msgspec.MsgspecError as error:
        problem = f"is no mapping of columns to lists of words in quotes: {error}"
        raise InputError(path, " ".join(problem.split())) from error


def category_column(
    column: pl.Series, known: Words, *, origin: str, fewest: int = 1
) -> Column:
    """
    Convert a column to a category with the words of a model, in the model's order.

    Args:
        column: Column as the table has it: texts, numbers or truth values.
        known: The model's categories; a number stands for each text of that number.
        origin: The file with the model or its words, for messages.
        fewest: Smallest number of rows that must have one of the words.

    Raises:
        InputError: A word cannot be sent in a request, they are too many, or the table
            has none of them.
    """
    source = column.name
    if len(known) > MAX_VOCABULARY:
        problem = (
            f"has {len(known):,} words, a vocabulary has at most {MAX_VOCABULARY:,}: "
            "train the model on fewer"
        )
        raise InputError(origin, problem, where=source)
    texts = as_text(column)
    found = texts.drop_nulls().unique(maintain_order=True).to_list()
    words = _table_words(known, found, origin=origin, source=source)
    rows = texts.is_in(list(words)).sum()
    if rows < fewest:
        shown = ", ".join(repr(one) for one in words[:3])
        problem = (
            f"its words are {shown}, …, and the table has none of them, but "
            f"{found[0] if found else '':.40}…: is it another column?"
        )
        raise InputError(origin, problem, where=source)
    unseen = len(texts) - texts.null_count() - rows
    notes = ["the model's words"]
    if unseen:
        notes.append(f"{unseen:,} rows have others, which count as missing")
    if far := int(too_long(column).sum()):
        notes.append(long_words_note(far))
    return Column(
        source=source,
        kind="category",
        values=texts,
        words=words,
        notes=(", ".join(notes),),
    )


def _table_words(
    known: Words, found: list[str], *, origin: str, source: str
) -> tuple[str, ...]:
    """Write each category as the table does; one that is not in the table as text."""
    in_table: set[str | float] = set(found)
    texts: dict[str | float, list[str]] = {}
    for text in found:
        for key in _keys(text):
            texts.setdefault(key, []).append(text)
    words: list[str] = []
    for one in known:
        spellings = [str(one)] if one in in_table else texts.get(one, [])
        if len(spellings) > 1:
            problem = f"the table writes the model's {one!r} as {spellings[0]!r} and "
            problem += f"{spellings[1]!r}: use one spelling"
            raise InputError(origin, problem, where=source)
        words.append(spellings[0] if spellings else str(one))
    seen: set[str] = set()
    for word in words:
        if not word.strip() or len(word.encode()) > MAX_TEXT_BYTES:
            problem = (
                f"the model's word {word!r:.60} is not 1 to {MAX_TEXT_BYTES} bytes "
                "long, blanks apart, and no request can have it: rename it and train "
                "again"
            )
            raise InputError(origin, problem, where=source)
        if word in seen:
            raise InputError(origin, f"has the word {word!r:.60} twice", where=source)
        seen.add(word)
    return tuple(words)


def _keys(text: str) -> list[str | float]:
    """List the categories that a text may stand for, besides itself."""
    if text.lower() in ("true", "false"):
        return [text.lower()]
    try:
        return [float(text)]
    except ValueError:
        return []


def require_same_words(
    stated: tuple[str, ...], known: Words, *, origin: str, source: str
) -> None:
    """
    Check that the user's words equal those of the model's own file.

    Raises:
        InputError: They differ; names the first difference.
    """
    for place in range(max(len(stated), len(known))):
        one = stated[place] if place < len(stated) else None
        own = known[place] if place < len(known) else None
        if one is None or own is None or not same_word(own, one):
            problem = (
                f"word {place} is {'absent' if one is None else repr(one)} here and "
                f"{'absent' if own is None else repr(own)} in the model's file: leave "
                "the column out of the file, the model's words count"
            )
            raise InputError(origin, problem, where=source)

"""Read the label of a table: a column with two outcomes, or one value of several."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import numpy.typing as npt

from tollgate.errors import InputError

if TYPE_CHECKING:
    import polars as pl

FEWEST = 20  # rows of each outcome: with fewer, held-out results mean nothing
_SHOWN = 8
# The positive outcomes by default: the score is the probability of one of these.
_USUAL = ("yes", "y", "true", "t", "bad", "fraud", "default", "positive")
_NOTHING = ("", "nan", "null", "na", "n/a")  # texts for a missing value in files
_MANY = 20  # distinct values: with more, it is a number and no outcome


class Label(msgspec.Struct, frozen=True, eq=False):
    """
    The outcome of each row.

    Attributes:
        source: Its column.
        positive: The value that the score is the probability of, as text.
        others: The other values.
        known: True for rows with an outcome; bool [N].
        values: 1 for `positive`, 0 otherwise, also where not known; int8 [N].
    """

    source: str
    positive: str
    others: tuple[str, ...]
    known: npt.NDArray[np.bool_]
    values: npt.NDArray[np.int8]

    @property
    def share(self) -> float:
        """Return the share of positive outcomes among the known ones."""
        return float(self.values[self.known].mean())


def label_texts(column: pl.Series) -> pl.Series:
    """Convert outcomes to texts: 1, 1.0, true and "1" are the same; null for none."""
    import polars as pl

    if column.dtype == pl.Boolean:
        column = column.cast(pl.Int8)
    if column.dtype.is_float():
        column = column.set(column.is_nan().fill_null(False), None)
    text: pl.Series = column.cast(pl.String).str.strip_chars()
    text = text.str.replace(r"^(-?\d+)\.0+$", "$1")
    blank = text.str.to_lowercase().is_in(_NOTHING)
    text = text.set(blank.fill_null(False), None)
    return text


def find_label(column: pl.Series, *, source: str, positive: str | None) -> Label:
    """
    Read the outcomes.

    Args:
        column: Column of the label.
        source: The file, for messages.
        positive: The value that the score is the probability of; None chooses one of
            two.

    Raises:
        InputError: All rows have the same outcome, there are more than two and none was
            chosen, or one of them is too rare to learn from.
    """
    text = label_texts(column)
    counts = text.drop_nulls().value_counts(sort=True, name="rows")
    found: list[str] = counts[column.name].to_list()
    shown = ", ".join(repr(one)[:30] for one in found[:_SHOWN])
    where = column.name
    if len(found) == 0:
        raise InputError(source, "is empty: there is no outcome", where=where)
    if len(found) == 1:
        problem = f"is {shown} in every row: there is nothing to learn"
        raise InputError(source, problem, where=where)
    if positive is not None:
        wanted = {"true": "1", "false": "0"}.get(positive.lower(), positive)
        chosen = positive if positive in found else wanted
        if chosen not in found:
            problem = f"no row is {positive!r}; there are {shown}"
            raise InputError(source, problem, where=where)
    elif len(found) == 2:
        chosen = _positive_outcome(found)
    else:
        raise InputError(source, _too_many(found, len(column), shown), where=where)
    known = text.is_not_null().to_numpy()
    values = (text == chosen).fill_null(False).to_numpy().astype(np.int8)
    for number, what in ((int(values.sum()), repr(chosen)), _rest(values, known)):
        if number < FEWEST:
            problem = (
                f"only {number} of {int(known.sum())} rows are {what}; at least "
                f"{FEWEST} of either outcome are needed to learn and to judge"
            )
            raise InputError(source, problem, where=where)
    others = tuple(one for one in found if one != chosen)
    return Label(column.name, chosen, others, known, values)


def _rest(
    values: npt.NDArray[np.int8], known: npt.NDArray[np.bool_]
) -> tuple[int, str]:
    return int(known.sum()) - int(values.sum()), "anything else"


def _positive_outcome(found: list[str]) -> str:
    """Return the usual positive outcome if there is one, else the rarer one."""
    if all(re.fullmatch(r"-?\d+", one) for one in found):
        return max(found, key=int)  # 1 of 0 and 1, 2 of 1 and 2
    lower = {one.lower(): one for one in found}
    for usual in _USUAL:
        if usual in lower:
            return lower[usual]
    return found[-1]


def _too_many(found: list[str], rows: int, shown: str) -> str:
    if len(found) > _MANY:
        return (
            f"has {len(found):,} different values in {rows:,} rows, such as "
            f"{found[0]!r:.30}: name a column of outcomes"
        )
    return (
        f"has {len(found)} outcomes, {shown}: state the positive one, which the "
        "score is the probability of"
    )

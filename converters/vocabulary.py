"""Read the categories that a trained model knows, from its framework's data."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from converters.model import Vocabulary, Words
from converters.trees.tree_ensemble import Tree

_MOST_CODES = 1000  # codes of one feature; a longer list could be a list of customers
_SPAN = re.compile(r"\[(-?\d+):(-?\d+)\]")  # of a column of whole numbers
_MOST_PLACINGS = 10_000  # combinations of columns that are tried for lists of words


def of_trees(trees: Iterable[Tree]) -> dict[int, Vocabulary]:
    """List the codes that the splits of trees test."""
    seen: dict[int, set[int]] = {}
    for tree in trees:
        for node, codes in tree.codes.items():
            seen.setdefault(int(tree.feature[node]), set()).update(codes)
    return {
        column: Vocabulary(codes=False, known=tuple(sorted(found)))
        for column, found in sorted(seen.items())
        if len(found) <= _MOST_CODES
    }


def of_xgboost(raw: bytes) -> dict[int, Vocabulary]:
    """
    Read the categories of a data frame that XGBoost 3.1 and later store.

    Args:
        raw: The booster as JSON.
    """
    model = json.loads(raw)["learner"]["gradient_booster"].get("model", {})
    found = {}
    for column, entry in enumerate(model.get("cats", {}).get("enc", ())):
        known = tuple(_entries(entry))
        if known:
            found[column] = Vocabulary(codes=True, known=known)
    return found


def _entries(entry: dict[str, list[int]]) -> Iterator[str | int | float]:
    """Yield one feature's categories: numbers, or texts as bytes and offsets."""
    if "offsets" not in entry:
        yield from entry["values"]
        return
    # XGBoost 3.2 counts letters but cuts bytes, so it truncates texts beyond ASCII.
    if min(entry["values"], default=0) < 0:
        return
    text = bytes(entry["values"])
    for start, stop in zip(entry["offsets"], entry["offsets"][1:], strict=False):
        yield text[start:stop].decode("ascii")


def of_lightgbm(
    categories: Sequence[Sequence[Any]] | None, *, infos: Sequence[str]
) -> tuple[dict[int, Vocabulary], tuple[Words, ...]]:
    """
    Read the categories of a data frame that LightGBM stores.

    LightGBM lists the words of each category column in the order of the columns, and
    does not say which columns these are. It treats an ordered category as a number,
    with its codes as values, and writes `none` for a column with one word.

    Args:
        categories: The booster's `pandas_categorical`.
        infos: Its `feature_infos`: `[low:high]` for numbers, codes for categories.

    Returns:
        The words by column; and, if several columns could have them, all lists of words
        in the order of their columns.
    """
    lists = tuple(_plain(known) for known in categories or ())
    if not lists:
        return {}, ()
    coded = [at for at, one in enumerate(infos) if one[:1] not in ("[", "n")]
    others = [at for at in range(len(infos)) if at not in coded]
    placings = _placings(lists, infos=infos, coded=coded, others=others)
    if len(placings) != 1:
        return {}, lists
    (columns,) = placings
    return {
        column: Vocabulary(codes=True, known=known)
        for column, known in zip(columns, lists, strict=True)
    }, ()


def _placings(
    lists: Sequence[Words],
    *,
    infos: Sequence[str],
    coded: Sequence[int],
    others: Sequence[int],
) -> list[list[int]]:
    """List the ways to assign lists of words to columns; [] if there are too many."""
    longest = max(map(len, lists))
    others = [at for at in others if _may_hold(infos[at], longest)]
    more = len(lists) - len(coded)
    if more < 0 or math.comb(len(others), more) > _MOST_PLACINGS:
        return []
    found = []
    for chosen in combinations(others, more):
        columns = sorted([*coded, *chosen])
        if all(
            _may_hold(infos[column], len(known))
            for column, known in zip(columns, lists, strict=True)
        ):
            found.append(columns)
    return found


def _may_hold(info: str, count: int) -> bool:
    """Return whether a column's values may be the codes of so many words."""
    if info == "none":  # one value in all rows
        return True
    span = _SPAN.fullmatch(info)
    if span:
        return 0 <= int(span[1]) <= int(span[2]) < count
    return info[:1] != "[" and max(map(int, info.split(":"))) < count


def of_sklearn(estimator: Any) -> dict[int, Vocabulary]:
    """List the categories of the encoders that read features unchanged."""
    return dict(sorted(_encoded(estimator, range(int(estimator.n_features_in_)))))


def _encoded(step: Any, columns: Sequence[int]) -> Iterator[tuple[int, Vocabulary]]:
    """Yield a fitted step's categories; `columns` are the features it reads."""
    from sklearn.compose import ColumnTransformer
    from sklearn.pipeline import Pipeline
    from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder

    if isinstance(step, Pipeline):
        for _, one in step.steps:
            yield from _encoded(one, columns)
            if not _keeps_columns(one, len(columns)):
                return
    elif isinstance(step, ColumnTransformer):
        read = step._transformer_to_input_indices
        for name, one, _ in step.transformers_:
            if not isinstance(one, str):
                yield from _encoded(one, [columns[at] for at in read[name]])
    elif isinstance(step, (OneHotEncoder, OrdinalEncoder)):
        for column, known in zip(columns, step.categories_, strict=True):
            if len(known) <= _MOST_CODES:
                yield column, Vocabulary(codes=False, known=_plain(known))


def _keeps_columns(step: Any, count: int) -> bool:
    """Return whether a step's output columns are its input columns, one by one."""
    from sklearn.base import OneToOneFeatureMixin
    from sklearn.impute import SimpleImputer

    one_to_one = isinstance(step, (OneToOneFeatureMixin, SimpleImputer))
    return step == "passthrough" or (
        one_to_one and len(step.get_feature_names_out()) == count
    )


def _plain(known: Any) -> Words:
    """Convert categories to JSON values: no booleans, NaN, infinity or None."""
    values = np.asarray(known, dtype=object).tolist()
    return tuple(map(_plain_one, values))


def _plain_one(value: Any) -> str | int | float:
    if isinstance(value, bool):
        return "true" if value else "false"
    number = isinstance(value, (int, float)) and math.isfinite(value)
    return value if number else str(value)

"""Read which categories a trained model knows, from what its framework keeps."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from converters.model import Vocabulary
from converters.probes import Tree

_MOST_KEPT = 1000  # of one feature; more would make the record a list of customers


def of_trees(trees: Iterable[Tree]) -> dict[int, Vocabulary]:
    """List the codes that the splits of trees test."""
    seen: dict[int, set[int]] = {}
    for tree in trees:
        for node, codes in tree.codes.items():
            seen.setdefault(tree.feature[node], set()).update(codes)
    return {
        column: Vocabulary(codes=False, known=tuple(sorted(found)))
        for column, found in sorted(seen.items())
        if len(found) <= _MOST_KEPT
    }


def of_xgboost(raw: bytes) -> dict[int, Vocabulary]:
    """
    Read the categories of a data frame that XGBoost 3.1 and later keep.

    Args:
        raw: The booster as JSON.
    """
    model = json.loads(raw)["learner"]["gradient_booster"].get("model", {})
    found = {}
    for column, entry in enumerate(model.get("cats", {}).get("enc", ())):
        known = tuple(_entries(entry))
        if 0 < len(known) <= _MOST_KEPT:
            found[column] = Vocabulary(codes=True, known=known)
    return found


def _entries(entry: dict[str, list[int]]) -> Iterator[str | int | float]:
    """Yield one feature's categories: numbers, or texts as bytes and offsets."""
    if "offsets" not in entry:
        yield from entry["values"]
        return
    # XGBoost 3.2 counts letters and cuts bytes: beyond ASCII its texts are cut off.
    if min(entry["values"], default=0) < 0:
        return
    text = bytes(entry["values"])
    for start, stop in zip(entry["offsets"], entry["offsets"][1:], strict=False):
        yield text[start:stop].decode("ascii")


def of_lightgbm(
    kept: Sequence[Sequence[Any]] | None, *, infos: Sequence[str]
) -> dict[int, Vocabulary]:
    """
    Read the categories of a data frame that LightGBM keeps.

    Args:
        kept: The booster's `pandas_categorical`.
        infos: Its `feature_infos`: `[low:high]` for numbers, codes for categories.
    """
    columns = [at for at, info in enumerate(infos) if info[:1] not in ("[", "n")]
    if not kept or len(kept) != len(columns):  # a constant column is "none" here
        return {}
    return {
        column: Vocabulary(codes=True, known=_plain(known))
        for column, known in zip(columns, kept, strict=True)
        if len(known) <= _MOST_KEPT
    }


def of_sklearn(estimator: Any) -> dict[int, Vocabulary]:
    """List the categories of the encoders that read features as they come."""
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
            if len(known) <= _MOST_KEPT:
                yield column, Vocabulary(codes=False, known=_plain(known))


def _keeps_columns(step: Any, count: int) -> bool:
    """Tell whether what comes out is what went in, column by column."""
    from sklearn.base import OneToOneFeatureMixin
    from sklearn.impute import SimpleImputer

    kept = isinstance(step, (OneToOneFeatureMixin, SimpleImputer))
    return step == "passthrough" or (
        kept and len(step.get_feature_names_out()) == count
    )


def _plain(known: Any) -> tuple[str | int | float, ...]:
    """Return categories as JSON can hold them: no NaN, infinity or None."""
    values = np.asarray(known, dtype=object).tolist()
    return tuple(
        value
        if isinstance(value, (int, float)) and math.isfinite(value)
        else str(value)
        for value in values
    )

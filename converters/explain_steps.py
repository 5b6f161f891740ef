"""
Trace how the steps of a pipeline transform the features, column by column.

A contribution belongs to one feature only if each step works on each column separately.
A step that mixes columns is refused here; the error names it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
from sklearn.compose import ColumnTransformer
from sklearn.feature_selection import SelectorMixin
from sklearn.impute import SimpleImputer
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    MaxAbsScaler,
    MinMaxScaler,
    OneHotEncoder,
    RobustScaler,
    StandardScaler,
)

from tollgate.errors import ConversionError


class Column(msgspec.Struct, frozen=True):
    """
    A column after a step: `slope * u + offset`, u one feature or one of its categories.

    Attributes:
        source: Position of the feature.
        slope: Factor of u.
        offset: Number added to the product.
        by_category: True if u is 1 where the feature is `category`, and 0 elsewhere.
        category: The category; NaN without one.
        filled: The column's value where the feature is NaN; NaN if no step fills it.
    """

    source: int
    slope: float = 1.0
    offset: float = 0.0
    by_category: bool = False
    category: float = math.nan
    filled: float = math.nan

    def scaled(self, slope: float, offset: float) -> Column:
        """Return the column times slope, plus offset."""
        return msgspec.structs.replace(
            self,
            slope=self.slope * slope,
            offset=self.offset * slope + offset,
            filled=self.filled * slope + offset,
        )

    @property
    def plain(self) -> bool:
        """Return whether it is the unscaled feature, missing values filled or not."""
        return self.slope == 1 and self.offset == 0 and not self.by_category


def columns_after(step: Any, columns: Sequence[Column]) -> list[Column]:
    """
    Return the columns after a fitted step, from those before it.

    Raises:
        ConversionError: The step does not work on each column separately; the error
            names it.
    """
    if step is None or isinstance(step, str):
        return [] if step == "drop" else list(columns)
    for kind, function in _STEPS.items():
        if isinstance(step, kind):
            return function(step, columns)
    if isinstance(step, SelectorMixin):
        chosen = np.flatnonzero(step.get_support())
        return [columns[at] for at in chosen.tolist()]
    raise _refused(step, "does not keep the features apart")


def _pipeline(step: Any, columns: Sequence[Column]) -> list[Column]:
    found = list(columns)
    for _, one in step.steps:
        found = columns_after(one, found)
    return found


def _column_transformer(step: Any, columns: Sequence[Column]) -> list[Column]:
    found: dict[int, list[Column]] = {}
    for name, one, _ in step.transformers_:
        chosen = step._transformer_to_input_indices.get(name, [])
        made = columns_after(one, [columns[at] for at in chosen])
        if made:
            found[step.output_indices_[name].start] = made
    return [column for start in sorted(found) for column in found[start]]


def _standard(step: Any, columns: Sequence[Column]) -> list[Column]:
    mean = step.mean_ if step.with_mean else None
    scale = step.scale_ if step.with_std else None
    return _affine(columns, subtract=mean, divide=scale)


def _robust(step: Any, columns: Sequence[Column]) -> list[Column]:
    center = step.center_ if step.with_centering else None
    scale = step.scale_ if step.with_scaling else None
    return _affine(columns, subtract=center, divide=scale)


def _max_abs(step: Any, columns: Sequence[Column]) -> list[Column]:
    if getattr(step, "clip", False):
        raise _refused(step, "clips")
    return _affine(columns, subtract=None, divide=step.scale_)


def _min_max(step: Any, columns: Sequence[Column]) -> list[Column]:
    if step.clip:
        raise _refused(step, "clips")
    return [
        one.scaled(float(slope), float(offset))
        for one, slope, offset in zip(columns, step.scale_, step.min_, strict=True)
    ]


def _affine(columns: Sequence[Column], *, subtract: Any, divide: Any) -> list[Column]:
    width = len(columns)
    less = np.zeros(width) if subtract is None else np.asarray(subtract, dtype=float)
    by = np.ones(width) if divide is None else np.asarray(divide, dtype=float)
    return [
        one.scaled(1 / scale, -middle / scale)
        for one, middle, scale in zip(columns, less.tolist(), by.tolist(), strict=True)
    ]


def _imputer(step: Any, columns: Sequence[Column]) -> list[Column]:
    gap = step.missing_values
    if step.add_indicator or not (isinstance(gap, float) and math.isnan(gap)):
        raise _refused(step, "marks missing values, or fills others than NaN")
    statistics = np.asarray(step.statistics_, dtype=float)
    if len(statistics) != len(columns) or np.isnan(statistics).any():
        raise _refused(step, "drops a column that has no values")
    return [
        msgspec.structs.replace(one, filled=value) if math.isnan(one.filled) else one
        for one, value in zip(columns, statistics.tolist(), strict=True)
    ]


def _one_hot(step: Any, columns: Sequence[Column]) -> list[Column]:
    if getattr(step, "_infrequent_enabled", False):
        raise _refused(step, "groups rare categories")
    made = []
    for number, column in enumerate(columns):
        categories = np.asarray(step.categories_[number], dtype=float).tolist()
        if not column.plain:
            raise _refused(step, "encodes a scaled column")
        dropped = None if step.drop_idx_ is None else step.drop_idx_[number]
        made += [
            _category(column, one, known=categories, strict=step.handle_unknown)
            for at, one in enumerate(categories)
            if at != dropped
        ]
    return made


def _category(
    column: Column, category: float, *, known: list[float], strict: str
) -> Column:
    """Return the column that is 1 for one of the known categories."""
    if not math.isnan(column.filled):
        filled = float(column.filled == category)
    elif any(math.isnan(one) for one in known):
        filled = float(math.isnan(category))
    else:
        filled = math.nan if strict == "error" else 0.0
    return Column(column.source, by_category=True, category=category, filled=filled)


def _function(step: Any, columns: Sequence[Column]) -> list[Column]:
    if step.func is not None:
        raise _refused(step, "may do anything")
    return list(columns)


def _refused(step: Any, problem: str) -> ConversionError:
    return ConversionError(f"its {type(step).__name__} {problem}")


_STEPS: dict[type, Callable[[Any, Sequence[Column]], list[Column]]] = {
    Pipeline: _pipeline,
    ColumnTransformer: _column_transformer,
    StandardScaler: _standard,
    RobustScaler: _robust,
    MaxAbsScaler: _max_abs,
    MinMaxScaler: _min_max,
    SimpleImputer: _imputer,
    OneHotEncoder: _one_hot,
    FunctionTransformer: _function,
}

"""Extract the explanation of a scikit-learn classifier: its trees or coefficients."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
from sklearn.base import is_classifier
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.ensemble import (
    ExtraTreesClassifier,
    GradientBoostingClassifier,
    HistGradientBoostingClassifier,
    RandomForestClassifier,
)
from sklearn.feature_selection import SelectorMixin
from sklearn.impute import SimpleImputer
from sklearn.linear_model import (
    LogisticRegression,
    LogisticRegressionCV,
    SGDClassifier,
)
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    MaxAbsScaler,
    MinMaxScaler,
    OneHotEncoder,
    RobustScaler,
    StandardScaler,
)
from sklearn.tree import BaseDecisionTree

from converters.explain.explain_trees import stored_trees
from converters.model import F32, Facts
from converters.parity.boundaries import numbered, ordered
from converters.trees.sklearn_trees import ensembles
from converters.trees.tree_ensemble import IN, Tree
from tollgate.errors import ConversionError
from tollgate.explanation import Explanation, Linear, Link

# Unwrap a classifier from the steps before it and the calibration around it.
#
# A calibration by one sigmoid rescales and shifts the margin, so a sum stays a sum. The
# mean of several sigmoids, or a step function (isotonic), does not preserve sums.


class Opened(msgspec.Struct, frozen=True):
    """
    A classifier, the steps before it and the calibration around it.

    Attributes:
        steps: Steps before it, in order.
        last: The classifier itself.
        slope: Factor of its margin.
        offset: Number that is added after that.
    """

    steps: tuple[Any, ...]
    last: Any
    slope: float = 1.0
    offset: float = 0.0


def opened(estimator: Any) -> Opened:
    """
    Separate a classifier from its steps and its calibration.

    Raises:
        ConversionError: After the calibration there is no margin that is a sum.
    """
    steps: list[Any] = []
    slope, offset = 1.0, 0.0
    while True:
        if isinstance(estimator, Pipeline):
            steps += [step for _, step in estimator.steps[:-1]]
            estimator = estimator.steps[-1][1]
        elif isinstance(estimator, CalibratedClassifierCV):
            sigmoid, estimator = _only_sigmoid(estimator)
            # P = 1 / (1 + exp(a m + b)) of the margin m; a calibration has no margin
            # of its own, so there is one at most.
            slope, offset = -float(sigmoid.a_), -float(sigmoid.b_)
        else:
            return Opened(tuple(steps), estimator, slope, offset)


def _only_sigmoid(model: Any) -> tuple[Any, Any]:
    """Return the only sigmoid of a calibration, and the classifier it calibrates."""
    name = type(model).__name__
    parts = model.calibrated_classifiers_
    if model.method != "sigmoid":
        raise ConversionError(
            f"{name} with method={model.method!r} is no sum over trees or "
            "coefficients; one by sigmoid is"
        )
    if len(parts) > 1:
        raise ConversionError(
            f"{name} is the mean of {len(parts)} models and no sum of their margins; "
            "with ensemble=False it is one"
        )
    (part,) = parts
    if len(part.calibrators) > 1:
        raise ConversionError(f"{name} of several classes has no common margin")
    if not hasattr(part.estimator, "decision_function"):
        raise ConversionError(
            f"{name} of a {type(part.estimator).__name__}, which has no margin"
        )
    return part.calibrators[0], part.estimator


# Trace how the steps of a pipeline transform the features, column by column.
#
# A contribution belongs to one feature only if each step works on each column
# separately. A step that mixes columns is refused here; the error names it.


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


# Translate a tree's thresholds behind scalers into values of the features themselves.
#
# If a step works on each column separately and never reverses the order of two values,
# every split remains a split of one feature. The steps themselves determine, by
# bisection, the last float32 that goes left, so the rounding inside a scaler is
# reproduced exactly.
#
# A split by a column that is 1 for one category and 0 for all else tests whether the
# feature is that category.

_FARTHEST = np.float32(1e30)  # a scaler may refuse values that overflow beyond
_HALVINGS = 33
_CODES = 1 << 24  # float32 holds every whole number up to here


def behind_steps(
    trees: Sequence[Tree],
    *,
    steps: Sequence[Any],
    columns: Sequence[Column],
    given: Callable[[F32], Any],
    width: int,
) -> list[Tree]:
    """
    Rewrite trees in features and thresholds of the input.

    Args:
        trees: Trees as the last step holds them.
        steps: Steps before the trees.
        columns: Columns after the steps.
        given: Function that converts float32 rows to the input of the first step.
        width: F, the number of features.

    Raises:
        ConversionError: A step changes a feature other than by scaling it, or by
            testing one of its categories, a whole number from 0.
    """
    if any(one.slope <= 0 for one in columns):
        raise ConversionError("a scaler in front of its trees turns the order around")
    for one in columns:
        if one.by_category and not (
            0 <= one.category < _CODES and one.category % 1 == 0
        ):
            raise ConversionError(
                f"category {one.category:g} is encoded in front of its trees; splits "
                "are stored by codes, whole numbers from 0"
            )

    def transformed(rows: F32) -> Any:
        found = given(rows)
        try:
            with np.errstate(all="ignore"):
                for step in steps:
                    if step is not None and step != "passthrough":
                        found = step.transform(found)
        except ValueError as error:
            message = str(error).splitlines()[0]
            raise ConversionError(
                f"its steps refuse large numbers: {message}"
            ) from error
        dense = found.toarray() if hasattr(found, "toarray") else found
        return np.asarray(dense, dtype=np.float32)

    source = np.asarray([one.source for one in columns])
    filled = transformed(np.full((1, width), np.nan, dtype=np.float32))[0]
    by_category = np.asarray([one.by_category for one in columns])
    limits = _limits(trees, among=~by_category)
    last = _last_left(transformed, limits=limits, source=source, width=width)
    return [
        _by_code(
            _translated(
                tree,
                limits=limits,
                last=last,
                source=source,
                filled=filled,
                among=~by_category,
            ),
            tree,
            columns=columns,
        )
        for tree in trees
    ]


def _limits(trees: Sequence[Tree], *, among: Any) -> Any:
    """List the distinct thresholds of these columns, as complex pairs."""
    pairs = [_pairs(one)[_splits(one, among)] for one in trees]
    return np.unique(np.concatenate(pairs))


def _splits(tree: Tree, among: Any) -> Any:
    """Return which nodes are splits by one of these columns; bool [nodes]."""
    return tree.is_split & among[np.where(tree.is_split, tree.feature, 0)]


def _pairs(tree: Tree) -> Any:
    """Return column + threshold i per node: numpy sorts and finds such pairs."""
    found = np.empty(len(tree.left), dtype=np.complex128)
    found.real, found.imag = tree.feature, tree.threshold
    return found


def _last_left(
    transformed: Callable[[F32], Any], *, limits: Any, source: Any, width: int
) -> F32:
    """Return the largest input that goes left, per limit; -inf if none, inf if all."""
    column = limits.real.astype(int)
    feature = source[column]
    # Limits of different features share a row: a step processes each column separately.
    place = np.zeros(len(limits), dtype=int)
    for one in np.unique(feature):
        place[feature == one] = np.arange(int((feature == one).sum()))
    rows = np.zeros((int(place.max(initial=0)) + 1, width), dtype=np.float32)

    def goes_left(value: F32) -> Any:
        rows[place, feature] = value
        return transformed(rows)[place, column] <= limits.imag

    farthest = np.full(len(limits), _FARTHEST)
    never, always = ~goes_left(-farthest), goes_left(farthest)
    low, high = ordered(-farthest), ordered(farthest)
    for _ in range(_HALVINGS):
        middle = (low + high + 1) // 2
        holds = goes_left(numbered(middle))
        low, high = np.where(holds, middle, low), np.where(holds, high, middle - 1)
    found = numbered(low)
    found[always], found[never] = np.inf, -np.inf
    return found


def _translated(
    tree: Tree,
    *,
    limits: Any,
    last: F32,
    source: Any,
    filled: F32,
    among: Any,
) -> Tree:
    """Rewrite one tree in features and thresholds of the input."""
    numeric = _splits(tree, among)
    of = np.where(tree.is_split, tree.feature, 0)
    threshold = np.zeros(len(of), dtype=np.float32)
    threshold[numeric] = last[np.searchsorted(limits, _pairs(tree)[numeric])]
    value = filled[of]  # the column's value where its feature is missing
    missing_left = np.where(np.isnan(value), tree.missing_left, value <= tree.threshold)
    return msgspec.structs.replace(
        tree,
        feature=source[of],
        threshold=threshold,
        missing_left=missing_left,
    )


def _by_code(tree: Tree, original: Tree, *, columns: Sequence[Column]) -> Tree:
    """Rewrite splits by a category's column as tests of the code."""
    left, right = np.array(tree.left), np.array(tree.right)
    missing_left = np.array(tree.missing_left)
    threshold, codes = np.array(tree.threshold), dict(tree.codes)
    comparison = np.array(tree.comparison)
    for node in np.flatnonzero(left >= 0).tolist():
        column = columns[int(original.feature[node])]
        if not column.by_category:
            continue
        limit = original.threshold[node]
        inside = column.slope + column.offset <= limit
        outside = column.offset <= limit
        if inside == outside:  # every code goes the same way
            threshold[node] = np.inf if inside else -np.inf
            continue
        codes[node] = (int(column.category),)
        comparison[node] = IN
        if outside:  # the code goes right: a test by code sends it left
            left[node], right[node] = right[node], left[node]
            missing_left[node] = not missing_left[node]
    return msgspec.structs.replace(
        tree,
        left=left,
        right=right,
        missing_left=missing_left,
        threshold=threshold,
        comparison=comparison,
        codes=codes,
    )


_LINEAR = (
    *(LogisticRegression, LogisticRegressionCV, SGDClassifier),
    LinearDiscriminantAnalysis,
)


def explain_sklearn(
    estimator: Any, *, facts: Facts, given: Callable[[F32], Any]
) -> Explanation:
    """
    Describe a fitted classifier, or a pipeline that ends in one.

    Args:
        given: Function that converts float32 rows to the classifier's training input,
            with column names.

    Raises:
        ConversionError: Its predictions are no sum over trees or coefficients of single
            features; the error says why.
    """
    whole = opened(estimator)
    steps, last = whole.steps, whole.last
    columns = [Column(source) for source in range(facts.columns)]
    for step in steps:
        columns = columns_after(step, columns)
    trees = linear = None
    if isinstance(last, _LINEAR):
        base, linear = _linear(last, columns)
        link: Link = "logistic" if len(base) == 1 else "softmax"
        linear = msgspec.structs.replace(
            linear, coefficient=whole.slope * linear.coefficient
        )
    else:
        link, base, found = _trees(last)
        if steps:
            found = behind_steps(
                found,
                steps=steps,
                columns=columns,
                given=given,
                width=facts.columns,
            )
        trees = stored_trees(
            [
                msgspec.structs.replace(one, value=whole.slope * one.value)
                for one in found
            ],
            codes_exact=True,
        )
    return Explanation(
        features=facts.feature_names,
        classes=facts.classes,
        link=link,
        base=whole.slope * base + whole.offset,
        trees=trees,
        linear=linear,
    )


def _linear(model: Any, columns: list[Column]) -> tuple[Any, Linear]:
    """Return intercepts and coefficients."""
    name = type(model).__name__
    coefficient = np.atleast_2d(np.asarray(model.coef_, dtype=np.float64))
    if isinstance(model, SGDClassifier):
        if model.loss != "log_loss" or len(coefficient) > 1:
            raise ConversionError(
                f"{name} of several classes or without log_loss has no margin that "
                "its coefficients add up to"
            )
    elif len(coefficient) > 1 and getattr(model, "multi_class", "auto") == "ovr":
        raise ConversionError(
            f"{name} of one class against the rest has no common margin"
        )

    def per_column(name: str, dtype: Any) -> Any:
        return np.asarray([getattr(one, name) for one in columns], dtype=dtype)

    base = np.broadcast_to(np.asarray(model.intercept_, float), len(coefficient)).copy()
    return base, Linear(
        source=per_column("source", np.int32),
        slope=per_column("slope", np.float64),
        offset=per_column("offset", np.float64),
        by_category=per_column("by_category", np.bool_),
        category=per_column("category", np.float64),
        filled=per_column("filled", np.float64),
        mean=np.zeros(len(columns)),
        coefficient=coefficient,
    )


def _trees(model: Any) -> tuple[Link, Any, list[Tree]]:
    """Return link, base and trees; thresholds are float64, and of the last step."""
    if isinstance(model, BaseDecisionTree) and is_classifier(model):
        return "identity", np.zeros(len(model.classes_)), _shares(model)
    if isinstance(model, (RandomForestClassifier, ExtraTreesClassifier)):
        return "identity", np.zeros(len(model.classes_)), _shares(model)
    if isinstance(model, GradientBoostingClassifier):
        base, factor = _boosting_start(model)
    elif isinstance(model, HistGradientBoostingClassifier):
        base = np.asarray(model._baseline_prediction, dtype=np.float64).ravel()
        factor = 1.0
    else:
        raise ConversionError(
            f"{type(model).__name__} is no sum over trees or coefficients"
        )
    (ensemble,) = ensembles(model)
    trees = [
        msgspec.structs.replace(
            one, value=factor * one.value, output=number % len(base)
        )
        for number, one in enumerate(ensemble.trees)
    ]
    return "logistic" if len(base) == 1 else "softmax", base, trees


def _boosting_start(model: Any) -> tuple[Any, float]:
    """Return the start margins of gradient boosting, and the factor of its leaves."""
    # With exponential loss, the probability is the sigmoid of twice the sum.
    factor = 2.0 if model.loss == "exponential" else 1.0
    if not (model.init_ == "zero" or type(model.init_).__name__ == "DummyClassifier"):
        raise ConversionError("its trees start from the predictions of another model")
    row = np.zeros((1, model.n_features_in_), dtype=np.float32)
    base = factor * np.asarray(model._raw_predict_init(row), dtype=np.float64).ravel()
    return base, factor * model.learning_rate


def _shares(model: Any) -> list[Tree]:
    """Return trees whose leaves hold their share of each probability."""
    (ensemble,) = ensembles(model)
    return [
        msgspec.structs.replace(
            one,
            value=one.value
            / one.value.sum(axis=1, keepdims=True)
            / len(ensemble.trees),
            output=-1,
        )
        for one in ensemble.trees
    ]

"""Assemble the features of a batch from request fields and window sums."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from tollgate.features.feature_tables import TableColumns
from tollgate.features.fields import Fields, codes, field_values, stacked
from tollgate.features.hook.hook_run import HookColumns, Outputs, Run, run_hook, sealed
from tollgate.features.spec.spec_definition import (
    Feature,
    FeatureSpec,
    Field,
    Hook,
    Window,
)
from tollgate.features.windows.distinct_values import estimate
from tollgate.features.windows.entity_entries import MISSING
from tollgate.features.windows.window_values import Demand, Sums, demands_of
from tollgate.schema import AMOUNT, EVENT_TIME, floats_at, plain_numbers

# Compute features from two other features: ratio, difference, rate of change.

F64 = npt.NDArray[np.float64]
Bool = npt.NDArray[np.bool_]

LARGEST = float(np.finfo(np.float32).max)


def derive(
    feature: Feature, column: int, features: F64, *, unknown: Mapping[int, Bool]
) -> Bool:
    """
    Fill the column of a derived feature; with a the first input, b the second:

    * difference: a - b
    * ratio: a / b
    * rate of change: (a / b) · (long window / short window)

    Args:
        feature: The feature.
        column: Its index.
        features: The vectors, filled up to here; float64 [N, F].
        unknown: Per column, the rows in which a default stands for its value.

    Returns:
        Rows without a value: an input has none, or b is 0; bool [N].
    """
    first, second = feature.inputs or (0, 0)
    a, b = features[:, first], features[:, second]
    lost = np.zeros(len(features), np.bool_)
    for at in (first, second):
        if at in unknown:
            lost |= unknown[at]
    if feature.derived == "difference":
        made = a - b
    else:
        lost |= b == 0.0
        # Over a chain of ratios a double can overflow; it is clipped with the rest
        # below.
        with np.errstate(over="ignore"):
            made = a / np.where(b == 0.0, 1.0, b) * (feature.scale or 1.0)
    # A value beyond the served float32 is clipped to the largest float32.
    features[:, column] = np.clip(made, -LARGEST, LARGEST)
    return lost


# Compute the vector in float64, for models that need more precision than float32.

F32 = npt.NDArray[np.float32]
I64 = npt.NDArray[np.int64]


def exact_features(
    spec: FeatureSpec, features: F32, *, cents: I64, fields: Mapping[str, I64]
) -> F64:
    """
    Return vectors with each number of the request as it was sent.

    The feature step, offline training and the replay of a record compute it from the
    same three inputs, which a record has: so all get the same bits.

    Args:
        spec: The features.
        features: As rules and records have them; float32 [N, F].
        cents: Amounts; int64 [N].
        fields: Declared fields that were sent; int64 [N] each.

    Returns:
        float64 [N, F]: the amount and declared numbers exactly; computed values and
        defaults as in `features`.
    """
    found = features.astype(np.float64)
    for column, feature in enumerate(spec.features):
        name = feature.field
        if name == AMOUNT:
            values = cents / 100.0
        elif name is not None and name in fields:
            whole = fields[name]
            values = plain_numbers(whole, spec.field(name).decimals)
            values = np.where(whole == MISSING, found[:, column], values)
        else:
            continue
        if feature.range is not None:
            values = np.clip(values, *feature.range)
        found[:, column] = values
    return found


# Collect the columns that a hook reads: request columns and earlier features.


def hook_columns(
    spec: FeatureSpec,
    hook: Hook,
    *,
    cents: I64,
    time_us: I64,
    fields: Fields,
    features: F64,
    unknown: Mapping[int, Bool],
) -> HookColumns:
    """
    Collect the columns that a hook reads of N purchases, and nothing else.

    Args:
        spec: The spec that contains the hook.
        hook: The hook.
        cents: Amounts; int64 [N].
        time_us: Event times; int64 [N].
        fields: Declared fields that were sent; int64 [N] each.
        features: The vectors, filled up to the hook's first; float64 [N, F].
        unknown: Per column, the rows in which a default stands for its value.
    """
    rows = len(cents)
    request: dict[str, npt.NDArray[Any]] = {}
    for name in hook.request:
        if name == AMOUNT:
            column: npt.NDArray[Any] = cents / 100.0
        elif name == EVENT_TIME:
            column = time_us
        else:
            column = _field(spec, name, field_values(fields, name, rows))
        request[name] = sealed(column)
    before = {}
    for at in hook.features:
        column = features[:, at]
        if at in unknown:
            column = np.where(unknown[at], np.nan, column)
        before[spec.features[at].name] = sealed(column)
    return HookColumns(rows=rows, request=request, features=before)


def _field(spec: FeatureSpec, name: str, values: I64) -> npt.NDArray[Any]:
    """Convert a declared field to numbers, NaN where there is none, or to codes."""
    field = spec.field(name)
    if field.type == "category":
        return codes(values, field)
    return plain_numbers(values, field.decimals)


NO_FIELDS: Fields = MappingProxyType({})
NO_TABLES: TableColumns = MappingProxyType({})

_DAY_US = 86_400_000_000
_NIGHT_END_US = 7 * 3_600_000_000  # hours 0 … 6 are night
_CENTS = 2  # decimals of an amount
_MICROSECONDS = 6
_HOUR_US = 3_600_000_000


class Assembler:
    """
    Compute the feature vectors of one spec; reads the spec once, for many batches.

    Args:
        spec: Names the features and their order.
    """

    def __init__(self, spec: FeatureSpec) -> None:
        self.spec = spec
        self.demands = [demands_of(one) for one in spec.features]
        # Windows of one entity and aggregate are computed together.
        self.windows = _common_windows(spec, self.demands)
        together = {column for one in self.windows for column in one.members}
        self.without_sums = [
            (column, one)
            for column, one in enumerate(spec.features)
            if column not in spec.numbers
        ]
        self.with_sums = [one for one in self.without_sums if one[0] not in together]
        self.not_common = [one for one in self.without_sums if not common_kind(one[1])]

    def assemble(
        self,
        *,
        cents: I64,
        time_us: I64,
        sums: Sequence[Sums],
        fields: Fields = NO_FIELDS,
        tables: TableColumns = NO_TABLES,
        run: Run = run_hook,
    ) -> F64:
        """Compute the vectors of N purchases; see the function `assemble`."""
        features = np.empty((len(cents), len(self.spec.features)), np.float64)
        batch = _Batch(
            self,
            features,
            cents=cents,
            time_us=time_us,
            others=[one.others for one in sums],
            fields=fields,
            tables=tables,
            run=run,
        )
        columns = self.without_sums
        if sums:
            columns = self.with_sums
            for one in self.windows:
                made = over_windows(one.aggregate, sums[one.entity])
                features[:, one.columns] = made[:, one.windows]
                for column, limits in one.ranges:
                    np.clip(features[:, column], *limits, features[:, column])
        batch.fill(columns)
        return features

    def complete(
        self,
        features: F64,
        *,
        cents: I64,
        time_us: I64,
        others: Sequence[Mapping[Demand, I64]],
        fields: Fields,
        tables: TableColumns,
        run: Run,
    ) -> None:
        """
        Fill the columns that have no `common_kind`, given all others.

        Args:
            features: The vectors; float64 [N, F].
            cents: Amounts; int64 [N].
            time_us: Event times; int64 [N].
            others: Demands per entity of the spec; int64 [N] each.
            fields: Declared fields that were sent; int64 [N] each.
            tables: Numbers of the tables; float64 [N] each.
            run: Runs the product's hook.
        """
        batch = _Batch(
            self,
            features,
            cents=cents,
            time_us=time_us,
            others=others,
            fields=fields,
            tables=tables,
            run=run,
        )
        batch.fill(self.not_common)


def assemble(
    spec: FeatureSpec,
    *,
    cents: I64,
    time_us: I64,
    sums: Sequence[Sums],
    fields: Fields = NO_FIELDS,
    tables: TableColumns = NO_TABLES,
    run: Run = run_hook,
) -> F64:
    """
    Compute the feature vectors of N purchases.

    Args:
        spec: Names the features and their order.
        cents: Amounts; int64 [N].
        time_us: Event times, µs since the epoch, UTC; int64 [N].
        sums: Window sums per entity of the spec; empty when the store did not reply.
        fields: Declared fields that were sent; int64 [N] each.
        tables: Numbers of the tables for the purchases; float64 [N] each, NaN for none.
        run: Runs the product's hook; by default a hook that fails is an error.

    Returns:
        float64 [N, F]; the served vector is this one cast to float32.

    Raises:
        HookError: The hook failed.
    """
    return Assembler(spec).assemble(
        cents=cents, time_us=time_us, sums=sums, fields=fields, tables=tables, run=run
    )


def common_kind(feature: Feature) -> str:
    """
    Name the kind of a feature that the compiled loop computes; empty for others.

    These are the amount, the calendar, and aggregates of the sums that all windows
    share.
    """
    if feature.field == AMOUNT:
        return AMOUNT
    if feature.aggregate is not None and not demands_of(feature):
        return feature.aggregate
    return feature.calendar or ""


class _Windows(msgspec.Struct, frozen=True):
    """
    Name the columns that are windows of one entity and aggregate.

    Attributes:
        entity: Index of the entity.
        aggregate: Name of the aggregate.
        members: The columns.
        columns: The same as an index.
        windows: Index of their windows among the entity's.
        ranges: Columns that are clipped, and their ranges.
    """

    entity: int
    aggregate: Window
    members: tuple[int, ...]
    columns: list[int] | slice
    windows: list[int] | slice
    ranges: list[tuple[int, tuple[float, float]]]


def _common_windows(
    spec: FeatureSpec, demands: Sequence[Sequence[Demand]]
) -> list[_Windows]:
    """Group the columns for which the sums that all windows share are enough."""
    groups: dict[tuple[int, Window], list[int]] = {}
    for column, one in enumerate(spec.features):
        if one.aggregate is not None and not demands[column]:
            groups.setdefault((one.entity, one.aggregate), []).append(column)
    return [
        _Windows(
            entity=entity,
            aggregate=aggregate,
            members=tuple(columns),
            columns=_index(columns),
            windows=_index([spec.features[column].window for column in columns]),
            ranges=[
                (column, limits)
                for column in columns
                if (limits := spec.features[column].range) is not None
            ],
        )
        for (entity, aggregate), columns in groups.items()
    ]


def _index(places: list[int]) -> list[int] | slice:
    """Return places as a slice, which NumPy copies faster, if their steps are equal."""
    step = places[1] - places[0] if len(places) > 1 else 1
    last = places[0] + step * (len(places) - 1)
    if step > 0 and places == list(range(places[0], last + 1, step)):
        return slice(places[0], last + 1, step)
    return places


def over_windows(aggregate: str, sums: Sums) -> F64 | I64:
    """Compute one aggregate over all windows of an entity; [N, W]."""
    if aggregate == "count":
        return sums.count
    if aggregate == "sum":
        return sums.cents / 100.0
    if aggregate == "flagged":
        return sums.fraud
    # The sums of an empty window are 0, and so are the values computed from them.
    whole = np.maximum(sums.count, 1)
    # One division: cents and counts are exact, so the ratio is rounded once.
    if aggregate == "mean":
        mean: F64 = sums.cents / (whole * 100)
        return mean
    if aggregate == "share":
        share: F64 = sums.fraud / whole
        return share
    raise AssertionError(f"no aggregate {aggregate!r}")  # the spec was checked


class _Batch:
    """Fill the vectors of one batch column by column."""

    def __init__(
        self,
        plan: Assembler,
        features: F64,
        *,
        cents: I64,
        time_us: I64,
        others: Sequence[Mapping[Demand, I64]],
        fields: Fields,
        tables: TableColumns,
        run: Run,
    ) -> None:
        self.features = features
        self._plan = plan
        self._spec = plan.spec
        self._cents = cents
        self._time_us = time_us
        self._others = others
        self._fields = fields
        self._tables = tables
        self._run = run
        self._given: Outputs | None = None  # output of the hook, after it ran
        self._unknown: dict[int, Bool] = {}  # column -> rows with its default

    def fill(self, columns: Sequence[tuple[int, Feature]]) -> None:
        """Compute the numbers that were sent, and some columns, in their order."""
        features = self.features
        numbers = self._spec.numbers
        if numbers:
            self._sent(list(numbers), list(numbers.values()))
            for column in numbers:
                limits = self._spec.features[column].range
                if limits is not None:
                    np.clip(features[:, column], *limits, features[:, column])
        for column, feature in columns:
            unknown = self._fill(column, feature)
            if unknown is not None and unknown.any():
                features[unknown, column] = feature.default
                self._unknown[column] = unknown
            if feature.range is not None:
                np.clip(features[:, column], *feature.range, features[:, column])

    def _fill(self, column: int, feature: Feature) -> Bool | None:
        """Compute one column; return the rows that have no value."""
        if feature.aggregate is not None:
            return self._aggregate(column, feature)
        if feature.calendar is not None:
            self.features[:, column] = _calendar(feature.calendar, self._time_us)
            return None
        if feature.field == AMOUNT:
            self.features[:, column] = self._cents / 100.0
            return None
        if feature.category is not None:
            values = field_values(self._fields, feature.category, len(self._cents))
            field = self._spec.field(feature.category)
            places = codes(values, field)
            self.features[:, column] = places
            # With `default: .nan` the model sees NaN for a missing word and for an
            # unseen one.
            return places < 0 if math.isnan(feature.default) else None
        if feature.table is not None:
            return self._table_number(column, (feature.table, str(feature.column)))
        if feature.hook is not None and self._spec.hook is not None:
            return self._hooked(column, feature.hook, self._spec.hook)
        return derive(feature, column, self.features, unknown=self._unknown)

    def _sent(self, columns: list[int], declared: list[Field]) -> None:
        """Fill all columns that are numbers as they were sent, in one step."""
        names = [one.name for one in declared]
        values = stacked(self._fields, names, len(self._cents))
        unit = np.array([10.0 ** (one.decimals or 0) for one in declared])[:, None]
        self.features[:, columns] = (values / unit).T
        floats = [at for at, one in enumerate(declared) if one.decimals is None]
        if floats:
            self.features[:, [columns[at] for at in floats]] = floats_at(
                values[floats]
            ).T
        unknown = values == MISSING
        for at in unknown.any(axis=1).nonzero()[0].tolist():
            column = columns[at]
            self.features[unknown[at], column] = self._spec.features[column].default
            self._unknown[column] = unknown[at]

    def _aggregate(self, column: int, feature: Feature) -> Bool | None:
        """Fill a column from windows; return the rows whose window has no value."""
        if not self._others:
            return np.ones(len(self._cents), np.bool_)
        others = self._others[feature.entity]
        answers = [others[demand] for demand in self._plan.demands[column]]
        return self._other(column, feature, answers)

    def _other(
        self, column: int, feature: Feature, answers: Sequence[I64]
    ) -> Bool | None:
        """Fill a column from its feature's demands; return the rows without a value."""
        first, *rest = answers
        if feature.aggregate in ("distinct", "sessions"):
            self.features[:, column] = first
            return None
        if feature.aggregate == "approx_distinct":
            self.features[:, column] = estimate(first)
            return None
        decimals: int | None = _CENTS
        if feature.aggregate == "time_since_last":
            decimals = _MICROSECONDS
        elif feature.of is not None:
            decimals = self._spec.field(feature.of).decimals
        unit = 10 ** (decimals or 0)  # an exact field has no sums
        unknown: Bool = first == MISSING
        if feature.aggregate == "std":
            root = np.sqrt(floats_at(first))
            self.features[:, column] = root / (np.maximum(rest[0], 1) * unit)
            return unknown
        if feature.aggregate == "slope":
            self.features[:, column] = floats_at(first) * (_HOUR_US / unit)
            return unknown
        if feature.aggregate == "ewm":
            weight = np.maximum(rest[0], 1) * unit
            self.features[:, column] = floats_at(first) / weight
            return unknown
        if feature.aggregate == "change":
            return self._change(column, first, rest[0], decimals=decimals)
        if feature.aggregate == "mean":
            # One division of integers, so that it is rounded once.
            self.features[:, column] = first / (np.maximum(rest[0], 1) * unit)
            return None
        if feature.aggregate in ("sum", "min", "max", "last", "time_since_last"):
            return self._number(column, first, decimals=decimals)
        raise AssertionError(f"no aggregate {feature.aggregate!r}")  # a new one

    def _change(
        self, column: int, newest: I64, nth: I64, *, decimals: int | None
    ) -> Bool:
        """Fill a column with the difference of two values, where both exist."""
        unknown: Bool = nth == MISSING
        if decimals is None:
            change = floats_at(newest) - floats_at(nth)
        else:
            change = np.where(unknown, 0, newest - nth) / 10.0**decimals
        # Two float32 numbers may differ by more than the largest of them.
        self.features[:, column] = np.clip(change, -LARGEST, LARGEST)
        return unknown

    def _table_number(self, column: int, name: tuple[str, str]) -> Bool:
        """Fill a column from a table; return the rows without a value."""
        values = self._tables.get(name)
        if values is None:
            return np.ones(len(self._cents), np.bool_)
        self.features[:, column] = values
        return np.isnan(values)

    def _hooked(self, column: int, name: str, hook: Hook) -> Bool:
        """
        Fill a column from the hook, which runs once; return the rows without a value.
        """
        if self._given is None:
            columns = hook_columns(
                self._spec,
                hook,
                cents=self._cents,
                time_us=self._time_us,
                fields=self._fields,
                features=self.features,
                unknown=self._unknown,
            )
            self._given = self._run(hook, columns)
        # A value beyond the served float32 is clipped to the largest float32.
        np.clip(self._given[name], -LARGEST, LARGEST, self.features[:, column])
        return np.isnan(self._given[name])

    def _number(self, column: int, values: I64, *, decimals: int | None) -> Bool:
        self.features[:, column] = plain_numbers(values, decimals)
        unknown: Bool = values == MISSING
        return unknown


def _calendar(calendar: str, time_us: I64) -> npt.NDArray[np.bool_]:
    if calendar == "weekend":
        # The epoch was a Thursday; Saturday and Sunday are days 5 and 6 from Monday.
        weekend: npt.NDArray[np.bool_] = (time_us // _DAY_US + 3) % 7 >= 5
        return weekend
    night: npt.NDArray[np.bool_] = time_us % _DAY_US < _NIGHT_END_US
    return night

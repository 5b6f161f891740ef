"""Plan a product: classify the columns of a table, choose its features and label."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import numpy.typing as npt

from tollgate.errors import InputError
from tollgate.features.spec.spec_document import duration_us
from tollgate.product.choices import ProductChoices
from tollgate.product.column_names import (
    Namer,
    distinct_entity_names,
    reserved_reason,
)
from tollgate.product.columns import Column, ExcludedColumn, classify_column
from tollgate.product.label import Label, find_label
from tollgate.product.splitting import DAY_US, held_out, known_before
from tollgate.product.table_reading import (
    as_numbers,
    as_times_us,
    assign_named_roles,
    read_table,
    select_rows,
    too_long,
)
from tollgate.product.windows import (
    EntityEvents,
    Number,
    NumberWindows,
    choose_windows,
    entity_events,
    judged_rows,
    number_aggregates,
    select_numbers,
)
from tollgate.schema import AMOUNT, EVENT_TIME, TRANSACTION_ID

if TYPE_CHECKING:
    import polars as pl


F64 = npt.NDArray[np.float64]
Bool = npt.NDArray[np.bool_]

SUSPECT_AUC = 0.97  # of one column alone; below, it may just be a good one
_FEW_VALUES = 0.1  # share of rows; with more values, a pure split may be chance


def drop_duplicates(
    columns: Sequence[Column],
) -> tuple[list[Column], list[ExcludedColumn]]:
    """Leave out the columns that equal an earlier one in every row."""
    distinct: list[Column] = []
    excluded: list[ExcludedColumn] = []
    seen: dict[tuple[str, int], list[Column]] = {}
    for one in columns:
        key = (one.kind, int(one.values.hash(seed=0).sum()))
        twins = seen.setdefault(key, [])
        same = next((it for it in twins if _equal(it, one)), None)
        if same is not None:
            excluded.append(
                ExcludedColumn(one.source, f"is the same as {same.source!r}")
            )
            continue
        twins.append(one)
        distinct.append(one)
    return distinct, excluded


def _equal(one: Column, other: Column) -> bool:
    return one.values.equals(other.values.alias(one.values.name), null_equal=True)


def leak_reason(column: Column, positive: Bool) -> str:
    """
    Describe how a column gives the outcome away; empty when it does not.

    Args:
        column: Column of N rows, all of which have an outcome.
        positive: True for rows with the positive outcome; bool [N].
    """
    empty = column.values.is_null().to_numpy()
    if empty.any() and ((empty == positive).all() or (empty != positive).all()):
        return "is empty in just the rows of one outcome: it reveals the outcome"
    codes = _codes(column)
    rows = np.bincount(codes)
    hits = np.bincount(codes, weights=positive)
    pure = ((hits == 0) | (hits == rows)).all()
    if pure and len(rows) == 2:
        return "equals the outcome"
    if pure and len(rows) <= max(2.0, _FEW_VALUES * len(codes)):
        return "determines the outcome: each of its values goes with just one"
    if column.kind == "number" and not empty.any():
        number = column.values.to_numpy()
        inside, outside = number[positive], number[~positive]
        if inside.min() > outside.max() or inside.max() < outside.min():
            return "determines the outcome: one threshold parts the two"
    return ""


def solo_auc(column: Column, positive: Bool) -> float:
    """
    Compute how well a column alone ranks the outcomes: its AUC, or 1 - AUC if higher.

    Words are ranked by their share of positives, shrunk to the mean of all rows as if
    each word had ten more rows; rows without a value, likewise.
    """
    from tollgate.evaluation import roc_auc

    if column.kind == "number":
        values = column.values.fill_null(column.values.median()).to_numpy()
    else:
        codes = _codes(column)
        rows, hits = np.bincount(codes), np.bincount(codes, weights=positive)
        values = ((hits + 10 * positive.mean()) / (rows + 10))[codes]
    found = roc_auc(positive.astype(np.int8), values)
    return max(found, 1 - found)


def _codes(column: Column) -> npt.NDArray[np.int64]:
    """Number the distinct values, null among them; int64 [N]."""
    ranks = column.values.rank("dense").fill_null(0)
    _, codes = np.unique(ranks.to_numpy(), return_inverse=True)
    return np.asarray(codes, np.int64).ravel()


# Select columns of a table as features: drop clocks, keep the strongest.

_GROWS = 20  # distinct values that only ever rise with time: a clock


def drop_leaks(
    columns: Sequence[Column],
    positive: npt.NDArray[np.bool_],
    *,
    keep: Sequence[str],
    notes: list[str],
) -> tuple[list[Column], list[ExcludedColumn]]:
    """
    Leave out columns that give the outcome away, except those to keep by name.

    Args:
        columns: Columns of N rows, all of which have an outcome.
        positive: True for rows with the positive outcome; bool [N].
        keep: Names of columns to use in any case.
        notes: Gets a line for each column that is suspiciously good.
    """
    used, excluded = [], []
    for one in columns:
        reason = "" if one.source in keep else leak_reason(one, positive)
        if reason:
            reason = f"{reason}; keep it by name to use it"
            excluded.append(ExcludedColumn(one.source, reason))
            continue
        if one.source not in keep and (auc := solo_auc(one, positive)) > SUSPECT_AUC:
            notes.append(
                f"{one.source!r} alone has an AUC of {auc:.3f}: is it known before the "
                "outcome? If not, drop it"
            )
        used.append(one)
    return used, excluded


def drop_clocks(
    columns: Sequence[Column], times_us: npt.NDArray[np.int64]
) -> tuple[list[Column], list[ExcludedColumn]]:
    """
    Leave out numbers that only rise with time: those of future rows are all higher.
    """
    order = np.argsort(times_us, kind="stable")
    if times_us[order[0]] == times_us[order[-1]]:
        return list(columns), []
    used, excluded = [], []
    for one in columns:
        values = one.take(order).values
        rises = one.kind == "number" and values.n_unique() > _GROWS
        if rises and values.drop_nulls().is_sorted():
            excluded.append(ExcludedColumn(one.source, "only rises with time: a clock"))
        else:
            used.append(one)
    return used, excluded


def select_strongest(
    columns: Sequence[Column],
    label: Label,
    *,
    most: int,
    times_us: npt.NDArray[np.int64],
    label_delay_us: int = 0,
) -> tuple[list[Column], list[ExcludedColumn]]:
    """
    Select the columns that individually rank outcomes best, in the table's order.

    The rows that the model is judged on do not count, nor do those whose outcome was
    not known before them.
    """
    if len(columns) <= most:
        return list(columns), []
    test = held_out(label.values, time_us=times_us)
    past = known_before(
        test, label.values, time_us=times_us, label_delay_us=label_delay_us
    )
    rows = np.flatnonzero(past)
    positive = label.values[rows] == 1
    found = np.array([solo_auc(one.take(rows), positive) for one in columns])
    strongest = set(np.argsort(-found, kind="stable")[:most].tolist())
    reason = f"less informative than the {most} that are used"
    excluded = [
        ExcludedColumn(c.source, reason)
        for at, c in enumerate(columns)
        if at not in strongest
    ]
    return [c for at, c in enumerate(columns) if at in strongest], excluded


_HOUR_US = 3_600_000_000


class Field(msgspec.Struct, frozen=True):
    """A column that becomes a field of the request, with the field's name."""

    name: str
    column: Column


class EntityColumn(msgspec.Struct, frozen=True):
    """
    An entity that has windows.

    Attributes:
        name: Its name.
        key: The input with its id.
        source: The table's column.
        windows: Its windows, the shortest first.
        numbers: Numbers that windows are of, in addition to the amount's sum and mean.
    """

    name: str
    key: str
    source: str
    windows: tuple[str, ...]
    numbers: tuple[NumberWindows, ...]


class Plan(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """
    Plan of a product.

    Attributes:
        choices: The user's choices.
        frame: The usable rows, as the file has them.
        label: Their outcomes.
        outcome, other: Names of the outcome, and of all others, in the policy.
        fields: Fields of the request.
        entities: Entities that have windows.
        at_night: True if the rows' times include the hour.
        excluded: Columns that are not used, with the reasons.
        notes: Other remarks for the user.
    """

    choices: ProductChoices
    frame: pl.DataFrame
    label: Label
    outcome: str
    other: str
    fields: tuple[Field, ...]
    entities: tuple[EntityColumn, ...]
    at_night: bool
    excluded: tuple[ExcludedColumn, ...]
    notes: tuple[str, ...]

    def name_of(self, column: str) -> str:
        """
        Return the field's name for a column that was left out because of its values.
        """
        namer = Namer()
        for one in (self.outcome, self.other):
            namer.name(one)
        taken = (one.column.source for one in self.fields)
        excluded = (one.source for one in self.excluded if one.by_values)
        return namer.names((*self.choices.entities, *taken, *excluded))[column]

    def numbers_text(self, entity: EntityColumn) -> str:
        """Describe the windows of numbers of an entity, by the table's columns."""
        columns = {one.name: one.column.source for one in self.fields}
        return "; ".join(
            f"{', '.join(one.aggregates)} of "
            f"{columns.get(one.name, self.choices.amount)}"
            for one in entity.numbers
        )

    @property
    def aliases(self) -> dict[str, str]:
        """
        Return the table's names for those of our columns that have other names there.
        """
        choices = self.choices
        pairs = [
            (TRANSACTION_ID, choices.id),
            (EVENT_TIME, choices.time),
            (AMOUNT, choices.amount),
            ("label", choices.label),
            *((one.key, one.source) for one in self.entities),
            *((one.name, one.column.source) for one in self.fields),
        ]
        return {name: source for name, source in pairs if source not in (None, name)}


def make_plan(choices: ProductChoices) -> Plan:
    """
    Read the table and assign each of its columns a role.

    Raises:
        InputError: The table is unusable; the message gives the reason.
    """
    table = read_table(choices.table)
    notes = list(table.notes)
    choices = assign_named_roles(table.frame, choices, notes)
    frame = select_rows(table.frame, choices, notes)
    label = find_label(
        frame[choices.label], source=str(choices.table), positive=choices.positive
    )
    times_us = _times_us(frame, choices)
    columns, excluded = _columns(
        frame, choices, label=label, times_us=times_us, notes=notes
    )
    served = _served_rows(frame, columns)
    events = _entity_windows(
        frame.filter(served), choices, times_us=times_us[served], notes=notes
    )
    if not columns and not events and not choices.amount:
        problem = "no column is left that a model could learn from"
        raise InputError(choices.table, problem)
    namer = Namer()
    outcome = namer.name(f"{choices.label}_{label.positive}".lower())
    other = namer.name(f"not_{outcome}")
    names = namer.names((*choices.entities, *(one.source for one in columns)))
    fields = tuple(Field(names[one.source], one) for one in columns)
    numbers = _select_numbers(
        frame.filter(served),
        choices,
        fields=fields,
        served=served,
        events=list(events.values()),
        label=label.values[served],
        times_us=times_us[served],
    )
    entity_names = distinct_entity_names([names[source] for source in events])
    return Plan(
        choices=choices,
        frame=frame,
        label=label,
        outcome=outcome,
        other=other,
        fields=fields,
        entities=tuple(
            EntityColumn(
                name=name,
                key=names[source],
                source=source,
                windows=windows,
                numbers=own,
            )
            for name, (source, (_, windows)), own in zip(
                entity_names, events.items(), numbers, strict=True
            )
        ),
        at_night=len(np.unique(times_us // _HOUR_US % 24)) > 1,
        excluded=tuple(excluded),
        notes=tuple(notes),
    )


def _served_rows(frame: pl.DataFrame, columns: Sequence[Column]) -> Bool:
    """Return the rows that a server accepts: no word is too long; bool [N]."""
    served = np.ones(len(frame), np.bool_)
    for one in columns:
        if one.kind == "category":
            served &= ~too_long(frame[one.source]).to_numpy()
    return served


def _select_numbers(
    frame: pl.DataFrame,
    choices: ProductChoices,
    *,
    fields: Sequence[Field],
    served: Bool,
    events: Sequence[tuple[EntityEvents, tuple[str, ...]]],
    label: npt.NDArray[np.int8],
    times_us: npt.NDArray[np.int64],
) -> list[tuple[NumberWindows, ...]]:
    """
    Select the numbers that windows are of, by entity; held-out rows do not count.

    Args:
        frame: The N rows that a server accepts.
        choices: The user's choices.
        fields: The fields, with the values of all rows of the table.
        served: True for the rows of the table that a server accepts.
        events: Events and windows of each entity.
        label: Outcomes; int8 [N].
        times_us: Times, µs; int64 [N].
    """
    if not events:
        return []
    numbers = []
    if choices.amount is not None:
        amounts = as_numbers(frame[choices.amount]).values.to_numpy()
        numbers.append(Number(AMOUNT, amounts, ("max",)))
    for one in fields:
        column = one.column
        if column.kind == "number":
            aggregates = number_aggregates(
                column.low, column.high, decimals=column.decimals
            )
            values = column.values.fill_null(np.nan).to_numpy()[served]
            numbers.append(Number(one.name, values, aggregates))
    test = held_out(label, time_us=times_us)
    train = known_before(
        test, label, time_us=times_us, label_delay_us=choices.label_delay_us
    )
    rows = judged_rows(label, train)
    return select_numbers(numbers, events, label=label, time_us=times_us, rows=rows)


def _entity_windows(
    frame: pl.DataFrame,
    choices: ProductChoices,
    *,
    times_us: npt.NDArray[np.int64],
    notes: list[str],
) -> dict[str, tuple[EntityEvents, tuple[str, ...]]]:
    """Choose the windows of each entity; return its events and windows, by column."""
    span_us = int(np.ptp(times_us)) if len(times_us) else 0
    found = {}
    for name in choices.entities:
        events = entity_events(frame[name], times_us)
        found[name] = events, choose_windows(events)
    longest = max(
        (windows[-1] for _, windows in found.values()), key=duration_us, default="0s"
    )
    if duration_us(longest) > span_us:
        notes.append(
            f"the table covers {span_us / DAY_US:.3g} days, so windows of {longest} "
            "hold less in training than they will when served: bring a longer table, "
            "or remove them from features.yaml and train again"
        )
    return found


def _columns(
    frame: pl.DataFrame,
    choices: ProductChoices,
    *,
    label: Label,
    times_us: npt.NDArray[np.int64],
    notes: list[str],
) -> tuple[list[Column], list[ExcludedColumn]]:
    """Classify the columns without a role; select those that a model may have."""
    excluded = [ExcludedColumn(name, "excluded on request") for name in choices.drop]
    excluded += [
        ExcludedColumn(name, "sensitive: reported on only")
        for name in choices.sensitive
    ]
    columns: list[Column] = []
    for name in _free_columns(frame, choices):
        found = _reserved(name) or classify_column(frame[name])
        if isinstance(found, Column):
            columns.append(found)
        else:
            excluded.append(msgspec.structs.replace(found, by_values=True))
    columns, twins = drop_duplicates(columns)
    columns, leaks = drop_leaks(
        columns, label.values == 1, keep=choices.keep, notes=notes
    )
    columns, clocks = drop_clocks(columns, times_us)
    columns, weak = select_strongest(
        columns,
        label,
        most=choices.most_fields,
        times_us=times_us,
        label_delay_us=choices.label_delay_us,
    )
    return columns, [*excluded, *twins, *leaks, *clocks, *weak]


def _free_columns(frame: pl.DataFrame, choices: ProductChoices) -> list[str]:
    """List the columns that the user gave no role."""
    roles = {choices.label, choices.time, choices.amount, choices.id, *choices.entities}
    taken = roles | {*choices.drop, *choices.sensitive}
    return [name for name in frame.columns if name not in taken]


def _reserved(name: str) -> ExcludedColumn | None:
    """Refuse names that have a different meaning in every product."""
    reason = reserved_reason(name)
    return None if reason is None else ExcludedColumn(name, reason)


def _times_us(frame: pl.DataFrame, choices: ProductChoices) -> npt.NDArray[np.int64]:
    """Return the rows' times, µs; all 0 if the table has none; int64 [N]."""
    if choices.time is None:
        return np.zeros(len(frame), np.int64)
    return np.asarray(as_times_us(frame[choices.time]).to_numpy(), np.int64)

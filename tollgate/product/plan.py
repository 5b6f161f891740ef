"""Plan a product: assign each column of a table its role."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np
import numpy.typing as npt

from tollgate.errors import InputError
from tollgate.product.asked import Asked
from tollgate.product.choosing import strongest, without_clocks, without_leaks
from tollgate.product.columns import Column, LeftOut, look_at
from tollgate.product.label import Label, find_label
from tollgate.product.leaks import keep_first
from tollgate.product.names import OWN_COLUMNS, Namer, entity_name
from tollgate.product.reading import read_any
from tollgate.product.usable import by_name, known_rows
from tollgate.product.values import as_times_us
from tollgate.schema import AMOUNT, EVENT_TIME, TRANSACTION_ID

if TYPE_CHECKING:
    import polars as pl

_HOUR_US = 3_600_000_000


class Field(msgspec.Struct, frozen=True):
    """A column that becomes a field of the request, with the field's name."""

    name: str
    column: Column


class Watched(msgspec.Struct, frozen=True):
    """An entity that has windows: its name, its input, its column."""

    name: str
    key: str
    source: str


class Plan(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """
    Plan of a product.

    Attributes:
        asked: The user's choices.
        frame: The usable rows, as the file has them.
        label: Their outcomes.
        outcome, other: Names of the outcome, and of all others, in the policy.
        fields: Fields of the request.
        entities: Entities that have windows.
        at_night: True if the rows' times include the hour.
        left_out: Columns that are not used.
        notes: Other remarks for the user.
    """

    asked: Asked
    frame: pl.DataFrame
    label: Label
    outcome: str
    other: str
    fields: tuple[Field, ...]
    entities: tuple[Watched, ...]
    at_night: bool
    left_out: tuple[LeftOut, ...]
    notes: tuple[str, ...]

    def name_of(self, column: str) -> str:
        """
        Return the field's name for a column that was left out because of its values.
        """
        namer = Namer()
        for one in (self.outcome, self.other):
            namer.name(one)
        taken = (one.column.source for one in self.fields)
        left = (one.source for one in self.left_out if one.by_values)
        return namer.names((*self.asked.entities, *taken, *left))[column]

    @property
    def aliases(self) -> dict[str, str]:
        """
        Return the table's names for those of our columns that have other names there.
        """
        asked = self.asked
        pairs = [
            (TRANSACTION_ID, asked.id),
            (EVENT_TIME, asked.time),
            (AMOUNT, asked.amount),
            ("label", asked.label),
            *((one.key, one.source) for one in self.entities),
            *((one.name, one.column.source) for one in self.fields),
        ]
        return {name: source for name, source in pairs if source not in (None, name)}


def make_plan(asked: Asked) -> Plan:
    """
    Read the table and assign each of its columns a role.

    Raises:
        InputError: The table is unusable; the message gives the reason.
    """
    read = read_any(asked.table)
    notes = list(read.notes)
    asked = by_name(read.frame, asked, notes)
    frame = known_rows(read.frame, asked, notes)
    label = find_label(
        frame[asked.label], source=str(asked.table), positive=asked.positive
    )
    times_us = _times_us(frame, asked)
    columns, left = _columns(frame, asked, label=label, times_us=times_us, notes=notes)
    if not columns and not asked.entities and not asked.amount:
        problem = "no column is left that a model could learn from"
        raise InputError(asked.table, problem)
    namer = Namer()
    outcome = namer.name(f"{asked.label}_{label.positive}".lower())
    other = namer.name(f"not_{outcome}")
    names = namer.names((*asked.entities, *(one.source for one in columns)))
    return Plan(
        asked=asked,
        frame=frame,
        label=label,
        outcome=outcome,
        other=other,
        fields=tuple(Field(names[one.source], one) for one in columns),
        entities=tuple(
            Watched(name=entity_name(names[one]), key=names[one], source=one)
            for one in asked.entities
        ),
        at_night=len(np.unique(times_us // _HOUR_US % 24)) > 1,
        left_out=tuple(left),
        notes=tuple(notes),
    )


def _columns(
    frame: pl.DataFrame,
    asked: Asked,
    *,
    label: Label,
    times_us: npt.NDArray[np.int64],
    notes: list[str],
) -> tuple[list[Column], list[LeftOut]]:
    """Classify the columns without a role; select those that a model may have."""
    left = [LeftOut(name, "left out as told") for name in asked.drop]
    left += [LeftOut(name, "sensitive: reported on only") for name in asked.sensitive]
    columns: list[Column] = []
    for name in _free_columns(frame, asked):
        found = _reserved(name) or look_at(frame[name])
        if isinstance(found, Column):
            columns.append(found)
        else:
            left.append(msgspec.structs.replace(found, by_values=True))
    columns, twins = keep_first(columns)
    columns, leaks = without_leaks(
        columns, label.values == 1, keep=asked.keep, notes=notes
    )
    columns, clocks = without_clocks(columns, times_us)
    columns, weak = strongest(
        columns,
        label,
        most=asked.most_fields,
        times_us=times_us,
        label_delay_us=asked.label_delay_us,
    )
    return columns, [*left, *twins, *leaks, *clocks, *weak]


def _free_columns(frame: pl.DataFrame, asked: Asked) -> list[str]:
    """List the columns that the user gave no role."""
    roles = {asked.label, asked.time, asked.amount, asked.id, *asked.entities}
    taken = roles | {*asked.drop, *asked.sensitive}
    return [name for name in frame.columns if name not in taken]


def _reserved(name: str) -> LeftOut | None:
    """Refuse names that have a different meaning in every product."""
    if name not in OWN_COLUMNS or name == AMOUNT:
        return None
    return LeftOut(name, "has a name that Tollgate uses itself: rename it in the table")


def _times_us(frame: pl.DataFrame, asked: Asked) -> npt.NDArray[np.int64]:
    """Return the rows' times, µs; all 0 if the table has none; int64 [N]."""
    if asked.time is None:
        return np.zeros(len(frame), np.int64)
    return np.asarray(as_times_us(frame[asked.time]).to_numpy(), np.int64)

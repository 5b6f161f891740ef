"""Compute features over a whole history, as training uses them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tollgate.errors import HookError, InputError
from tollgate.features import assemble
from tollgate.features.feature_tables import TableColumns, TableRows, columns_of, join
from tollgate.features.spec.feature_spec import Entity, FeatureSpec
from tollgate.features.spec.spec_definition import Hook
from tollgate.features.windows.capacity import require_within_cap
from tollgate.features.windows.entity_entries import Entries, order_keys, tie_hashes
from tollgate.features.windows.window_values import (
    Demand,
    Rows,
    Sums,
    compute_demands,
    entity_demands,
    find_places,
    rounding,
    window_sums,
)
from tollgate.schema import hash_words

if TYPE_CHECKING:
    from tollgate.history import History

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]

# Bounds memory: entities are summed together while they have no more rows than this.
_ROWS_AT_ONCE = 100_000
# Keeps the search keys within 63 bits for a history of up to 140 years.
_ENTITIES_AT_ONCE = 2_000
_ROWS_ALONE = 64  # purchases for which the hook runs again, one by one

Progress = Callable[[int, int], None]

NO_ROWS: Mapping[str, TableRows] = MappingProxyType({})


def build(
    spec: FeatureSpec,
    history: History,
    *,
    tables: Mapping[str, TableRows] = NO_ROWS,
    progress: Progress | None = None,
) -> F64:
    """
    Compute the features of every purchase of a history.

    Args:
        spec: The features.
        history: N purchases in any order, with their labels where known.
        tables: The rows of each table of the spec.
        progress: Called with (entities done, entities in all).

    Returns:
        float64 [N, F], in the order of the history.

    Raises:
        InputError: The rows of a table are missing, or the store retains fewer events
            of an id than a window of the history counts.
        HookError: The hook failed, or depends on more than a purchase's own columns.
    """
    table_numbers = join_tables(spec, history, tables)
    order = order_keys(history.transaction_id)
    ties = tie_hashes(history.transaction_id)
    codes = [history.entity_codes(entity.key) for entity in spec.entities]
    total = sum(int(code.max(initial=-1)) + 1 for code in codes)
    done = 0

    def advance(count: int) -> None:
        nonlocal done
        done += count
        if progress:
            progress(done, total)

    columns = dict(history.fields)
    for entity, code in zip(spec.entities, codes, strict=True):
        if any(entity.key in one.columns for one in spec.entities):
            columns[entity.key] = _hashed(history.entity_id[entity.key], code)
    sums = [
        _entity_sums(
            entity,
            code,
            history,
            order=order,
            ties=ties,
            columns=[columns[name] for name in entity.columns],
            demands=demands,
            advance=advance,
        )
        for entity, code, demands in zip(
            spec.entities, codes, entity_demands(spec), strict=True
        )
    ]
    features = np.empty((len(history), len(spec.features)), np.float64)

    def vectors(part: slice) -> F64:
        return assemble.assemble(
            spec,
            cents=history.cents[part],
            time_us=history.event_time_us[part],
            sums=[one.part(part) for one in sums],
            fields={name: one[part] for name, one in history.fields.items()},
            tables={name: one[part] for name, one in table_numbers.items()},
        )

    for first in range(0, len(history), _ROWS_AT_ONCE):
        part = slice(first, first + _ROWS_AT_ONCE)
        features[part] = vectors(part)
    if spec.hook is not None and len(history):
        _prove_rows(spec, spec.hook, features, vectors=vectors)
    return features


def _hashed(ids: Sequence[bytes], code: I64) -> I64:
    """Hash ids as the store does, each of them once; int64 [N]."""
    _, first = np.unique(code, return_index=True)
    return hash_words([ids[row] for row in first])[code]


def _prove_rows(
    spec: FeatureSpec,
    hook: Hook,
    features: F64,
    *,
    vectors: Callable[[slice], F64],
) -> None:
    """
    Check that purchases have the same vector alone as among all others.

    Raises:
        HookError: The hook returns different values for one of them.
    """
    for row in np.unique(np.linspace(0, len(features) - 1, _ROWS_ALONE).astype(int)):
        (found,), among = vectors(slice(row, row + 1)), features[row]
        same = (found == among) | (np.isnan(found) & np.isnan(among))
        if not same.all():
            at = int(np.argmin(same))
            problem = (
                f"{spec.feature_names[at]} of purchase {row + 1} is {found[at]} alone "
                f"and {among[at]} among others"
            )
            raise HookError(hook.path, problem)


def join_tables(
    spec: FeatureSpec, history: History, tables: Mapping[str, TableRows]
) -> TableColumns:
    """
    Join the numbers of the tables to each purchase of a history; float64 [N] each.

    Raises:
        InputError: The rows of a table of the spec are missing.
    """
    table_numbers: dict[tuple[str, str], F64] = {}
    for table in spec.tables:
        if table.name not in tables:
            problem = "is a table of the features: name its file"
            raise InputError("tables", problem, where=table.name)
        ids = history.entity_id[spec.entities[table.entity].key]
        rows = tables[table.name]
        table_numbers |= columns_of(
            table, join(table, rows, ids, history.event_time_us)
        )
    return table_numbers


def _entity_sums(
    entity: Entity,
    code: I64,
    history: History,
    *,
    order: tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]],
    ties: npt.NDArray[np.uint64],
    columns: Sequence[I64],
    demands: Sequence[Demand],
    advance: Callable[[int], None],
) -> Sums:
    """Sum one entity's windows for all rows, a group of entities at a time."""
    sorted_rows = np.lexsort((ties, order[1], order[0], history.event_time_us, code))
    if not entity.tiles:
        require_within_cap(
            entity,
            code[sorted_rows],
            history.event_time_us[sorted_rows],
            ids=history.entity_id[entity.key],
            transaction_id=history.transaction_id,
            rows=sorted_rows,
            source=history.source,
        )
    starts = np.searchsorted(code[sorted_rows], np.arange(code.max(initial=-1) + 2))
    shape = (len(code), len(entity.windows_us))
    sums = Sums(
        count=np.zeros(shape, np.int64),
        cents=np.zeros(shape, np.int64),
        fraud=np.zeros(shape, np.int64),
        upto=np.zeros(len(code), np.int64),
        others={demand: np.zeros(len(code), np.int64) for demand in demands},
    )

    def add(chosen: I64, *, starts: I64, own: I64 | slice) -> None:
        """Sum the windows of the events `own` among those of some entities."""
        entries = _entries(history, chosen, starts=starts, columns=columns)
        counts = starts[1:] - starts[:-1]
        rows = Rows(
            entity=np.arange(len(counts)).repeat(counts)[own],
            time_us=entries.time_us[own],
            order=entries.order[own],
            delay_us=np.array([entity.delay_us]),
            windows_us=np.array(entity.windows_us)[:, None],
            rounding_us=rounding(
                np.array([entity.edge_us]), np.array(entity.rounding_us)[:, None]
            )
            if entity.tiles
            else None,
        )
        places = find_places(entries, rows)
        part = window_sums(entries, rows, places=places)
        chosen = chosen[own]
        sums.count[chosen] = part.count
        sums.cents[chosen] = part.cents
        sums.fraud[chosen] = part.fraud
        sums.upto[chosen] = part.upto
        answers = compute_demands(
            entries, rows, places, columns=entity.columns, demands=demands
        )
        for demand, answer in answers.items():
            sums.others[demand][chosen] = answer

    for first, last in _groups(starts):
        chosen = sorted_rows[starts[first] : starts[last]]
        add(chosen, starts=starts[first : last + 1], own=slice(None))
        advance(last - first)
    if history.arrival_us is not None:
        times = history.event_time_us[sorted_rows], history.arrival_us[sorted_rows]
        for chosen, starts in _late_views(entity, code[sorted_rows], *times):
            add(sorted_rows[chosen], starts=starts, own=starts[1:] - 1)
    return sums


def _late_views(
    entity: Entity, code: I64, time_us: I64, arrival_us: I64
) -> Iterator[tuple[I64, I64]]:
    """
    Find the rows that came before an earlier event of their id, and what they see.

    Such a row sees the events that had arrived when it did, as if its id had no others.

    Args:
        entity: The entity with its windows.
        code: Index of each event's id; events of one id follow each other.
        time_us: Time of each event; ascending for an id.
        arrival_us: Time at which each event arrived.

    Yields:
        For some such rows, the positions of the events that each one sees, itself the
        last; int64 [E]. The position among these at which each row's events start, and
        the end of the last row's; int64 [R + 1].
    """
    places = np.unique(arrival_us, return_inverse=True)[1]
    key = code * (len(code) + 1) + places
    (late,) = (np.maximum.accumulate(key) > key).nonzero()
    if not len(late):
        return
    first = np.empty(len(late), np.int64)
    ids, firsts = np.unique(code[late], return_index=True)
    for one, begin, end in zip(ids, firsts, [*firsts[1:], None], strict=True):
        start, stop = code.searchsorted([one, one + 1])
        rows = late[begin:end]
        reach_us = time_us[rows] - entity.horizon_us
        first[begin:end] = start + time_us[start:stop].searchsorted(reach_us)
    ends = np.append(0, np.cumsum(late + 1 - first))
    for begin, end in _groups(ends):
        rows, counts = late[begin:end], np.diff(ends[begin : end + 1])
        owner = np.arange(len(rows)).repeat(counts)
        seen = np.arange(counts.sum()) - (np.cumsum(counts) - counts)[owner]
        seen += first[begin:end][owner]
        known = arrival_us[seen] <= arrival_us[rows[owner]]
        yield seen[known], owner[known].searchsorted(np.arange(len(rows) + 1))


def _groups(starts: I64) -> Iterator[tuple[int, int]]:
    """Split entities into groups [first, last) of few entities and few rows."""
    first, entities = 0, len(starts) - 1
    while first < entities:
        fitting = int(starts.searchsorted(starts[first] + _ROWS_AT_ONCE, "right")) - 1
        last = min(max(fitting, first + 1), first + _ENTITIES_AT_ONCE, entities)
        yield first, last
        first = last


def _entries(
    history: History, chosen: I64, *, starts: I64, columns: Sequence[I64]
) -> Entries:
    """Convert purchases, sorted by entity, time and id, to entries."""
    (frauds,) = (history.label[chosen] == 1).nonzero()
    return Entries(
        starts=starts - starts[0],
        time_us=history.event_time_us[chosen],
        order=np.arange(len(chosen)),
        purchase=np.ones(len(chosen), np.bool_),
        cents=history.cents[chosen],
        fraud_at=frauds,
        fraud_known_us=history.label_time_us[chosen[frauds]],
        columns=np.array([column[chosen] for column in columns], np.int64),
    )


def feature_columns(names: Sequence[str], features: F64) -> dict[str, F64]:
    """Return the names of the columns of `features` [N, F]."""
    return {name: features[:, column] for column, name in enumerate(names)}

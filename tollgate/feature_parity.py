"""Compare the vectors of the online path with those of the offline path, bit by bit."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from tollgate.backfill.tables import load_table
from tollgate.errors import InputError, ServerError
from tollgate.features.feature_tables import TableRows
from tollgate.features.offline import build
from tollgate.features.spec.feature_spec import FeatureSpec, Table
from tollgate.history import History
from tollgate.replay import LOAD_DEADLINE_S, purchases_in_reach, replay
from tollgate.schema import Applied, Degraded
from tollgate.store.online_features import OnlineFeatures
from tollgate.store.redis.cluster_store import open_store

I64 = npt.NDArray[np.int64]

_TOO_LATE = np.uint32(Degraded.EVENT_TOO_LATE)
_NEWEST = 2_000  # purchases to compare; ties with the first are added


def newest_rows(history: History) -> I64:
    """Return the positions of the newest 2,000 purchases, and of their ties."""
    time_us = np.sort(history.event_time_us)
    from_us = time_us[max(0, len(time_us) - _NEWEST)]
    return np.flatnonzero(history.event_time_us >= from_us)


def replay_newest(
    spec: FeatureSpec,
    history: History,
    tables: Sequence[tuple[Table, TableRows]] = (),
    progress: Callable[[int, int], None] | None = None,
) -> int:
    """
    Compare the newest vectors online with offline, bit for bit; return their number.

    Args:
        progress: Called with (purchases done, purchases in all).

    Raises:
        ServerError: A vector differs, or there is none.
    """
    time_us = history.event_time_us[newest_rows(history)]
    if not len(time_us):
        raise ServerError(spec.product, f"{history.source} has no purchase to replay")
    from_us, until_us = int(time_us.min()), int(time_us.max()) + 1
    found = compare_with_offline(
        spec,
        purchases_in_reach(history, spec=spec, from_us=from_us, until_us=until_us),
        tables,
        read_from_us=from_us,
        store_url=None,
        batch_rows=1_000,
        progress=progress,
    )
    if found.differing or not found.read:
        problem = f"{found.differing:,} of {found.read:,} vectors read online differ"
        raise ServerError(spec.product, f"{problem} from offline")
    return found.read


class ParityCounts(msgspec.Struct, frozen=True):
    """
    Numbers of vectors.

    Attributes:
        read: Read online and compared with the offline ones.
        differing: Those that differ in a bit.
        late: Not compared: their purchases came too late for the store to place them.
    """

    read: int
    differing: int
    late: int


def compare_with_offline(
    spec: FeatureSpec,
    history: History,
    tables: Sequence[tuple[Table, TableRows]],
    *,
    read_from_us: int,
    store_url: str | None,
    batch_rows: int,
    progress: Callable[[int, int], None] | None = None,
) -> ParityCounts:
    """
    Replay a history and compare each vector with the offline one, bit for bit.

    A purchase of a history with times of arrival may come too late to be applied.

    Args:
        read_from_us: Purchases from this time on are compared; earlier ones applied.
        store_url: Store to fill; None for a temporary one.
        progress: Called with (purchases done, purchases in all).

    Raises:
        InputError: The store has purchases of the history, or newer ones, already; or
            an id has more purchases at one instant than its entity's cap.
    """
    temporary = store_url is None
    taken = {one.name: rows for one, rows in tables}
    offline = build(spec, history, tables=taken).astype(np.float32).view(np.uint32)
    read = differing = too_late = 0
    with ExitStack() as stack:
        if store_url is None:
            from tollgate.server.processes.redis_server import EmbeddedRedis

            folder = stack.enter_context(tempfile.TemporaryDirectory())
            store_url = stack.enter_context(EmbeddedRedis(Path(folder))).url
        store = open_store(store_url, deadline_s=LOAD_DEADLINE_S)
        for table, own in tables:
            # Table rows expire by a clock that starts when purchases first read them.
            load_table(spec, table, own, store, wall_us=lambda: read_from_us)
        online = OnlineFeatures(spec, store)
        for rows, vectors in replay(
            online,
            history,
            read_from_us=read_from_us,
            batch_rows=batch_rows,
            progress=progress,
        ):
            late = np.zeros(len(rows), np.bool_)
            if history.arrival_us is not None:
                late = (vectors.degraded & _TOO_LATE) != 0
            refused = rows[~late & (vectors.applied != Applied.YES)]
            if spec.entities and len(refused) and temporary:
                name = history.transaction_id[refused[0]].decode(errors="replace")
                problem = f"the store refused transaction {name!r}: one of its ids has "
                problem += "more purchases at one instant than the entity's cap"
                raise InputError("history", problem)
            if spec.entities and len(refused):
                problem = "has these purchases, or newer ones, already: "
                raise InputError("store", problem + "name an empty store")
            served = vectors.features.astype(np.float32).view(np.uint32)
            differs = (served != offline[rows]).any(axis=1)
            read += int((~late).sum())
            differing += int(differs[~late].sum())
            too_late += int(late.sum())
    return ParityCounts(read=read, differing=differing, late=too_late)

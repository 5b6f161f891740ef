"""
Compare the vectors of the online path with those of the offline path, bit by bit.

The engine's feature stage reads the online vectors, as it does in a server.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from tollgate.backfill.tables import load_table
from tollgate.engine.feature_stage import FeatureStage
from tollgate.engine.row_batches import Batch, DryShare
from tollgate.errors import InputError, ServerError, StoreError
from tollgate.features.feature_tables import TableRows
from tollgate.features.offline import build
from tollgate.features.spec.feature_spec import FeatureSpec, Table
from tollgate.history import History
from tollgate.replay import LOAD_DEADLINE_S, purchases_in_reach, replay
from tollgate.schema import STORE_LOST, Applied, Degraded
from tollgate.store.online_features import OnlineFeatures, Vectors
from tollgate.store.redis.cluster_store import open_store
from tollgate.store.store_events import Purchases
from tollgate.store.store_opening import StoreSettings, open_fallback_chain

I64 = npt.NDArray[np.int64]

_TOO_LATE = np.uint32(Degraded.EVENT_TOO_LATE)
_LOST = np.uint32(STORE_LOST)
_NEWEST = 2_000  # purchases to compare; ties with the first are added
# The watermark is that of a feed, which a replay is not.
_SETTINGS = StoreSettings(deadline_s=LOAD_DEADLINE_S, marks=False)


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
        raise ServerError(spec.product, f"{history.source} has no rows to replay")
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
        StoreError: The store does not respond.
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
        chain = open_fallback_chain(spec, store_url, settings=_SETTINGS)
        stack.callback(chain.close)
        stage = FeatureStage(spec, chain, share=DryShare(0.0))
        for rows, vectors in replay(
            OnlineFeatures(spec, store),
            history,
            read_from_us=read_from_us,
            score=partial(_score, spec, stage),
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
                problem += f"more {spec.rows_noun} at one instant than its entity's cap"
                raise InputError("history", problem)
            if spec.entities and len(refused):
                problem = f"has these {spec.rows_noun}, or newer ones, already: "
                raise InputError("store", problem + "name an empty store")
            served = vectors.features.view(np.uint32)
            differs = (served != offline[rows]).any(axis=1)
            read += int((~late).sum())
            differing += int(differs[~late].sum())
            too_late += int(late.sum())
    return ParityCounts(read=read, differing=differing, late=too_late)


def _score(spec: FeatureSpec, stage: FeatureStage, purchases: Purchases) -> Vectors:
    """
    Apply purchases and read their vectors, as the feature step does.

    Raises:
        StoreError: The store did not reply; the step would fall back to other values.
    """
    names, ids = spec.id_names, (purchases.transaction_id, *purchases.entity_id)
    batch = Batch(
        ids={name: list(column) for name, column in zip(names, ids, strict=True)},
        cents=purchases.cents,
        time_us=purchases.event_time_us,
        errors={},
        bounds=[0, len(purchases)],
        dry=[False],
        fields=purchases.fields,
    )
    features, context = stage.score(batch, arrival_us=time.monotonic_ns() // 1000)
    if (context["degraded"] & _LOST).any():
        raise StoreError("the store did not answer a batch of the replay")
    return Vectors(features, context["degraded"], context["applied"])

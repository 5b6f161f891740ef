"""Replay a history through the online path, as a feed would have sent it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec
import numpy as np
import numpy.typing as npt

from tollgate.features.spec.feature_spec import FeatureSpec
from tollgate.features.spec.tile_form import MAX_LABELS
from tollgate.features.windows.capacity import NEVER_US, dropped_us
from tollgate.features.windows.entity_entries import hash_ids, order_keys, tie_hashes
from tollgate.history import History
from tollgate.store.online_features import OnlineFeatures, Vectors
from tollgate.store.store_events import Labels, Purchases

I64 = npt.NDArray[np.int64]

FRAUD_LABEL = 1
LOAD_DEADLINE_S = 30.0  # of a call to the store; no caller waits for a history
_BATCH_ROWS = 1_000


class Span(msgspec.Struct, frozen=True):
    """
    Purchases to apply in one batch, with the labels to apply before them; positions.
    """

    purchases: I64
    labels: I64


def time_order(history: History, rows: I64) -> I64:
    """Sort positions of purchases by (time, id)."""
    ids = [history.transaction_id[row] for row in rows]
    high, low = order_keys(ids)
    keys = (tie_hashes(ids), low, high, history.event_time_us[rows])
    ordered: I64 = rows[np.lexsort(keys)]
    return ordered


def label_order(history: History, rows: I64) -> I64:
    """Sort positions of labelled purchases by (label time, id hash)."""
    hashes = hash_ids([history.transaction_id[row] for row in rows])
    ordered: I64 = rows[np.lexsort((hashes, history.label_time_us[rows]))]
    return ordered


def arrival_order(history: History) -> I64:
    """Sort positions of purchases by their arrival, then by (time, id)."""
    order = time_order(history, np.arange(len(history)))
    if history.arrival_us is None:
        return order
    arrived: I64 = order[np.argsort(history.arrival_us[order], kind="stable")]
    return arrived


def spans(
    spec: FeatureSpec, history: History, *, batch_rows: int = _BATCH_ROWS
) -> Iterator[Span]:
    """
    Cut a history into batches in the order of arrival, mostly that of (time, id).

    A label is sent with the first batch that has a purchase at or after its label time,
    but not before its own purchase; reading is as of each purchase, so none sees it
    early. A batch never spans more than half of the lateness: otherwise the purchases
    that it applies would push those that it reads out of the windows. For the same
    reason no purchase of a batch drops, from a full value, an event that the windows of
    an earlier one in it count, and none is older than an earlier one of its id in it.
    Labels of legitimate purchases change no feature and are not sent.
    """
    order = arrival_order(history)
    arrival_us = history.arrival_us
    time_us = (history.event_time_us if arrival_us is None else arrival_us)[order]
    labelled = np.flatnonzero(history.label == FRAUD_LABEL)
    labelled = label_order(history, labelled)
    known_us = history.label_time_us[labelled]
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    known_at = np.maximum(time_us.searchsorted(known_us), place[labelled])
    by_place = known_at.argsort(kind="stable")
    labelled, known_at = labelled[by_place], known_at[by_place]
    if arrival_us is None:
        alone_from = _alone_from(spec, history, order)
    else:
        lag_us = arrival_us - history.event_time_us
        alone_from = _alone_from_late(spec, history, order, lag_us=lag_us[order])
    tiled = any(entity.tiles for entity in spec.entities)
    start, fed = 0, 0
    while start < len(order):
        last_us = time_us[start] + spec.lateness_us // 2
        stop = min(start + batch_rows, int(np.searchsorted(time_us, last_us, "right")))
        dropping = np.flatnonzero(alone_from[start + 1 : stop] > start)
        if len(dropping):
            stop = start + 1 + int(dropping[0])
        if tiled:
            # More labels than a value holds one by one would go into its tiles, where
            # a row from before their label time counts them.
            most = int(known_at.searchsorted(start, "right")) + MAX_LABELS - 1
            if most < len(known_at):
                stop = min(stop, max(int(known_at[most]), start + 1))
        known = int(known_at.searchsorted(stop))
        yield Span(purchases=order[start:stop], labels=labelled[fed:known])
        start, fed = stop, known


def _alone_from(spec: FeatureSpec, history: History, order: I64) -> I64:
    """
    Find, for each purchase, the earlier ones that must not share a batch with it.

    Args:
        spec: Features with the entities.
        history: N purchases.
        order: Their positions in it, in the order of (time, id).

    Returns:
        For each purchase, the position in `order` of the first purchase whose windows
        no longer include the event that it drops from a full value; it must not share a
        batch with those before; int64 [N].
    """
    time_us = history.event_time_us[order]
    found = np.zeros(len(order), np.int64)
    for entity in spec.entities:
        if entity.tiles:
            continue  # a batch is read before its events are folded
        code = history.entity_codes(entity.key)[order]
        by_id = np.argsort(code, kind="stable")
        dropped = dropped_us(code[by_id], time_us[by_id], entity.cap)
        full = dropped != NEVER_US
        past_us = dropped[full] + entity.windows_us[-1] + entity.delay_us
        places = by_id[full]
        found[places] = np.maximum(found[places], time_us.searchsorted(past_us))
    return found


def _alone_from_late(
    spec: FeatureSpec, history: History, order: I64, *, lag_us: I64
) -> I64:
    """
    Find the same as `_alone_from` for purchases in the order of their arrival.

    A purchase does not share a batch with those of its id before it if it is older than
    one of them, if its value is full, or if the one before it came very late.

    Args:
        lag_us: Time from each purchase until it arrived, in this order.
    """
    time_us = history.event_time_us[order]
    very_late = lag_us > spec.lateness_us // 2
    rank = np.empty(len(order), np.int64)
    rank[time_order(history, np.arange(len(history)))] = np.arange(len(order))
    rank = rank[order]
    found = np.zeros(len(order), np.int64)
    for entity in spec.entities:
        code = history.entity_codes(entity.key)[order]
        by_id = np.argsort(code, kind="stable")
        key = code[by_id] * len(order) + rank[by_id]
        apart = np.maximum.accumulate(key) > key
        if not entity.tiles:
            dropped = dropped_us(code[by_id], time_us[by_id], entity.cap)
            apart |= dropped != NEVER_US
        apart[1:] |= very_late[by_id][:-1]
        apart[1:] &= code[by_id][1:] == code[by_id][:-1]
        (places,) = apart[1:].nonzero()
        later, before = by_id[places + 1], by_id[places]
        found[later] = np.maximum(found[later], before + 1)
    return found


def purchases_in_reach(
    history: History, *, spec: FeatureSpec, from_us: int, until_us: int
) -> History:
    """Select the purchases that matter to windows read in [from_us, until_us)."""
    reach_us = max((entity.horizon_us for entity in spec.entities), default=0)
    time_us = history.event_time_us
    return history.take(
        np.flatnonzero((time_us >= from_us - reach_us) & (time_us < until_us))
    )


def purchases_of(spec: FeatureSpec, history: History, rows: I64) -> Purchases:
    """Select purchases of a history, as events."""
    return Purchases(
        transaction_id=[history.transaction_id[row] for row in rows],
        entity_id=[
            [history.entity_id[entity.key][row] for row in rows]
            for entity in spec.entities
        ],
        event_time_us=history.event_time_us[rows],
        cents=history.cents[rows],
        fields={name: column[rows] for name, column in history.fields.items()},
    )


def labels_of(spec: FeatureSpec, history: History, rows: I64) -> Labels:
    """Select labels of a history, as events."""
    picked = purchases_of(spec, history, rows)
    return Labels(
        transaction_id=picked.transaction_id,
        entity_id=picked.entity_id,
        event_time_us=picked.event_time_us,
        label=history.label[rows],
        label_time_us=history.label_time_us[rows],
        revision=np.zeros(len(rows), np.int64),
    )


def replay(
    online: OnlineFeatures,
    history: History,
    *,
    read_from_us: int,
    score: Callable[[Purchases], Vectors] | None = None,
    batch_rows: int = _BATCH_ROWS,
    progress: Callable[[int, int], None] | None = None,
) -> Iterator[tuple[I64, Vectors]]:
    """
    Apply a history to the store and read the vectors of its later part.

    Args:
        online: Features of the store to apply it to.
        history: Purchases and labels.
        read_from_us: Purchases from this time on are read; earlier ones only applied.
        score: Applies a batch and reads its vectors; `online` does unless given.
        batch_rows: Purchases per store call.
        progress: Called with (purchases fed, purchases in all).

    Yields:
        Positions in the history, and their vectors, batch by batch.

    Raises:
        StoreError: The store does not respond.
    """
    fed = 0
    for span in spans(online.spec, history, batch_rows=batch_rows):
        if len(span.labels):
            online.label(labels_of(online.spec, history, span.labels))
        batch = purchases_of(online.spec, history, span.purchases)
        if batch.event_time_us.max() < read_from_us:
            online.load(batch)
        else:
            if score is None:
                (vectors,) = online.score([batch], write=[True])
            else:
                vectors = score(batch)
            wanted = batch.event_time_us >= read_from_us
            yield (
                span.purchases[wanted],
                Vectors(
                    features=vectors.features[wanted],
                    degraded=vectors.degraded[wanted],
                    applied=vectors.applied[wanted],
                ),
            )
        fed += len(batch)
        if progress:
            progress(fed, len(history))

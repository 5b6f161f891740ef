"""
Load a history into the store in parts, with the store's own function.

Applying an event again changes nothing, so a history may be loaded into a store that
serves: events that arrive meanwhile and events of the history end in the same values.
The progress is stored in the store next to the values, so a run that was killed
continues, and a run into a store that was lost starts from the beginning.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from tollgate.backfill.pace import Pace, open_pace
from tollgate.errors import StoreError
from tollgate.features.spec.feature_spec import FeatureSpec
from tollgate.features.windows.entity_entries import oldest_stored_us
from tollgate.history import History
from tollgate.replay import (
    FRAUD_LABEL,
    label_order,
    labels_of,
    purchases_of,
    time_order,
)
from tollgate.store.event_writer import EVENTS_PER_CALL, EventWriter
from tollgate.store.redis.redis_store import Command, RedisStore

_TTL_S = 7 * 86_400


def run_commands(store: RedisStore, commands: list[Command]) -> list[Any]:
    """
    Run commands in one round trip, and return their replies.

    Raises:
        StoreError: The store did not reply, or refused one of them.
    """
    if not commands:
        return []
    _, replies = store.flush([], extra_commands=commands)
    for reply in replies:
        if isinstance(reply, Exception):
            raise StoreError(f"the store refused: {reply}") from reply
    return replies


class Checkpoint:
    """
    Store the progress of one history into one state's values.

    It is stored in the same store: if the values are lost, it is lost too.

    Args:
        spec: The spec of the values.
        history: Fingerprint that distinguishes the history from others.
        store: The store of both.
    """

    def __init__(self, spec: FeatureSpec, history: str, store: RedisStore) -> None:
        state = f"tollgate:{spec.product}:{spec.state_hash:016x}"
        self._key = f"{state}.history:{history}".encode()  # not an entity's value
        self._store = store

    def read(self) -> int:
        """
        Return the number of purchases that are done; 0 when none is known.

        Raises:
            StoreError: The store did not reply.
        """
        _, (value,) = self._store.flush([], extra_commands=[(b"GET", self._key)])
        return int(value) if isinstance(value, bytes) and value.isdigit() else 0

    def write(self, done: int) -> None:
        """
        Store the number of purchases that are done.

        Raises:
            StoreError: The store did not reply, or refused.
        """
        command = (b"SET", self._key, str(done).encode(), b"EX", str(_TTL_S).encode())
        run_commands(self._store, [command])


I64 = npt.NDArray[np.int64]
Progress = Callable[[int, int], None]

STORE_DEADLINE_S = 30.0
_PART_ROWS = 64 * EVENTS_PER_CALL
_FULL_CALL = EVENTS_PER_CALL - 1  # the last purchase may have a label


class MaterializeCounts(msgspec.Struct):
    """
    Count the results of a run; purchases, except for `labels`.

    Attributes:
        history: Purchases of the history.
        out_of_reach: Purchases older than each of their entities retains.
        done_before: Purchases that an earlier run loaded.
        sent: Purchases that this run sent.
        labels: Labels that this run sent.
        late_labels: Labels of purchases that the store retains no more, or of folded
            ones of which it has newer labels.
        applied: Purchases that changed a value.
        duplicates: Purchases that the store had already.
        too_late: Purchases that are older than the values in the store retain.
        foreign: Purchases of an entity whose value is damaged.
        full: Ids of which the history has more than their entity's cap.
        over_cap: Purchases of these that are within reach and that the store will not
            retain, because newer ones fill the value.
    """

    history: int = 0
    out_of_reach: int = 0
    done_before: int = 0
    sent: int = 0
    labels: int = 0
    late_labels: int = 0
    applied: int = 0
    duplicates: int = 0
    too_late: int = 0
    foreign: int = 0
    full: int = 0
    over_cap: int = 0


def within_reach(spec: FeatureSpec, history: History) -> I64:
    """
    Return the purchases that at least one entity still retains, oldest first.

    An older one would be removed again by the purchases after it.

    Returns:
        Positions in the history, in the order of (time, id); int64 [M].
    """
    in_reach = np.zeros(len(history), np.bool_)
    for entity in spec.entities:
        code = history.entity_codes(entity.key)
        newest_us = _newest_us(code, history.event_time_us)
        oldest_us = newest_us - entity.horizon_us
        if not entity.tiles:
            oldest_us = oldest_stored_us(newest_us, entity.horizon_us)
        in_reach |= history.event_time_us >= oldest_us
    rows = np.flatnonzero(in_reach)
    return time_order(history, rows)


def _over_cap(spec: FeatureSpec, history: History) -> tuple[int, int]:
    """
    Count the ids that fill their values, and the events that the store drops of them.
    """
    full = dropped = 0
    for entity in spec.entities:
        if entity.tiles:
            continue
        code = history.entity_codes(entity.key)
        newest_us = _newest_us(code, history.event_time_us)
        in_reach = history.event_time_us >= newest_us - entity.horizon_us
        over = np.maximum(np.bincount(code[in_reach]) - entity.cap, 0)
        full += int((over > 0).sum())
        dropped += int(over.sum())
    return full, dropped


def _newest_us(code: I64, time_us: I64) -> I64:
    """Return the time of the newest purchase of each row's id; int64 [N]."""
    newest_us = np.zeros(code.max(initial=-1) + 1, np.int64)
    np.maximum.at(newest_us, code, time_us)
    found: I64 = newest_us[code]
    return found


def materialize(
    spec: FeatureSpec,
    history: History,
    store: RedisStore,
    *,
    rate_per_s: float | None = 0.0,
    progress: Progress | None = None,
) -> MaterializeCounts:
    """
    Load a history into the store, from where an earlier run stopped.

    Args:
        spec: The features whose entities to fill.
        history: Purchases, and labels of fraud with the time they became known.
        store: The store to fill.
        rate_per_s: Most purchases per second; see `Pace`.
        progress: Called with (purchases done, purchases in all).

    Raises:
        StoreError: The store did not reply; another run continues from there.
    """
    rows = within_reach(spec, history)
    checkpoint = Checkpoint(spec, _fingerprint(history), store)
    done = MaterializeCounts(
        history=len(history), out_of_reach=len(history) - len(rows)
    )
    done.full, done.over_cap = _over_cap(spec, history)
    done.done_before = min(checkpoint.read(), len(rows))
    writer = EventWriter(spec, store, history=True)
    pace = open_pace(spec, store, rate_per_s)
    labelled = history.label == FRAUD_LABEL
    if any(entity.tiles for entity in spec.entities):
        # Values with tiles take labels of purchases that they have in this order.
        frauds = label_order(history, rows[labelled[rows]])
        for start in range(0, len(frauds), EVENTS_PER_CALL):
            started_s = pace.begin()
            own = frauds[start : start + EVENTS_PER_CALL]
            writer.labels(labels_of(spec, history, own))
            pace.end(started_s, len(own))
    for start in range(done.done_before, len(rows), _PART_ROWS):
        part = rows[start : start + _PART_ROWS]
        _send_part(writer, history, part, labelled=labelled[part], pace=pace, done=done)
        checkpoint.write(start + len(part))
        if progress:
            progress(start + len(part), len(rows))
    return done


def _fingerprint(history: History) -> str:
    """Return a hash of a history, independent of its path; 16 hexadecimal digits."""
    digest = hashlib.blake2b(digest_size=8)
    for column in (history.event_time_us, history.cents, history.label):
        digest.update(column.tobytes())
    digest.update(b"\0".join(history.transaction_id))
    return digest.hexdigest()


def _send_part(
    writer: EventWriter,
    history: History,
    rows: I64,
    *,
    labelled: npt.NDArray[np.bool_],
    pace: Pace,
    done: MaterializeCounts,
) -> None:
    """
    Apply purchases call by call, each with its label.

    A value with tiles takes the label of a purchase that the same call adds, also if
    it counted newer labels before.
    """
    events = np.cumsum(1 + labelled) - 1
    for part in np.split(rows, 1 + np.flatnonzero(np.diff(events // _FULL_CALL))):
        started_s = pace.begin()
        own = part[history.label[part] == FRAUD_LABEL]
        outcome = writer.labelled_purchases(
            purchases_of(writer.spec, history, part),
            labels_of(writer.spec, history, own),
        )
        done.sent += len(part)
        done.labels += len(own)
        done.applied += int(outcome.applied[: len(part)].sum())
        done.duplicates += int(outcome.duplicate[: len(part)].sum())
        done.too_late += int(outcome.too_late[: len(part)].sum())
        done.late_labels += int(outcome.too_late[len(part) :].sum())
        done.foreign += int(outcome.foreign[: len(part)].sum())
        pace.end(started_s, len(part))

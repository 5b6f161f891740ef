"""
The fallback chain: get the features of a batch from the best source that is available.

    the store's reply, within its deadline
    the last known values of the row's entities, moved on to the row's own moment
    the declared defaults of the features of an entity that has no known value

The row's degraded bits name each level below the first that it used. Nothing here
raises because the store is in trouble.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import structs

from tollgate.errors import (
    OutcomeUnknown,
    StoreError,
    StorePartial,
    StoreTimeout,
    without_frames,
)
from tollgate.features.spec.feature_spec import FeatureSpec
from tollgate.ranking.history import UserHistory, no_history
from tollgate.schema import MAX_BATCH_ROWS, Applied, Degraded
from tollgate.store.dual_writes import FRESH_S, TargetState, TargetStates
from tollgate.store.fallback.circuit_breaker import BreakerState, CircuitBreaker, Prober
from tollgate.store.fallback.last_known import LastKnown
from tollgate.store.fallback.local_values import apply_purchases
from tollgate.store.fallback.required_features import Essentials
from tollgate.store.in_place_appends import InPlaceAppends
from tollgate.store.lookups import (
    NO_LOOKUPS,
    Feeds,
    LookupResult,
    Lookups,
    TableLookup,
    TableQuery,
    Tables,
)
from tollgate.store.online_features import OnlineFeatures, Packed
from tollgate.store.redis.redis_store import (
    NO_ANSWER,
    Answer,
    Command,
    Mode,
    RedisStore,
    WaitCallback,
    describe_error,
    do_nothing,
)
from tollgate.store.store_events import Call, Purchases

log = logging.getLogger(__name__)


_MOST_DURATIONS = 100_000  # without a reader, such as in a replay, the oldest leave


class Spool(Protocol):
    """Store purchases that the store did not apply, or maybe not."""

    def append(self, purchases: Purchases) -> bool:
        """Queue them, without waiting; return False when there is no room."""
        ...


class Scored(msgspec.Struct, frozen=True):
    """
    Hold the features of a batch of purchases, and their quality.

    Attributes:
        features: float64 [N, F].
        degraded: Degraded bits; uint32 [N].
        applied: Applied; uint8 [N].
        age_us: Age of the oldest last known value in the row; int64 [N], 0 where the
            store replied.
        lookups: Lists and stored decisions.
        history: The newest events of the rows; None if the spec reads none.
    """

    features: npt.NDArray[np.float64]
    degraded: npt.NDArray[np.uint32]
    applied: npt.NDArray[np.uint8]
    age_us: npt.NDArray[np.int64]
    lookups: LookupResult = NO_LOOKUPS
    history: UserHistory | None = None


class StoreCounts:
    """
    Count events since the start, for the metrics.

    Attributes:
        call_s: Duration of the last batch's call of the store; None without one.
        durations_s: Duration of each call; whoever exports them removes them.
        calls: Calls by outcome: answered, partial, late, unknown, failed; and not_made
            while the circuit breaker is open.
        known: Entity values found in the cache while the store was unavailable.
        unknown: Entity values not found there.
        spooled: Rows that went to the spool because the store did not apply them.
        spool_full: Rows for which the spool had no room.
        earlier: Stored decisions by kind: same, conflict, corrupt.
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Reset all counts."""
        self.call_s: float | None = None
        self.durations_s: deque[float] = deque(maxlen=_MOST_DURATIONS)
        self.calls: Counter[str] = Counter()
        self.known = 0
        self.unknown = 0
        self.spooled = 0
        self.spool_full = 0
        self.earlier: Counter[str] = Counter()

    def count_call(self, outcome: str, *, call_s: float) -> None:
        """Count a call of the store by its outcome and its duration."""
        self.calls[outcome] += 1
        self.call_s = call_s
        self.durations_s.append(call_s)

    def count_last_known(self, known: npt.NDArray[np.bool_]) -> None:
        """Count look-ups of last known values: found or not; [K]."""
        found = int(known.sum())
        self.known += found
        self.unknown += len(known) - found


def outcome_of(error: StoreError) -> str:
    """Return the outcome of a failed call, as named in `StoreCounts.calls`."""
    if isinstance(error, StorePartial):
        return "partial"
    if isinstance(error, StoreTimeout):
        return "late"
    return "unknown" if isinstance(error, OutcomeUnknown) else "failed"


# Write the purchases of a batch to the other states that the store lists, too.

_STATES_INTERVAL_S = 1.0


class DualWrites:
    """
    Write the purchases that a feature step scores to the other states, too.

    The writes travel in the flush that scores the purchases. If one of them fails, the
    purchases go to the spool, whose drain writes them to every state.

    Args:
        spec: The step's features.
        store: The store of all states.
        spool: Takes purchases that a state did not get, or maybe not.
        clock: Monotonic, seconds.
    """

    def __init__(
        self,
        spec: FeatureSpec,
        store: RedisStore,
        *,
        spool: Callable[[Purchases], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._states = TargetStates(spec)
        self._store = store
        self._spool = spool
        self._clock = clock
        self._read_due_s = -1.0
        self._read_s = -FRESH_S  # when the list was requested that is in use
        self._requested_s: float | None = None

    def commands(self, batches: Sequence[Purchases]) -> list[Command]:
        """
        Return the commands to send with the call that writes these purchases.

        They are those that write the other states and, once a second, the one that
        reads the list of them; mostly none.
        """
        commands = [
            command
            for target in self._states.targets
            for batch in batches
            for command in self._writes(target, batch)
        ]
        now_s = self._clock()
        self._requested_s = None
        if now_s >= self._read_due_s:
            self._read_due_s = now_s + _STATES_INTERVAL_S
            self._requested_s = now_s
            commands.append(self._states.command)
        return commands

    def settle(self, batches: Sequence[Purchases], replies: Sequence[Any]) -> None:
        """
        Take the replies to these commands, after the store has written the purchases.

        If the list was read too long ago, or names a new state, the purchases are
        written now.
        """
        replies = list(replies)
        try:
            if self._requested_s is not None:
                new = self._update(replies.pop(), requested_s=self._requested_s)
            else:
                new = []
            now_s = self._clock()
            if batches and now_s > self._read_s + FRESH_S:
                (reply,) = self._run([self._states.command])
                new += self._update(reply, requested_s=now_s)
            replies += self._run(
                [
                    command
                    for target in new
                    for batch in batches
                    for command in self._writes(target, batch)
                ]
            )
            for reply in replies:
                if isinstance(reply, Exception):
                    raise StoreError(f"refused: {describe_error(reply)}")
        except StoreError as error:
            self._read_due_s = -1.0
            log.warning("another state lacks purchases, which are spooled: %s", error)
            for batch in batches:
                self._spool(batch)

    def retry(self) -> None:
        """Read the list with the next call; the last one got no reply."""
        self._read_due_s = -1.0

    def _writes(self, target: TargetState, batch: Purchases) -> list[Command]:
        return self._store.commands(target.call(batch), Mode.WRITE_ONLY)

    def _update(self, reply: object, *, requested_s: float) -> list[TargetState]:
        new = self._states.update(reply)
        self._read_s = requested_s
        return new

    def _run(self, commands: list[Command]) -> list[Any]:
        if not commands:
            return []
        return self._store.flush([], extra_commands=commands)[1]


# Call the store once per batch, if the circuit breaker allows it.
#
# The same flush also reads feed watermarks, values of tables, lists and stored
# decisions. The replies go to the objects that manage them.


class StoreCaller:
    """
    Call the store of one product.

    Args:
        store: The product's store.
        breaker: Circuit breaker of the store.
        feeds: The product's watermarks.
        tables: The product's tables.
        lookups: Lists and stored decisions to read for each row.
        counts: Counters of the calls.
        updates: Write the purchases that are scored; False leaves that to a stream.
        dual_writes: Writes them to other states, too.
        appends: Appends purchases in place to known values; None reads every value.
    """

    def __init__(
        self,
        store: RedisStore,
        *,
        breaker: CircuitBreaker,
        feeds: Feeds,
        tables: Tables,
        lookups: Lookups,
        counts: StoreCounts,
        updates: bool,
        dual_writes: DualWrites,
        appends: InPlaceAppends | None = None,
    ) -> None:
        self._store = store
        self._breaker = breaker
        self._feeds = feeds
        self._tables = tables
        self._lookups = lookups
        self._counts = counts
        self._updates = updates
        self._dual_writes = dual_writes
        self._appends = appends
        self._prober = Prober(breaker, store.probe)

    def call(
        self,
        packed: Sequence[Packed],
        write: Sequence[bool],
        *,
        now_us: int,
        query: TableQuery | None,
        on_wait: WaitCallback = do_nothing,
    ) -> tuple[list[Answer] | StoreError, Sequence[Any]]:
        """
        Call the store if the circuit breaker allows it.

        Args:
            packed: Batches.
            write: Per batch, False for a dry run.
            now_us: The clock.
            query: The values of tables that the batches need; None without tables.
            on_wait: Called while the store works; not called if no command could be
                sent.

        Returns:
            Its replies, or the error; and its replies to the look-ups.
        """
        counts = self._counts
        counts.call_s = None
        if not self._breaker.allows():
            counts.calls["not_made"] += 1
            return StoreError("it is left alone"), ()
        write = [writes and self._updates for writes in write]
        calls = [
            (one.call, Mode.WRITE if writes else Mode.DRY)
            for one, writes in zip(packed, write, strict=True)
            if one.call.keys
        ]
        batches = [one.purchases for one in packed]
        newest_us = _newest_us(batches, write) if any(write) else None
        feeds = self._feeds.commands(now_us, newest_us=newest_us)
        tables = query.commands() if query is not None else []
        lookups = self._lookups.commands(batches)
        written = list(itertools.compress(batches, write))
        dual_writes = self._dual_writes.commands(written) if calls else []
        extra_commands = [*feeds, *tables, *lookups, *dual_writes]
        plan = None
        if self._appends is not None and calls and calls[0][1] is Mode.WRITE:
            # A later call of the batch may write what this one does.
            plan = self._appends.plan(calls[0][0])
            if plan is not None:
                calls[0] = plan.call, Mode.WRITE
        started_s = time.perf_counter()
        answers: list[Answer] | StoreError
        try:
            answers, replies = self._store.flush(
                calls, extra_commands=extra_commands, on_wait=on_wait
            )
            outcome = "answered"
        except StorePartial as part:
            answers, replies = without_frames(part), part.replies
            outcome = outcome_of(part)
        except StoreError as error:
            duration_s = time.perf_counter() - started_s
            counts.count_call(outcome_of(error), call_s=duration_s)
            self._dual_writes.retry()
            self._failed(error)
            return without_frames(error), ()
        counts.count_call(outcome, call_s=time.perf_counter() - started_s)
        if plan is not None and self._appends is not None:
            parts = answers.answers if isinstance(answers, StorePartial) else answers
            self._appends.complete(plan, parts[0])
        if self._breaker.state is not BreakerState.CLOSED:
            log.warning("the store answers again")
        self._breaker.succeeded()
        if feeds:
            self._feeds.note(replies[: len(feeds)])
        if query is not None:
            first = len(feeds)
            self._tables.take_replies(query, replies[first : first + len(tables)])
        first = len(feeds) + len(tables)
        last = len(replies) - len(dual_writes)
        if calls:
            self._dual_writes.settle(written, replies[last:])
        return answers, replies[first:last]

    def close(self) -> None:
        """Stop the prober and close the connection."""
        self._prober.close()
        self._store.close()

    def _failed(self, error: StoreError) -> None:
        self._feeds.retry()
        log.debug("%s", error)
        before = self._breaker.state
        if self._breaker.failed():
            if before is BreakerState.CLOSED:
                log.warning("the store is left alone until it answers: %s", error)
            self._prober.wake()


def _newest_us(batches: Sequence[Purchases], write: Sequence[bool]) -> int | None:
    """
    Return the event time of the newest purchase that is written; None without one.
    """
    return max(
        [
            int(np.maximum.reduce(batch.event_time_us))
            for batch, writes in zip(batches, write, strict=True)
            if writes
        ],
        default=None,
    )


# Combine a partial reply of the store with values that this process computes.

I64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]


def empty_reply(call: Call) -> tuple[Answer, Bool]:
    """Return an empty reply to a call, with all of its keys marked as lost."""
    keys = len(call.keys)
    events = sum(map(len, call.order))
    return ([b""] * keys, bytes(events)), np.ones(keys, np.bool_)


def reply_of_call(
    answers: list[Answer] | StoreError, position: int, *, call: Call
) -> tuple[Answer, Bool | None]:
    """
    Extract the reply to one call from the store's replies to several, or its error.

    Returns:
        The reply, and which keys it lacks, bool [K]; None when it is complete. A call
        without keys is not made, and lacks nothing.
    """
    if not call.keys:
        return NO_ANSWER, None
    if isinstance(answers, StorePartial):
        lost = np.array(answers.lost[position])
        return answers.answers[position], lost if lost.any() else None
    if isinstance(answers, StoreError):
        return empty_reply(call)
    return answers[position], None


def keys_of_rows(call: Call) -> I64:
    """
    Return, per entity and row of the batch, the index of its key; int64 [entities, N].
    """
    return np.stack(
        [
            code + first
            for code, first in zip(call.code, call.first_key[:-1], strict=True)
        ]
    )


def merge_replies(call: Call, answer: Answer, own: Answer, *, lost: Bool) -> Answer:
    """
    Replace the lost parts of the store's reply with our own.

    Args:
        call: The call.
        answer: The store's reply.
        own: Our own reply to the same call.
        lost: Keys for which the store did not reply; bool [K].
    """
    values = [
        mine if is_lost else theirs
        for theirs, mine, is_lost in zip(answer[0], own[0], lost.tolist(), strict=True)
    ]
    # Status bytes are in the order of entities, then keys.
    key = np.concatenate(
        [
            code[order] + first
            for code, order, first in zip(
                call.code, call.order, call.first_key[:-1], strict=True
            )
        ]
    )
    theirs, mine = (np.frombuffer(one[1], np.uint8) for one in (answer, own))
    return values, np.where(lost[key], mine, theirs).tobytes()


def select_rows(purchases: Purchases, chosen: Bool) -> Purchases:
    """Select rows of a batch; bool [N]."""
    places = np.flatnonzero(chosen).tolist()
    if len(places) == len(purchases):
        return purchases
    return Purchases(
        transaction_id=[purchases.transaction_id[at] for at in places],
        entity_id=[[column[at] for at in places] for column in purchases.entity_id],
        event_time_us=purchases.event_time_us[chosen],
        cents=purchases.cents[chosen],
        fields={name: column[chosen] for name, column in purchases.fields.items()},
    )


F64 = npt.NDArray[np.float64]

_COLD_START = np.uint32(Degraded.COLD_START)
_FEED_STALE = np.uint32(Degraded.FEED_STALE)
_LAST_KNOWN = np.uint32(Degraded.LAST_KNOWN_VECTOR)
_STATE_CORRUPT = np.uint32(Degraded.STATE_CORRUPT)
_UNAVAILABLE = np.uint32(Degraded.STORE_UNAVAILABLE)


class FallbackChain:
    """
    Score batches for one product, whatever the state of its store.

    Args:
        spec: The product's features.
        store: Its store.
        last_known: Cache to use when the store is unavailable.
        feeds: The product's watermarks.
        breaker: Circuit breaker of the store.
        tables: The product's tables.
        lookups: Look-ups for each row; only stored decisions unless given.
        spool: Takes the rows that were not applied; None drops and counts them.
        updates: Write the purchases that are scored; False leaves that to a stream.
        appends: Appends purchases in place to the values of `last_known`; None reads
            every value.
        wall_us: The clock, µs since the epoch.
    """

    def __init__(
        self,
        spec: FeatureSpec,
        store: RedisStore,
        *,
        last_known: LastKnown,
        feeds: Feeds,
        breaker: CircuitBreaker,
        tables: Tables,
        lookups: Lookups | None = None,
        spool: Spool | None = None,
        updates: bool = True,
        appends: InPlaceAppends | None = None,
        wall_us: Callable[[], int] = lambda: time.time_ns() // 1000,
    ) -> None:
        self.counts = StoreCounts()
        self.breaker = breaker
        self.feeds = feeds
        self.last_known = last_known
        self.tables = tables
        self._lookups = lookups or Lookups(spec)
        self._caller = StoreCaller(
            store,
            breaker=breaker,
            feeds=feeds,
            tables=tables,
            lookups=self._lookups,
            counts=self.counts,
            updates=updates,
            dual_writes=DualWrites(spec, store, spool=self._spool_rows),
            appends=appends,
        )
        self._spec = spec
        self._spool = spool
        self._updates = updates
        self._wall_us = wall_us
        self._essentials = Essentials(spec)
        # A history is of the stored events alone, whoever else is in the batch.
        apart = spec.history is not None and not updates
        spare = MAX_BATCH_ROWS if apart else 0
        self._online = OnlineFeatures(spec, store, spare=spare)
        self._store = store

    def score(
        self,
        batches: Sequence[Purchases],
        *,
        write: Sequence[bool],
        on_wait: WaitCallback = do_nothing,
    ) -> list[Scored]:
        """
        Apply batches of purchases and read their vectors, in one round trip at most.

        Args:
            batches: Each is applied completely, then read; see `OnlineFeatures.score`.
            write: Per batch, False for a dry run.
            on_wait: Called while the store works; not called if the store is not.
        """
        now_us = self._wall_us()
        packed = [self._online.pack(batch) for batch in batches]
        query = self.tables.plan(batches) if self._spec.tables else None

        def work_while_waiting() -> None:
            on_wait()
            self.last_known.settle()

        answers, found = self._caller.call(
            packed, write, now_us=now_us, query=query, on_wait=work_while_waiting
        )
        lookups = self._lookups.read(batches, found)
        stale = self.feeds.stale(now_us)
        if query is not None:
            held = self.tables.read(query)
            packed = [
                structs.replace(one, tables=table.columns)
                for one, table in zip(packed, held, strict=True)
            ]
        scored = []
        for position, (one, writes) in enumerate(zip(packed, write, strict=True)):
            own = lookups[position]
            answer, lost = reply_of_call(answers, position, call=one.call)
            if lost is None:
                result = self._read_reply(one, answer, writes=writes, lookups=own)
            else:
                unknown = isinstance(answers, OutcomeUnknown)
                applied = Applied.UNKNOWN if unknown else Applied.NO
                result = self._read_partly(
                    one,
                    answer,
                    lost=lost,
                    writes=writes,
                    applied=applied,
                    lookups=own,
                )
            if np.count_nonzero(own.degraded):
                result.degraded[:] |= own.degraded
            if self._spec.fields:
                result.degraded[:] |= self._essentials.missing_fields(
                    one.purchases.fields, len(one.purchases)
                )
            if query is not None:
                self._add_tables(result, held[position])
            if stale:
                result.degraded[:] |= _FEED_STALE | self._essentials.stale_feeds(stale)
            scored.append(result)
        return scored

    def wait_for_store(self, deadline_s: float) -> None:
        """Set how long each call of the store may take from now on."""
        self._store.deadline_s = deadline_s

    def _add_tables(self, result: Scored, held: TableLookup) -> None:
        """Add the degraded bits and the age of the tables' numbers to a result."""
        result.degraded[:] |= held.degraded
        result.degraded[:] |= self._essentials.missing_table_numbers(
            held.columns, len(held.degraded)
        )
        np.maximum(result.age_us, held.age_us, out=result.age_us)

    def warm(self, purchases: Purchases) -> None:
        """Use every level of the chain once, dry: the first use of each is slow."""
        self.score([purchases], write=[False])
        packed = self._online.pack(purchases)
        if not packed.call.keys:
            return
        answer, lost = empty_reply(packed.call)
        self._read_partly(
            packed,
            answer,
            lost=lost,
            writes=False,
            applied=Applied.NO,
            lookups=NO_LOOKUPS,
        )

    def close(self) -> None:
        """Stop the prober and close the connection."""
        self._caller.close()

    def _read_reply(
        self, one: Packed, answer: Answer, *, writes: bool, lookups: LookupResult
    ) -> Scored:
        """Read the store's reply, and cache its values for a later failure."""
        read = self._online.read(one, answer)
        corrupt = (read.degraded & _STATE_CORRUPT) != 0
        if np.count_nonzero(corrupt):
            read.degraded[:] |= self._essentials.missing_entities(
                np.broadcast_to(corrupt, (len(self._spec.entities), len(corrupt)))
            )
        elif writes:  # a dry run's values contain events that never happened
            self.last_known.put(one.call.keys, answer[0])
        return Scored(
            features=read.features,
            degraded=read.degraded,
            applied=read.applied,
            age_us=np.zeros(len(read.applied), np.int64),
            lookups=lookups,
            history=read.history,
        )

    def _read_partly(
        self,
        one: Packed,
        answer: Answer,
        *,
        lost: npt.NDArray[np.bool_],
        writes: bool,
        applied: Applied,
        lookups: LookupResult,
    ) -> Scored:
        """Use the store's reply, and where it is lost last known values or defaults."""
        call = one.call
        found = self.last_known.find(call.keys)
        self.counts.count_last_known(found.known[lost])
        own = apply_purchases(found.values, call)
        answer = merge_replies(call, answer, own, lost=lost)
        read = self._online.read(one, answer)
        key = keys_of_rows(call)
        lost_entities = lost[key]
        fallback_rows = lost_entities.any(axis=0)
        corrupt = (read.degraded & _STATE_CORRUPT) != 0
        if writes:
            if self._updates:
                self._spool_rows(select_rows(one.purchases, fallback_rows))
            if not corrupt.any():
                replied = (~lost).nonzero()[0].tolist()
                self.last_known.put(
                    [call.keys[at] for at in replied], [answer[0][at] for at in replied]
                )
                self.last_known.amend(call.keys, answer[0])
        missing = lost_entities & ~found.known[key]
        age_us = np.where(lost_entities, found.age_us[key], 0)
        degraded = self._essentials.missing_entities(missing | corrupt)
        degraded |= self._essentials.too_old(age_us)
        degraded |= missing.any(axis=0) * _UNAVAILABLE
        degraded |= (lost_entities & ~missing).any(axis=0) * _LAST_KNOWN
        # Without any value, an entity cannot be recognised as new.
        cold = ~missing.any(axis=0) * _COLD_START
        degraded |= read.degraded & (~_COLD_START | cold)
        return Scored(
            features=self._defaulted(
                read.features, one, missing=missing, degraded=degraded
            ),
            degraded=degraded,
            applied=np.where(fallback_rows, np.uint8(applied), read.applied),
            age_us=age_us.max(axis=0),
            lookups=lookups,
            history=self._known_history(read.history, missing),
        )

    def _known_history(
        self, history: UserHistory | None, missing: npt.NDArray[np.bool_]
    ) -> UserHistory | None:
        """Empty the histories of the rows whose entity has no known value."""
        form = self._spec.history
        if history is None or form is None:
            return history
        unknown = missing[form.entity]
        history.fill(unknown, no_history(form, int(unknown.sum())))
        return history

    def _defaulted(
        self,
        features: F64,
        one: Packed,
        *,
        missing: npt.NDArray[np.bool_],
        degraded: npt.NDArray[np.uint32],
    ) -> F64:
        """Set features that need a missing entity to their defaults."""
        # [N, entities] @ [entities, F]: number of missing entities that each feature
        # needs.
        lacking = missing.T.astype(np.int64) @ self._essentials.needs
        guard = self._online.guard
        defaults = self._online.defaults(one)
        degraded |= lacking.any(axis=1) * guard.bits
        return np.where(lacking, defaults, features)

    def _spool_rows(self, purchases: Purchases) -> None:
        """Pass rows whose purchase is not applied, or maybe not, to the spool."""
        if self._spool is not None and self._spool.append(purchases):
            self.counts.spooled += len(purchases)
        else:
            self.counts.spool_full += len(purchases)

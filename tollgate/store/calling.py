"""
Call the store once per batch, if the circuit breaker allows it.

The same flush also reads feed watermarks, values of tables, lists and stored decisions.
The replies go to the objects that manage them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any

from tollgate.errors import StoreError, StorePartial, without_frames
from tollgate.store.breaker import BreakerState, CircuitBreaker
from tollgate.store.connection import WaitCallback, do_nothing
from tollgate.store.feeds import Feeds
from tollgate.store.lookups import Lookups
from tollgate.store.online import Packed
from tollgate.store.prober import Prober
from tollgate.store.redis import Answer, Mode, RedisStore
from tollgate.store.scored import StoreCounts, outcome_of
from tollgate.store.tables import TableQuery, Tables

log = logging.getLogger(__name__)


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
    ) -> None:
        self._store = store
        self._breaker = breaker
        self._feeds = feeds
        self._tables = tables
        self._lookups = lookups
        self._counts = counts
        self._updates = updates
        self._prober = Prober(breaker, store.probe)

    def call(
        self,
        packed: Sequence[Packed],
        write: Sequence[bool],
        *,
        now_us: int,
        query: TableQuery,
        on_wait: WaitCallback = do_nothing,
    ) -> tuple[list[Answer] | StoreError, Sequence[Any]]:
        """
        Call the store if the circuit breaker allows it.

        Args:
            packed: Batches.
            write: Per batch, False for a dry run.
            now_us: The clock.
            query: The values of tables that the batches need.
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
        feeds = self._feeds.commands(now_us, newest_us=_newest_us(packed, write))
        tables = query.commands()
        lookups = self._lookups.commands([one.purchases for one in packed])
        extra_commands = [*feeds, *tables, *lookups]
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
            counts.call_s = time.perf_counter() - started_s
            counts.calls[outcome_of(error)] += 1
            self._failed(error)
            return without_frames(error), ()
        counts.call_s = time.perf_counter() - started_s
        counts.calls[outcome] += 1
        if self._breaker.state is not BreakerState.CLOSED:
            log.warning("the store answers again")
        self._breaker.succeeded()
        if feeds:
            self._feeds.note(replies[: len(feeds)])
        self._tables.take_replies(query, replies[len(feeds) : len(feeds) + len(tables)])
        return answers, replies[len(feeds) + len(tables) :]

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


def _newest_us(packed: Sequence[Packed], write: Sequence[bool]) -> int | None:
    """
    Return the event time of the newest purchase that is written; None without one.
    """
    return max(
        (
            int(one.purchases.event_time_us.max())
            for one, writes in zip(packed, write, strict=True)
            if writes
        ),
        default=None,
    )

"""Limit the rate of writes, so that decisions do not wait for Redis."""

from __future__ import annotations

import time
from collections.abc import Callable

from tollgate.features.spec.feature_spec import FeatureSpec
from tollgate.store.lookups import PURCHASES, feed_key
from tollgate.store.redis.redis_store import RedisStore

_PAUSE = 2.0  # pause per call duration: two thirds of the time are for decisions
_MOST_PAUSE_S = 0.010  # a decision waits for 5 ms at most; longer pauses do not help
_LOOK_S = 2.0  # serving steps move the watermark once a second


class Pace:
    """
    Limit the rate of calls.

    Args:
        rate_per_s: Most events per second; 0 for no limit. None waits after each call
            twice as long as the call took, while the product serves: a busy store is
            slow, and gets longer pauses.
        watermark: Returns a value that changes while the product serves; read every 2
            s, with None.
        clock: Monotonic, seconds.
        sleep: Waits for a number of seconds.
    """

    def __init__(
        self,
        rate_per_s: float | None,
        *,
        watermark: Callable[[], object],
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._rate_per_s = rate_per_s
        self._watermark = watermark
        self._clock = clock
        self._sleep = sleep
        self._seen = watermark() if rate_per_s is None else None
        self._look_s = clock() + _LOOK_S
        self._serving = True  # until the watermark stands still

    def begin(self) -> float:
        """Return the time at which a call starts; seconds."""
        return self._clock()

    def end(self, started_s: float, events: int) -> None:
        """
        Wait until a call with so many events has used up its time.

        Raises:
            StoreError: The store did not reply.
        """
        now_s = self._clock()
        taken_s = now_s - started_s
        if self._rate_per_s is None:
            if now_s >= self._look_s:
                self._look_s = now_s + _LOOK_S
                seen, self._seen = self._seen, self._watermark()
                self._serving = seen != self._seen
            if self._serving:
                self._sleep(min(taken_s * _PAUSE, _MOST_PAUSE_S))
        elif self._rate_per_s:
            self._sleep(max(0.0, events / self._rate_per_s - taken_s))


def open_pace(spec: FeatureSpec, store: RedisStore, rate_per_s: float | None) -> Pace:
    """
    Open the rate limit for writes into a product's store.

    Raises:
        StoreError: The store did not reply.
    """
    command = (b"GET", feed_key(spec.product, PURCHASES))

    def watermark() -> object:
        _, (value,) = store.flush([], extra_commands=[command])
        return value if isinstance(value, bytes) else None

    return Pace(rate_per_s, watermark=watermark)

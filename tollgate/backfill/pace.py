"""Write no faster than one may, so that decisions do not wait for Redis."""

from __future__ import annotations

import time
from collections.abc import Callable

from tollgate.features.spec import FeatureSpec
from tollgate.store.feeds import PURCHASES, feed_key
from tollgate.store.redis import RedisStore

_PAUSE = 2.0  # of the time that a call took: two thirds of it are for decisions
_MOST_PAUSE_S = 0.010  # a decision waits for 5 ms at most; longer pauses help none
_LOOK_S = 2.0  # whoever decides moves the watermark once a second


class Pace:
    """
    Spreads calls over time.

    Args:
        rate_per_s: Most events a second; 0 for no bound. None waits after each call
            twice as long as it took, while somebody decides: a busy store is slow,
            and gets longer pauses.
        watermark: What moves while somebody decides; looked at every 2 s, with None.
        clock: Monotonic, seconds.
        sleep: Waits so many seconds.
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
        self._serving = True  # until it is known that nobody decides

    def begin(self) -> float:
        """Note when a call begins; seconds."""
        return self._clock()

    def end(self, begun_s: float, events: int) -> None:
        """
        Wait until a call of so many events has taken its time.

        Raises:
            StoreError: The store has no answer.
        """
        now_s = self._clock()
        taken_s = now_s - begun_s
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
    Make the pace for what is written into a product's store.

    Raises:
        StoreError: The store has no answer.
    """
    command = (b"GET", feed_key(spec.product, PURCHASES))

    def watermark() -> object:
        _, (value,) = store.flush([], beside=[command])
        return value if isinstance(value, bytes) else None

    return Pace(rate_per_s, watermark=watermark)

"""Answers that a client remembers, for the same purchase asked once more."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable

from clients.decision import Decision
from clients.purchase import Purchase


class Memory:
    """
    The last answers of servers, by transaction id; threads may share it.

    Args:
        size: How many at most; the oldest leaves first.
        age_s: How long one may be used. No longer than the server's own window for
            answers to an id, after which it would decide anew.
        clock: Monotonic, seconds.
    """

    def __init__(self, size: int, *, age_s: float, clock: Callable[[], float]) -> None:
        self._size = size
        self._age_s = age_s
        self._clock = clock
        self._lock = threading.Lock()
        self._known: OrderedDict[bytes, tuple[float, tuple[bytes, ...], Decision]] = (
            OrderedDict()
        )

    def __len__(self) -> int:
        return len(self._known)

    def remember(self, purchase: Purchase, decision: Decision) -> None:
        """Keep what a server answered; the first answer to a purchase stays."""
        if not self._size or not purchase.transaction_id:
            return
        with self._lock:
            if self._found(purchase) is not None:
                return
            self._known.pop(purchase.transaction_id, None)
            while len(self._known) >= self._size:
                self._known.popitem(last=False)
            entry = (self._clock(), purchase.parts, decision)
            self._known[purchase.transaction_id] = entry

    def recall(self, purchase: Purchase) -> Decision | None:
        """Find the answer to the same purchase: same id, same content, not too old."""
        with self._lock:
            return self._found(purchase)

    def _found(self, purchase: Purchase) -> Decision | None:
        since_s, parts, decision = self._known.get(
            purchase.transaction_id, (0.0, (), None)
        )
        if decision is None or parts != purchase.parts:
            return None
        return decision if self._clock() - since_s <= self._age_s else None

"""Cache server responses on the client, for repeated requests of the same purchase."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable

from clients.decision import Decision
from clients.purchase import Purchase


class Memory:
    """
    Cache the latest decisions of servers by transaction id; threads may share it.

    Args:
        size: Maximum number of entries; the oldest is evicted first.
        age_s: Maximum age of an entry, seconds. It must not exceed the server's window
            for stored decisions, after which the server would decide again.
        clock: Function that returns monotonic seconds.
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
        """Store a server's decision; the first decision for a purchase stays."""
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
        """
        Return the stored decision for the same id and content, unless it is too old.
        """
        with self._lock:
            return self._found(purchase)

    def _found(self, purchase: Purchase) -> Decision | None:
        since_s, parts, decision = self._known.get(
            purchase.transaction_id, (0.0, (), None)
        )
        if decision is None or parts != purchase.parts:
            return None
        return decision if self._clock() - since_s <= self._age_s else None

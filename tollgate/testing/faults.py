"""What can be wrong with a test server."""

from __future__ import annotations

import threading
from typing import Literal

import msgspec

Kind = Literal["fail", "slow", "stall"]


class Fault(msgspec.Struct, frozen=True):
    """
    Something that happens to a request.

    Attributes:
        kind: It fails; its answer comes late; it gets none.
        code: Name of a gRPC status, of one that fails.
        words: With it.
        delay_s: Of one that is slow.
    """

    kind: Kind
    code: str = ""
    words: str = ""
    delay_s: float = 0.0


class Faults:
    """The fault of the moment; threads may share it."""

    def __init__(self) -> None:
        self._fault: Fault | None = None
        self._left: int | None = None  # requests it still happens to; None: all
        self._lock = threading.Lock()
        self.healed = threading.Event()  # ends what is stalled or slow

    def begin(self, fault: Fault, *, requests: int | None) -> None:
        """Let a fault happen, in the place of any other, to so many requests."""
        with self._lock:
            self._fault, self._left = fault, requests
            self.healed = threading.Event()

    def end(self) -> None:
        """Let no fault happen, and what is stalled go on."""
        with self._lock:
            self._fault = None
            self.healed.set()

    def take(self) -> tuple[Fault | None, threading.Event]:
        """Tell a request what happens to it, and what ends that early."""
        with self._lock:
            fault = self._fault
            if fault is not None and self._left is not None:
                self._left -= 1
                if self._left <= 0:
                    self._fault = None
            return fault, self.healed

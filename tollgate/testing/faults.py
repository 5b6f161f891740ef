"""The faults that a test server can simulate."""

from __future__ import annotations

import threading
from typing import Literal

import msgspec

Kind = Literal["fail", "slow", "stall"]


class Fault(msgspec.Struct, frozen=True):
    """
    Describe a fault of a request.

    Attributes:
        kind: The request fails; its answer is late; it gets none.
        code: Name of the gRPC status, for `fail`.
        words: Message of the status, for `fail`.
        delay_s: Delay, for `slow`.
    """

    kind: Kind
    code: str = ""
    words: str = ""
    delay_s: float = 0.0


class Faults:
    """Hold the current fault; threads may share it."""

    def __init__(self) -> None:
        self._fault: Fault | None = None
        self._left: int | None = None  # requests that it still affects; None: all
        self._lock = threading.Lock()
        self.healed = threading.Event()  # set to end stalled and slow requests

    def begin(self, fault: Fault, *, requests: int | None) -> None:
        """Start a fault, which replaces any other; it affects `requests` requests."""
        with self._lock:
            self._fault, self._left = fault, requests
            self.healed = threading.Event()

    def end(self) -> None:
        """End the fault, and release stalled requests."""
        with self._lock:
            self._fault = None
            self.healed.set()

    def take(self) -> tuple[Fault | None, threading.Event]:
        """Return the fault of a request, and the event that ends it early."""
        with self._lock:
            fault = self._fault
            if fault is not None and self._left is not None:
                self._left -= 1
                if self._left <= 0:
                    self._fault = None
            return fault, self.healed

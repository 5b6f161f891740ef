"""
Authenticate the features and context that the feature step sends to the decision step.

The feature step signs the features and the context of each request with the first 16
bytes of an HMAC-SHA256. The decision step accepts each signed request once, and only
while it is fresh. So it rejects a context that is changed, forged or replayed.
The server draws the key at each start and passes it to its steps in the environment.

Source of the replay window: RFC 4303, section 3.4.3 and appendix A2.
"""

from __future__ import annotations

import hashlib
import hmac
import itertools
import os
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tollgate.schema import CONTEXT_KEY_VARIABLE, TAG_BYTES

MAX_AGE_US = 60_000_000  # no caller waits for an answer that long
WINDOW = 8192  # requests that may overtake one another
_KEY_BYTES = 32

# Reasons to refuse a request; the values of the metrics label `reason`.
DIRECT = "direct"
UNSIGNED = "unsigned"
REPLAYED = "replayed"
EXPIRED = "expired"
REASONS = (DIRECT, UNSIGNED, REPLAYED, EXPIRED)

Array = npt.NDArray[np.void]
Floats = npt.NDArray[Any]


def read_key() -> bytes:
    """
    Read the key that all steps of a server share from the environment.

    Raises:
        ValueError: The variable is missing, or is not 64 hexadecimal digits.
    """
    text = os.environ.get(CONTEXT_KEY_VARIABLE, "")
    try:
        key = bytes.fromhex(text)
    except ValueError:
        key = b""
    if len(key) != _KEY_BYTES:
        raise ValueError(
            f"{CONTEXT_KEY_VARIABLE} is not 64 hexadecimal digits. `tollgate up` draws "
            "a key at each start; for another server set one, such as the output of "
            "`openssl rand -hex 32`"
        )
    return key


class ContextSigner:
    """
    Sign the features and the context of requests; one per feature step.

    Threads may share one.

    Args:
        key: 32 bytes, shared with the decision step.
    """

    def __init__(self, key: bytes) -> None:
        self._tags = _Tags(key)
        self._numbers = itertools.count()  # each number goes to one thread
        self._stream = int.from_bytes(os.urandom(8), "little")

    def sign(self, features: Floats, context: Array, *, bounds: Sequence[int]) -> None:
        """
        Write stream, sequence number and tag into the first row of each request.

        Args:
            features: [N, F].
            context: Rows of `tollgate.schema.context_dtype`; [N], changed.
            bounds: First row of each request, then the end of the last.
        """
        count = len(bounds) - 1
        firsts = _first_rows(context, bounds)
        context["stream"][firsts] = self._stream
        context["sequence"][firsts] = list(itertools.islice(self._numbers, count))
        tags = self._tags.compute(features, context, bounds=bounds)
        context["tag"][firsts] = np.frombuffer(tags, f"V{TAG_BYTES}")


class ContextVerifier:
    """
    Accept each signed request once; one per decision step.

    Args:
        key: 32 bytes, shared with the feature step.
    """

    def __init__(self, key: bytes) -> None:
        self._tags = _Tags(key)
        self._windows: dict[int, _ReplayWindow] = {}

    def refusals(
        self, features: Floats, context: Array, *, bounds: Sequence[int]
    ) -> dict[int, str]:
        """
        List the requests that must not be decided.

        Args:
            features: [N, F].
            context: Rows of `tollgate.schema.context_dtype`; [N], contiguous.
            bounds: First row of each request, then the end of the last.

        Returns:
            Position of the request -> one of REASONS; empty when all are genuine.
        """
        firsts = _first_rows(context, bounds)
        found = {}
        now_us = time.monotonic_ns() // 1000
        expected = self._tags.compute(features, context, bounds=bounds)
        received = context["tag"][firsts].tobytes()
        genuine = hmac.compare_digest(expected, received)
        streams = context["stream"][firsts].tolist()
        numbers = context["sequence"][firsts].tolist()
        arrivals = context["arrival_us"][firsts].tolist()
        fresh = now_us - MAX_AGE_US <= min(arrivals) and max(arrivals) <= now_us
        if not (genuine and fresh):
            for place, arrival_us in enumerate(arrivals):
                tag = slice(place * TAG_BYTES, (place + 1) * TAG_BYTES)
                if not hmac.compare_digest(expected[tag], received[tag]):
                    found[place] = UNSIGNED
                elif not 0 <= now_us - arrival_us <= MAX_AGE_US:
                    found[place] = EXPIRED
        windows: dict[int, _ReplayWindow] = {}  # of signed requests only
        for place, (stream, number) in enumerate(zip(streams, numbers, strict=True)):
            if place in found:
                continue
            if stream not in windows:
                windows[stream] = self._window(stream, now_us)
            if not windows[stream].accept(number):
                found[place] = REPLAYED
        return found

    def _window(self, stream: int, now_us: int) -> _ReplayWindow:
        window = self._windows.get(stream)
        if window is None:
            # A context of a stream that was silent for longer than this has expired.
            self._windows = {
                name: one
                for name, one in self._windows.items()
                if now_us - one.used_us <= 2 * MAX_AGE_US
            }
            window = self._windows[stream] = _ReplayWindow()
        window.used_us = now_us
        return window


class _ReplayWindow:
    """Remember which of a stream's latest sequence numbers were accepted."""

    def __init__(self) -> None:
        self.used_us = 0
        self._newest = -1
        self._accepted = [-1] * WINDOW  # each number at its remainder

    def accept(self, number: int) -> bool:
        """Accept a number; False if it was accepted before or is too old to know."""
        place = number % WINDOW
        if number <= self._newest - WINDOW or self._accepted[place] == number:
            return False
        self._accepted[place] = number
        self._newest = max(self._newest, number)
        return True


class _Tags:
    """
    Compute tags: HMAC-SHA256 (RFC 2104), whose state after the key is computed once.

    Args:
        key: 32 bytes.
    """

    def __init__(self, key: bytes) -> None:
        block = key.ljust(hashlib.sha256().block_size, b"\0")
        self._inner = hashlib.sha256(bytes(one ^ 0x36 for one in block))
        self._outer = hashlib.sha256(bytes(one ^ 0x5C for one in block))

    def compute(
        self, features: Floats, context: Array, *, bounds: Sequence[int]
    ) -> bytes:
        """Return the tag of each request over all its bytes except the tag itself."""
        rows = context.view(np.uint8).data
        numbers = np.ascontiguousarray(features).reshape(-1).view(np.uint8).data
        width = context.dtype.itemsize
        wide = len(numbers) // len(context)
        assert context.dtype.fields is not None
        tag = context.dtype.fields["tag"][1]
        inner_copy, outer_copy = self._inner.copy, self._outer.copy
        tags = []
        for start, stop in itertools.pairwise(bounds):
            first = start * width
            inner, outer = inner_copy(), outer_copy()
            inner.update(rows[first : first + tag])
            inner.update(rows[first + tag + TAG_BYTES : stop * width])
            inner.update(numbers[start * wide : stop * wide])
            outer.update(inner.digest())
            tags.append(outer.digest()[:TAG_BYTES])
        return b"".join(tags)


def _first_rows(context: Array, bounds: Sequence[int]) -> list[int] | slice:
    """Return the first row of each request; a slice of all rows is faster."""
    firsts = list(bounds[:-1])
    return slice(None) if firsts == list(range(len(context))) else firsts

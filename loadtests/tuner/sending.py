"""Send requests at their scheduled times, or one after the other."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from loadtests.paced.callers import call_one_by_one, send_at_times
from loadtests.paced.calls import Results
from loadtests.requests.open_loop import F64


class Sender(Protocol):
    """Interface of the senders."""

    @property
    def name(self) -> str:
        """Return a name of one or two words."""

    def at_times(self, requests: Sequence[Any], at_s: F64) -> Results:
        """
        Send each when it is due, ascending from 0, without waiting for any answer.
        """

    def one_by_one(self, requests: Sequence[Any], *, run_s: float) -> Results:
        """Send each when the one before is answered, for `run_s` seconds."""


class PythonSender(msgspec.Struct, frozen=True):
    """
    Sender with asyncio, for some hundred requests a second.

    Attributes:
        grpc_url: host:port.
        timeout_s: Time after which a caller gives up, s.
    """

    grpc_url: str
    timeout_s: float
    name: str = "asyncio"

    def at_times(self, requests: Sequence[Any], at_s: F64) -> Results:
        """See `Sender`."""
        return send_at_times(
            requests, at_s, grpc_url=self.grpc_url, timeout_s=self.timeout_s
        )

    def one_by_one(self, requests: Sequence[Any], *, run_s: float) -> Results:
        """See `Sender`."""
        return asyncio.run(
            call_one_by_one(
                requests, grpc_url=self.grpc_url, timeout_s=self.timeout_s, run_s=run_s
            )
        )

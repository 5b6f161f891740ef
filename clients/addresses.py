"""The servers a client may ask, and which of them is next."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Sequence
from typing import Any

import msgspec

from clients.breaker import Breaker, BreakerRules
from tollgate.errors import InputError


class Address(msgspec.Struct, frozen=True, eq=False):
    """
    One server, or a name behind which gRPC finds several.

    Attributes:
        name: As the caller gave it.
        channel: The connection, kept alive and shared by all calls.
        infer: The stub's method.
        breaker: What is known of it.
    """

    name: str
    channel: Any
    infer: Any
    breaker: Breaker


class Ring:
    """
    Addresses, asked in turn; threads may share it.

    Args:
        names: At least one, each once.
        opened: Opens the connection to one: its channel and its method.
        rules: When a breaker opens.
        clock: Monotonic, seconds.

    Raises:
        InputError: There is none, or one twice.
    """

    def __init__(
        self,
        names: Sequence[str],
        opened: Callable[[str], tuple[Any, Any]],
        *,
        rules: BreakerRules,
        clock: Callable[[], float],
    ) -> None:
        for name in names:
            if not name or list(names).count(name) > 1:
                raise InputError("addresses", f"{name!r} is empty or stands twice")
        if not names:
            raise InputError("addresses", "there is none; give host:port")
        self.addresses = tuple(
            Address(name, *opened(name), Breaker(rules, clock)) for name in names
        )
        self._turn = itertools.count()

    def pick(self, tried: Collection[Address]) -> Address | None:
        """
        Take the next address whose breaker allows a call.

        Args:
            tried: Those that are left out.

        Returns:
            None when no other may be asked now.
        """
        first = next(self._turn)
        for step in range(len(self.addresses)):
            address = self.addresses[(first + step) % len(self.addresses)]
            if address not in tried and address.breaker.allows():
                return address
        return None

    def others(self, tried: Collection[Address]) -> bool:
        """Tell whether there is one more that is not known to be away."""
        return any(
            address not in tried and not address.breaker.state
            for address in self.addresses
        )

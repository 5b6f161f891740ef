"""Hold the addresses of the servers and choose the next one to call."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Sequence
from typing import Any

import msgspec

from tollgate.errors import InputError
from tollgate_client.breaker import Breaker, BreakerRules


class Address(msgspec.Struct, frozen=True, eq=False):
    """
    The address of one server, or a DNS name behind which gRPC finds several.

    Attributes:
        name: The address as the caller gave it.
        channel: The connection, kept alive and shared by all calls.
        infer: The stub's method for ModelInfer.
        breaker: Circuit breaker of this address.
    """

    name: str
    channel: Any
    infer: Any
    breaker: Breaker


class Ring:
    """
    Choose among addresses in round-robin order; threads may share it.

    Args:
        names: At least one address, each once.
        opened: Function that opens the connection to an address and returns its channel
            and its method.
        rules: Conditions under which a circuit breaker opens.
        clock: Function that returns monotonic seconds.

    Raises:
        InputError: `names` is empty, or holds an address twice.
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
        Return the next address whose circuit breaker allows a call.

        Args:
            tried: Addresses to leave out.

        Returns:
            The address; None when no other address may be called now.
        """
        first = next(self._turn)
        for step in range(len(self.addresses)):
            address = self.addresses[(first + step) % len(self.addresses)]
            if address not in tried and address.breaker.allows():
                return address
        return None

    def others(self, tried: Collection[Address]) -> bool:
        """Return whether another address is left that is not known to be down."""
        return any(
            address not in tried and not address.breaker.state
            for address in self.addresses
        )

"""Open a device's ports on the addresses that its operator names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tollgate.errors import SetupError


@contextmanager
def split_address(address: str) -> Iterator[tuple[str, int]]:
    """
    Split host:port for the code that opens it; an IPv6 host stands in brackets.

    Raises:
        SetupError: That code could not open it.
    """
    host, _, digits = address.rpartition(":")
    try:
        port = int(digits)
        if not 0 <= port < 1 << 16 or host.startswith("unix:"):
            raise ValueError("no port of TCP")
        yield host.strip("[]"), port
    except (OSError, ValueError) as error:
        remedy = "stop the other process, or choose another port"
        raise SetupError(f"{address} cannot be used", remedy=remedy) from error

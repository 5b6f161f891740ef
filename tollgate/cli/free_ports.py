"""Check that ports are free before a command prepares or writes anything."""

from __future__ import annotations

import re
from collections.abc import Mapping

from tollgate.errors import InputError, SetupError

_MOST_PORT = 65_535


def require_free_ports(host: str, ports: Mapping[str, int]) -> None:
    """
    Refuse ports that cannot be listened on.

    Args:
        ports: TCP port by the option, and setting, that names it; 0 takes a free one,
            or none.

    Raises:
        InputError: A port cannot be listened on for another reason, or two are the
            same.
        SetupError: A process, which the message names, already listens on one.
    """
    from tollgate.server.processes.environment import require_port
    from tollgate.server.processes.listening_ports import holder_of

    seen: dict[int, str] = {}
    for option, port in ports.items():
        if not port:
            continue
        if port in seen:
            problem = f"{port} is the port of {seen[port]}, too; choose another one"
            raise InputError(option, problem)
        seen[port] = option
        try:
            require_port(port, host, purpose=option)
        except SetupError as exc:
            holder = holder_of(port)
            if not holder:
                problem = f"cannot listen on {host}:{port}"
                if isinstance(exc.__cause__, OSError):
                    problem += f": {exc.__cause__.strerror}"
                text = f"{problem}; choose another address or port"
                raise InputError(option, text) from exc
            raise SetupError(
                f"{option}: port {port} on {host} is in use by {holder}",
                remedy="stop it, or choose another port",
            ) from exc


def require_free_places(places: Mapping[str, str]) -> None:
    """
    Refuse addresses such as 127.0.0.1:8443 that cannot be listened on.

    Raises:
        InputError: One is no address with a port, cannot be listened on, or appears
            twice.
        SetupError: A process, which the message names, already listens there.
    """
    seen: dict[str, str] = {}
    for option, place in places.items():
        host, _, digits = place.rpartition(":")
        # Digits of other scripts, spaces and signs are no port, though int takes them.
        port = int(digits) if re.fullmatch("[0-9]{1,5}", digits) else -1
        if not host or not 0 <= port <= _MOST_PORT:
            problem = f"{place!r:.60} is not address:port, such as 127.0.0.1:8001"
            raise InputError(option, problem)
        if port and place in seen:
            raise InputError(option, f"{place} is that of {seen[place]}, too")
        seen[place] = option
        require_free_ports(host.strip("[]"), {option: port})

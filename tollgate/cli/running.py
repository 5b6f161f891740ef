"""What the commands that reach a running product need to know of it."""

from __future__ import annotations

from tollgate.errors import SetupError
from tollgate.settings import Settings


def store_url(chosen: Settings) -> str:
    """
    Take the store that is named, or that of the server that runs here.

    Raises:
        SetupError: None is named, and no server runs.
    """
    from tollgate.server.address import find_server

    if chosen.store_url:
        return chosen.store_url
    found = find_server(chosen.state_path)
    if found is None or not found.store_url:
        raise SetupError(
            f"no server runs in {chosen.state}",
            remedy="start `tollgate up` or name a store with --store-url",
        )
    return found.store_url


def side_port_url(chosen: Settings) -> str:
    """
    Find where the server that runs here tells of itself.

    Raises:
        SetupError: No server runs.
    """
    from tollgate.server.address import find_server

    found = find_server(chosen.state_path)
    if found is None or not found.side_port_url:
        raise SetupError(
            f"no server runs in {chosen.state}",
            remedy="start `tollgate up` or name replicas with --replica",
        )
    return found.side_port_url

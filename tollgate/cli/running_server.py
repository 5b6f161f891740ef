"""Find the store, journal and admin port of the running server."""

from __future__ import annotations

from tollgate.errors import SetupError
from tollgate.settings import Settings


def store_url(chosen: Settings) -> str:
    """
    Return the given store, or that of the local server.

    Raises:
        SetupError: No store is given, and no server runs.
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


def admin_port_url(chosen: Settings) -> str:
    """
    Return the URL of the local server's admin port.

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


def journal_url(chosen: Settings) -> str:
    """
    Return the given journal, or else the given store, or the local server's journal.

    Raises:
        SetupError: No journal is given, and no local server has one.
    """
    from tollgate.server.address import find_server

    if chosen.journal_url or (chosen.journal_url is None and chosen.store_url):
        return chosen.journal_url or chosen.store_url
    found = find_server(chosen.state_path)
    if chosen.journal_url == "" or found is None or not found.journal_url:
        raise SetupError(
            f"no journal is named, and no server in {chosen.state} keeps one",
            remedy="start `tollgate up` or name the Redis with --journal-url",
        )
    return found.journal_url

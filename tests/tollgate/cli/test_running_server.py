"""Commands that name no store or journal ask the server that runs here."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tollgate.cli import running_server
from tollgate.errors import SetupError
from tollgate.server.address import ADDRESS_FILE, Address
from tollgate.settings import Settings

STORE, JOURNAL = "unix:///store", "unix:///journal"


@pytest.fixture
def state(tmp_path: Path) -> Iterator[Path]:
    """A state folder whose server has a store and a journal apart from it."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = Address(
            grpc_url=f"127.0.0.1:{listening.getsockname()[1]}",
            metrics_url="http://127.0.0.1:1",
            pid=os.getpid(),
            repository="r",
            products=("fraud",),
            admin_secret="s",
            store_url=STORE,
            journal_url=JOURNAL,
        )
        (tmp_path / ADDRESS_FILE).write_bytes(msgspec.json.encode(address))
        yield tmp_path


def test_the_journal_is_named_or_the_stores_or_the_servers(state: Path) -> None:
    """In this order; the server's own is not always its store's."""
    here = Settings(state=str(state))
    assert running_server.store_url(here) == STORE
    assert running_server.journal_url(here) == JOURNAL
    for journal, store, found in [
        ("redis://j", "", "redis://j"),
        ("redis://j", "redis://s", "redis://j"),
        (None, "redis://s", "redis://s"),
    ]:
        chosen = Settings(state=str(state), store_url=store, journal_url=journal)
        assert running_server.journal_url(chosen) == found


def test_no_journal_is_said_so(state: Path, tmp_path: Path) -> None:
    """Switched off, or none runs here: a command that needs one says how to name it."""
    off = Settings(state=str(state), store_url="redis://s", journal_url="")
    nowhere = Settings(state=str(tmp_path / "nowhere"))
    for chosen in (off, nowhere):
        with pytest.raises(SetupError, match="no journal is named"):
            running_server.journal_url(chosen)

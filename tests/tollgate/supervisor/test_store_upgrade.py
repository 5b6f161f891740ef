"""`tollgate up` over a store that Redis 6.2 wrote, with a newer store server."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import redis

from tests.support.products.committed_product import copy_product
from tollgate.errors import ServerError
from tollgate.pipeline import wait_for_store
from tollgate.server.address import find_server
from tollgate.testing.supervised import Supervised
from tollgate_client.client import Client
from tollgate_client.decisions import Decisions

pytestmark = pytest.mark.slow


def decide(up: Supervised, transaction: bytes, *, time_us: int) -> Decisions:
    """Decide one payment of one customer."""
    columns = {
        "transaction_id": np.array([transaction]),
        "customer_id": np.array([b"customer"]),
        "terminal_id": np.array([b"terminal"]),
        "amount": np.array([10.0]),
        "event_time": np.array([time_us]),
    }
    with Client(up.grpc_url) as client:
        return client.decide(columns, deadline_s=60.0)


def ready(up: Supervised) -> None:
    """Wait until it decides, however busy this machine is."""
    up.wait(lambda: bool(up.health_url) and up.ready(), patience_s=300.0)


def values(state: Path) -> dict[bytes, Any]:
    """Read what the store of a running server holds, but for the journal."""
    found = find_server(state)
    assert found is not None
    with redis.Redis.from_url(found.store_url) as store:
        keys = [key for key in store.scan_iter() if store.type(key) == b"string"]
        return {key: store.get(key) for key in keys}


@pytest.mark.system("valkey-server")
def test_windows_and_decisions_outlive_a_change_of_the_store_server(
    tmp_path: Path,
) -> None:
    """From the bundled Redis to Valkey; the way back is refused, and loses nothing."""
    state = tmp_path / "state"
    repository = copy_product(tmp_path / "models")
    wait_for_store(repository, product="fraud", deadline_ms=5_000)
    valkey = shutil.which("valkey-server")
    assert valkey is not None
    now_us = time.time_ns() // 1_000
    held: dict[bytes, Any] = {}
    said: list[str] = []
    for words in (("up",), ("up", "--store-server", valkey)):
        up = Supervised(repository, state, words=words)
        try:
            ready(up)
            assert held == {} or held == values(state)
            number = len(said)
            answer = decide(up, b"t%d" % number, time_us=now_us + number)
            assert answer.error.tolist() == [""]
            held = values(state)
        finally:
            assert up.stop() == 0
        said.append(up.output.read_text())
    (window,) = (value for key, value in held.items() if b"customer" in key)
    assert len(window) == 32 + 2 * 48  # a header and both payments, one of each server
    warned = [text.count("CVE-2025-49844") for text in said]
    assert warned == [1, 0]
    assert "is now one of Valkey" in said[1]
    back = Supervised(repository, state)
    with pytest.raises(ServerError, match="was written by Valkey"):
        ready(back)
    assert back.stop() == 2
    assert len(back.output.read_text().splitlines()) == 1

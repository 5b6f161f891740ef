"""`tollgate up` in folders whose paths are longer than a unix socket's may be."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
import redis

from tests.support.products.committed_product import copy_product
from tollgate.pipeline import wait_for_store
from tollgate.schema import Degraded
from tollgate.server.address import find_server
from tollgate.testing.supervised import Supervised
from tollgate_client.client import Client

pytestmark = pytest.mark.slow

LENGTH = 150  # of a path; sun_path of unix(7) has 108 bytes


def long_folder(parent: Path, letter: str) -> Path:
    """Make a folder whose path has at least so many characters."""
    folder = parent / (letter * max(1, LENGTH - len(str(parent))))
    folder.mkdir()
    return folder


def test_long_paths_of_state_and_tmpdir_are_no_obstacle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It decides with windows from its store; the second payment sees the first."""
    state = long_folder(tmp_path, "s") / "state"
    monkeypatch.setenv("TMPDIR", str(long_folder(tmp_path, "t")))
    repository = copy_product(tmp_path / "models")
    wait_for_store(repository, product="fraud", deadline_ms=5_000)
    now_us = time.time_ns() // 1_000
    up = Supervised(repository, state)
    try:
        up.wait(lambda: bool(up.health_url) and up.ready(), patience_s=300.0)
        with Client(up.grpc_url) as client:
            answers = [
                client.decide(
                    {
                        "transaction_id": np.array([b"t%d" % number]),
                        "customer_id": np.array([b"customer"]),
                        "terminal_id": np.array([b"terminal"]),
                        "amount": np.array([10.0]),
                        "event_time": np.array([now_us + number]),
                    },
                    deadline_s=60.0,
                )
                for number in range(2)
            ]
        found = find_server(state)
        assert found is not None
        with redis.Redis.from_url(found.store_url) as store:
            assert any(b"customer" in key for key in store.scan_iter())
    finally:
        up.stop()
    for answer in answers:
        assert answer.decision.tolist() == ["approve"]
        assert not answer.degraded[0] & Degraded.STORE_UNAVAILABLE

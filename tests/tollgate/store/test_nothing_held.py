"""A batch whose store call failed is free at once: its memory is Triton's."""

from __future__ import annotations

import gc
import os
import signal
import weakref
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import redis

from tests.support.store.redis_cluster import Cluster
from tollgate.features.spec.feature_spec import FeatureSpec
from tollgate.server.processes.redis_server import EmbeddedRedis
from tollgate.store.fallback.circuit_breaker import BreakerRules
from tollgate.store.fallback.fallback_chain import FallbackChain
from tollgate.store.store_events import Purchases
from tollgate.store.store_opening import StoreSettings, open_fallback_chain

SETTINGS = StoreSettings(deadline_s=0.2, breaker=BreakerRules(failures_in_a_row=100))


class Request:
    """Stands for a request of Triton's, which holds shared memory."""


@pytest.fixture(autouse=True)
def no_collector() -> Iterator[None]:
    """Nobody looks for cycles while the test runs."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def purchases(number: int) -> Purchases:
    """One purchase of one customer."""
    return Purchases(
        transaction_id=[b"t%d" % number],
        entity_id=[[b"c"], [b"m"]],
        event_time_us=np.array([1_600_000_000_000_000 + number]),
        cents=np.array([100]),
    )


def held(ladder: FallbackChain, number: int) -> bool:
    """Score as a step does, with a request in its frame; return whether it outlives."""

    def execute() -> weakref.ref[Request]:
        request = Request()
        ladder.score([purchases(number)], write=[True])
        return weakref.ref(request)

    return execute()() is not None


def test_a_failed_call_holds_no_request(spec: FeatureSpec, tmp_path: Path) -> None:
    """Answered, without the script, refused, silent, gone, and answered again."""
    with EmbeddedRedis(tmp_path) as server:
        ladder = open_fallback_chain(spec, server.url, settings=SETTINGS)
        with redis.Redis.from_url(server.url) as client:
            assert not held(ladder, 1)
            client.script_flush()
            assert not held(ladder, 2)
            client.config_set("maxmemory", 1)
            assert not held(ladder, 3)
            client.config_set("maxmemory", 0)
            os.kill(server.pid, signal.SIGSTOP)
            silent = [held(ladder, 4), held(ladder, 5)]
            os.kill(server.pid, signal.SIGCONT)
            assert silent == [False, False]
            assert not held(ladder, 6)
    assert not held(ladder, 7)
    assert not held(ladder, 8)
    ladder.close()


def test_a_lost_node_holds_no_request(own_cluster: Cluster, spec: FeatureSpec) -> None:
    """One of three killed, then none of them there."""
    ladder = open_fallback_chain(spec, own_cluster.url, settings=SETTINGS)
    assert not held(ladder, 1)
    for lost, node in enumerate(own_cluster.nodes):
        os.kill(node.pid, signal.SIGKILL)
        assert [held(ladder, 2 + 3 * lost + again) for again in range(3)] == [False] * 3
    ladder.close()

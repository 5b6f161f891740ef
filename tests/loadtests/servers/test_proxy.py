"""The proxy in front of a real Redis."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import redis

from loadtests.servers.proxy import Proxy
from tollgate.errors import StoreLost, StoreTimeout
from tollgate.features.spec.feature_spec import FeatureSpec
from tollgate.server.processes.redis_server import EmbeddedRedis
from tollgate.store.online_features import OnlineFeatures
from tollgate.store.redis.redis_store import RedisStore
from tollgate.store.store_events import Purchases


@pytest.fixture
def proxy(redis_server: EmbeddedRedis, tmp_path: Path) -> Iterator[Proxy]:
    """A proxy that hands everything on."""
    with Proxy(redis_server.socket_path, listen=tmp_path / "proxy.sock") as opened:
        yield opened


def test_it_hands_everything_on(proxy: Proxy, redis_client: redis.Redis) -> None:
    """Also what is larger than a piece."""
    with redis.Redis.from_url(proxy.url) as client:
        client.set("key", b"v" * 500_000)
        assert client.get("key") == b"v" * 500_000
    assert redis_client.strlen("key") == 500_000


def test_it_makes_a_store_late_and_cuts_its_answers(
    proxy: Proxy, spec: FeatureSpec, redis_client: redis.Redis
) -> None:
    """Late with a delay beyond the deadline, lost when cut, whole again after that."""
    store = RedisStore(proxy.url, deadline_s=0.5)
    online = OnlineFeatures(spec, store)
    batch = Purchases(
        transaction_id=[b"t"],
        entity_id=[[b"c"], [b"m"]],
        event_time_us=np.array([1_600_000_000_000_000]),
        cents=np.array([100]),
    )
    online.score([batch], write=[True])
    proxy.order("slow 2")
    with pytest.raises(StoreTimeout):
        online.score([batch], write=[True])
    store.close()
    proxy.order("pass")
    online.score([batch], write=[True])
    proxy.order("cut")
    with pytest.raises(StoreLost):
        online.score([batch], write=[True])
    proxy.order("pass")
    online.score([batch], write=[True])
    store.close()


def test_an_unknown_order_ends_it(proxy: Proxy) -> None:
    """It says nothing back."""
    with pytest.raises(RuntimeError, match="to 'faster'"):
        proxy.order("faster")

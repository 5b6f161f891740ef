"""Where tests of this folder find what they share: clusters, features online."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.store.online_rows import OpenStore
from tests.support.store.redis_cluster import DEADLINE_S, RULES, Cluster, cluster_at
from tollgate.features.spec.feature_spec import FeatureSpec
from tollgate.store.online_features import OnlineFeatures
from tollgate.store.redis.cluster_store import open_store
from tollgate.store.redis.redis_store import RedisStore


@pytest.fixture
def online(spec: FeatureSpec, store_url: str, open_store: OpenStore) -> OnlineFeatures:
    """The product's features over an empty store."""
    return OnlineFeatures(spec, open_store(store_url))


@pytest.fixture
def own_cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A cluster that a test may break."""
    with cluster_at(tmp_path) as one:
        yield one
        for node in one.nodes:
            node.signal(signal.SIGCONT)


@pytest.fixture
def open_any() -> Iterator[Callable[..., RedisStore]]:
    """Open stores by address; they are closed after the test."""
    with contextlib.ExitStack() as opened:

        def open_(url: str, *, deadline_s: float = DEADLINE_S) -> RedisStore:
            store = open_store(url, deadline_s=deadline_s, rules=RULES)
            opened.callback(store.close)
            return store

        yield open_

"""Any spec over any history: offline, online over Redis and a slow loop agree."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import redis
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from tests.support.features.random_specs import Event, documents, frame_of, histories
from tests.support.features.reference_features import Loop
from tollgate.features.offline import build
from tollgate.features.spec.feature_spec import FeatureSpec, load_spec
from tollgate.history import History, history_of
from tollgate.replay import labels_of, purchases_of
from tollgate.server.processes.redis_server import EmbeddedRedis
from tollgate.store.online_features import OnlineFeatures
from tollgate.store.redis.redis_store import RedisStore

# Every example is the same in every run; each takes some milliseconds.
BOUNDED = settings(
    max_examples=120,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where specs are written."""
    return tmp_path_factory.mktemp("specs")


def read(folder: Path, document: dict[str, Any]) -> FeatureSpec:
    """Load a document as a features.yaml; JSON is YAML."""
    path = folder / "features.yaml"
    path.write_text(json.dumps(document))
    return load_spec(path)


def arrive(
    online: OnlineFeatures, spec: FeatureSpec, history: History, draw: Any
) -> None:
    """Apply purchases and labels in any order, in batches, some of them twice."""
    count = len(history)
    events = [("purchase", row) for row in range(count)]
    events += [("label", row) for row in range(count) if history.label[row] == 1]
    events += draw.draw(st.lists(st.sampled_from(events), max_size=10))
    events = draw.draw(st.permutations(events))
    while events:
        kind, size = events[0][0], draw.draw(st.integers(1, 12))
        rows = []
        while events and events[0][0] == kind and len(rows) < size:
            rows.append(events.pop(0)[1])
        chosen = np.array(rows)
        if kind == "label":
            online.label(labels_of(spec, history, chosen))
        else:
            online.load(purchases_of(spec, history, chosen))


@BOUNDED
@given(document=documents(), events=histories())
def test_offline_equals_a_loop(
    folder: Path, document: dict[str, Any], events: list[Event]
) -> None:
    """Every aggregate and every derived feature, to the last bit of a double."""
    spec = read(folder, document)
    for feature in document["features"]:
        event(str(feature.get("aggregate") or sorted(feature)))
    got = build(spec, history_of(frame_of(events), spec=spec, source=""))
    loop = Loop(document, events)
    np.testing.assert_array_equal(got, np.array([loop.vector(one) for one in events]))


@pytest.mark.usefixtures("both_readers")
@settings(BOUNDED, max_examples=80)
@given(document=documents(), events=histories(), data=st.data())
def test_online_equals_offline(
    folder: Path,
    redis_server: EmbeddedRedis,
    document: dict[str, Any],
    events: list[Event],
    data: Any,
) -> None:
    """Out of order, twice, labels first: what Redis holds in the end reads alike."""
    spec = read(folder, document)
    history = history_of(frame_of(events), spec=spec, source="")
    client = redis.Redis.from_url(redis_server.url)
    client.flushall()
    store = RedisStore(redis_server.url, deadline_s=10.0)
    online = OnlineFeatures(spec, store)
    arrive(online, spec, history, data)
    rows = np.array(data.draw(st.permutations(range(len(history)))))
    before = {key: client.get(key) for key in client.scan_iter()}
    read_back = []
    for first in range(0, len(rows), 32):
        batch = purchases_of(spec, history, rows[first : first + 32])
        (vectors,) = online.score([batch], write=[False])
        assert not (vectors.degraded & ~np.uint32(4)).any()  # at most: a cold start
        read_back.append(vectors.features)
    served = np.concatenate(read_back)
    np.testing.assert_array_equal(served, build(spec, history)[rows])
    assert {key: client.get(key) for key in client.scan_iter()} == before
    store.close()
    client.close()

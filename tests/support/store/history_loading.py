"""Load a history into a store."""

from __future__ import annotations

from tollgate.features.spec.feature_spec import FeatureSpec
from tollgate.history import History
from tollgate.replay import labels_of, purchases_of, spans
from tollgate.store.online_features import OnlineFeatures
from tollgate.store.redis.redis_store import RedisStore


def load_history(spec: FeatureSpec, history: History, *, store_url: str) -> None:
    """Apply purchases and labels in the order in which they became known."""
    online = OnlineFeatures(spec, RedisStore(store_url, deadline_s=30.0))
    for span in spans(spec, history):
        if len(span.labels):
            online.label(labels_of(spec, history, span.labels))
        online.load(purchases_of(spec, history, span.purchases))

"""Declared fields travel through spool and stream as the store keeps them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import redis

from tollgate.features.fields import hash_words
from tollgate.features.spec.feature_spec import FeatureSpec, load_spec
from tollgate.features.windows.entity_entries import MISSING
from tollgate.repair.drain import SpoolDrain
from tollgate.repair.event_spool import PurchaseSpool
from tollgate.store.online_features import OnlineFeatures
from tollgate.store.redis.redis_store import RedisStore
from tollgate.store.store_events import Purchases
from tollgate.stream.events import EventCodec

NOW_US = 1_700_000_000_000_000
SPEC = """
version: 1
product: general
fields:
  - {name: distance, type: number, decimals: 2, range: [0, 1000]}
  - {name: channel, type: category, vocabulary: [shop, web]}
entities:
  card: {key: card_id}
features:
  - {name: far, entity: card, aggregate: max, of: distance, window: 7d, default: 0}
  - {name: ways, entity: card, aggregate: distinct, of: channel, window: 7d, default: 1}
"""


@pytest.fixture
def general_path(tmp_path: Path) -> Path:
    """A features.yaml with declared fields."""
    path = tmp_path / "features.yaml"
    path.write_text(SPEC)
    return path


@pytest.fixture
def batch() -> Purchases:
    """Three purchases; the second one sent no distance, the third no channel."""
    return Purchases(
        transaction_id=[b"1", b"2", b"3"],
        entity_id=[[b"a", b"a", b"b"]],
        event_time_us=NOW_US + np.arange(3),
        cents=np.array([1, 2, 3]),
        fields={
            "distance": np.array([150, MISSING, 100_000]),
            "channel": hash_words([b"web", b"shop", b""]),
        },
    )


def test_fields_come_back_as_they_were(general_path: Path, batch: Purchases) -> None:
    """Up to the limit of the range; one that was not sent was not sent."""
    codec = EventCodec(load_spec(general_path))
    decoded = codec.decode(codec.encode_purchases(batch), now_us=NOW_US)
    assert decoded.poison == {}
    assert {name: one.tolist() for name, one in decoded.purchases.fields.items()} == {
        name: one.tolist() for name, one in batch.fields.items()
    }


def test_a_spec_without_fields_writes_no_word_of_them(spec: FeatureSpec) -> None:
    """Events of the fraud product are as they were."""
    (event,) = EventCodec(spec).encode_purchases(
        Purchases(
            transaction_id=[b"1"],
            entity_id=[[b"a"], [b"b"]],
            event_time_us=np.array([NOW_US]),
            cents=np.array([1]),
        )
    )
    assert b"kept" not in event


def test_a_drain_keeps_what_the_scoring_call_would(
    general_path: Path,
    batch: Purchases,
    tmp_path: Path,
    redis_client: redis.Redis,
    store_url: str,
    open_store: Callable[..., RedisStore],
) -> None:
    """Values with columns are bit-identical."""
    store = open_store(store_url)
    OnlineFeatures(load_spec(general_path), store).score([batch], write=[True])
    keys = sorted(redis_client.keys(b"*"))
    wanted = redis_client.mget(keys)
    redis_client.flushall()
    spool = PurchaseSpool(tmp_path / "spool", general_path)
    assert spool.append(batch)
    spool.close()
    SpoolDrain(tmp_path / "spool", store).run()
    assert len(keys) == 2
    assert redis_client.mget(keys) == wanted


def test_a_segment_brings_the_hook_of_its_features(
    hooked: Callable[..., Path],
    tmp_path: Path,
    redis_client: redis.Redis,
    store_url: str,
    open_store: Callable[..., RedisStore],
) -> None:
    """Without it they could not be read after the next release."""
    path = hooked()
    spool = PurchaseSpool(tmp_path / "spool", path)
    batch = Purchases(
        transaction_id=[b"1"],
        entity_id=[[b"a"], [b"t"]],
        event_time_us=np.array([NOW_US]),
        cents=np.array([1]),
    )
    assert spool.append(batch)
    spool.close()
    path.with_name("hook.py").unlink()
    done = SpoolDrain(tmp_path / "spool", open_store(store_url)).run()
    assert done is not None
    assert (done.applied, done.unreadable) == (1, 0)
    assert redis_client.dbsize() == 2

"""A Redis Cluster that loses a node: only the keys that live there are lost."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.support.store.hot_entities import with_hop
from tests.support.store.redis_cluster import RULES, Cluster, purchases, same
from tollgate.backfill.tables import load_table
from tollgate.errors import OutcomeUnknown, StoreError, StorePartial
from tollgate.features.feature_tables import TableRows
from tollgate.features.spec.feature_spec import FeatureSpec, load_spec
from tollgate.schema import Applied, Degraded
from tollgate.store.id_lists import LookupList
from tollgate.store.lookups import table_prefix
from tollgate.store.online_features import OnlineFeatures
from tollgate.store.redis.redis_store import Mode, RedisStore
from tollgate.store.store_events import Call, Packer, Purchases, purchase_entries
from tollgate.store.store_opening import StoreSettings, open_fallback_chain
from tollgate.store.stored_decisions import stored_decision_key

TABLES = """
version: 1
product: shop
entities:
  customer: {key: customer_id}
  terminal: {key: terminal_id}
tables:
  limits: {entity: customer}
features:
  - {name: n_1d, entity: customer, aggregate: count, window: 1d}
  - {name: limit, table: limits, column: limit, default: 0.5}
  - {name: m_1d, entity: terminal, aggregate: count, window: 1d}
"""


@pytest.fixture
def spec(
    request: pytest.FixtureRequest, spec_path: Path, tmp_path: Path
) -> FeatureSpec:
    """The features of the fraud product, or a hop that a test names."""
    return with_hop(spec_path, tmp_path, getattr(request, "param", "0"))


def rows_by_node(cluster: Cluster, spec: FeatureSpec, batch: Purchases) -> np.ndarray:
    """Tell, per row and node, whether an entity of the row lives there; [N, 3]."""
    packer = Packer(spec)
    lives = np.zeros((len(batch), 3), np.bool_)
    for entity, column in enumerate(batch.entity_id):
        for row, one in enumerate(column):
            lives[row, cluster.of(packer.key(entity, one))] = True
    return lives


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_node_that_is_away_costs_the_keys_that_live_there(
    own_cluster: Cluster,
    spec: FeatureSpec,
    open_any: Callable[..., RedisStore],
    how: signal.Signals,
) -> None:
    """Dead or frozen: all other keys are answered, and the error names the rest."""
    store = open_any(own_cluster.url, deadline_s=0.5)
    batch = purchases(32)
    call = Packer(spec).pack(purchase_entries(batch), batch.entity_id)
    whole = store.apply([(call, Mode.WRITE)])
    os.kill(own_cluster.nodes[1].pid, how)
    for _ in range(8):  # also once it is left alone
        with pytest.raises(StorePartial) as caught:
            store.flush([(call, Mode.DRY)], extra_commands=[(b"MGET", *call.keys[:2])])
        away = [own_cluster.of(key) == 1 for key in call.keys]
        assert caught.value.lost == [away]
        ((values, status),) = caught.value.answers
        expected = [
            b"" if gone else one for one, gone in zip(whole[0][0], away, strict=True)
        ]
        assert values == expected
        assert len(status) == 64
        assert status.count(0) == sum(
            count
            for count, gone in zip(events_per_key(call), away, strict=True)
            if gone
        )
    assert isinstance(caught.value, OutcomeUnknown)


def events_per_key(call: Call) -> list[int]:
    """Count the events of each key."""
    return [
        int((code == at - first).sum())
        for code, first, stop in zip(
            call.code, call.first_key[:-1], call.first_key[1:], strict=True
        )
        for at in range(first, stop)
    ]


def test_tables_lie_on_all_nodes_and_a_lost_one_costs_its_own(
    own_cluster: Cluster, tmp_path: Path, open_any: Callable[..., RedisStore]
) -> None:
    """A number for each of 32 customers; a third of them is on the dead node."""
    path = tmp_path / "features.yaml"
    path.write_text(TABLES)
    shop = load_spec(path)
    (table,) = shop.tables
    batch = purchases(32)
    ids = sorted(set(batch.entity_id[0]))
    rows = TableRows(
        source="a test",
        ids=ids,
        valid_us=np.zeros(len(ids), np.int64),
        values=np.arange(1.0, len(ids) + 1)[:, None],
    )
    store = open_any(own_cluster.url)
    assert load_table(shop, table, rows, store).written == len(ids)
    wanted = np.array([1.0 + ids.index(one) for one in batch.entity_id[0]])
    (read,) = OnlineFeatures(shop, store).score([batch], write=[True])
    assert read.features[:, 1].tolist() == wanted.tolist()
    settings = StoreSettings(deadline_s=0.5)
    ladder = open_fallback_chain(shop, own_cluster.url, settings=settings)
    prefix = table_prefix(shop, table)
    os.kill(own_cluster.nodes[1].pid, signal.SIGKILL)
    keys = [b"%b:%b" % (prefix, one) for one in batch.entity_id[0]]
    gone = np.array([own_cluster.of(key) == 1 for key in keys])
    assert 0 < gone.sum() < 32
    (scored,) = ladder.score([batch], write=[True])
    ladder.close()
    assert scored.features[:, 1].tolist() == np.where(gone, 0.5, wanted).tolist()
    lost = (scored.degraded & Degraded.STORE_UNAVAILABLE) != 0
    assert (lost | ~gone).all()


@pytest.mark.parametrize("spec", ["0", "1h"], indirect=True)
def test_a_node_that_comes_back_is_used_again(
    own_cluster: Cluster,
    store_url: str,
    spec: FeatureSpec,
    open_any: Callable[..., RedisStore],
) -> None:
    """What was not applied meanwhile is applied again; all is as with one Redis."""
    many = OnlineFeatures(spec, open_any(own_cluster.url, deadline_s=0.5))
    single = OnlineFeatures(spec, open_any(store_url))
    same(many, single, [purchases(32, seed=1), purchases(1, seed=9)])
    own_cluster.nodes[2].signal(signal.SIGSTOP)
    during = [purchases(32, first=40 * n, seed=2) for n in range(1, 9)]
    for batch in during:
        with pytest.raises(OutcomeUnknown):
            many.score([batch], write=[True])
        single.load(batch)
    own_cluster.nodes[2].signal(signal.SIGCONT)
    time.sleep(0.2)
    for batch in during:
        until_applied(many, batch)
    last = purchases(32, first=500, seed=3)
    (mine,) = many.score([last], write=[True])
    (theirs,) = single.score([last], write=[True])
    assert mine.features.tobytes() == theirs.features.tobytes()


def until_applied(online: OnlineFeatures, batch: Purchases) -> None:
    """Apply a batch until the store has answered."""
    until = time.monotonic() + 600
    while True:
        try:
            online.load(batch)
        except StoreError:
            assert time.monotonic() < until
            time.sleep(0.02)
        else:
            return


def test_cluster_that_is_all_away_is_a_store_that_is_away(
    own_cluster: Cluster, spec: FeatureSpec, open_any: Callable[..., RedisStore]
) -> None:
    """StoreError, and no StorePartial; a probe says so too, before and after."""
    store = open_any(own_cluster.url)
    online = OnlineFeatures(spec, store)
    online.load(purchases(32))
    assert store.probe()
    for node in own_cluster.nodes:
        os.kill(node.pid, signal.SIGKILL)
        node.wait(5.0)
    for _ in range(7):
        with pytest.raises(StoreError) as caught:
            online.load(purchases(32))
        assert not isinstance(caught.value, StorePartial)
    assert not store.probe()


class Kept:
    """A spool that keeps what it is given."""

    def __init__(self) -> None:
        self.purchases: list[Purchases] = []

    def append(self, purchases: Purchases) -> bool:
        """Keep them."""
        self.purchases.append(purchases)
        return True


@pytest.mark.parametrize("spec", ["0", "1h"], indirect=True)
def test_rows_fall_only_where_an_entity_lives_on_the_lost_node(
    own_cluster: Cluster,
    store_url: str,
    spec: FeatureSpec,
    open_any: Callable[..., RedisStore],
) -> None:
    """
    A frozen node: its rows go down the ladder and to the spool, the others do not.

    The cluster has seen half of the terminals before, so rows of the lost node have
    last known values or defaults, entity by entity; every vector that needs no
    default is that of an undisturbed Redis, bit for bit. After the spool is drained
    all are.
    """
    spool = Kept()
    settings = StoreSettings(deadline_s=0.25, breaker=RULES)
    ladder = open_fallback_chain(spec, own_cluster.url, settings=settings, spool=spool)
    single = OnlineFeatures(spec, open_any(store_url))
    before = purchases(32, seed=1)
    (mine,) = ladder.score([before], write=[True])
    single.load(before)
    own_cluster.nodes[0].signal(signal.SIGSTOP)
    for first in range(40, 400, 40):
        batch = purchases(32, seed=first, first=first)
        (theirs,) = single.score([batch], write=[True])
        (mine,) = ladder.score([batch], write=[True])
        fell = rows_by_node(own_cluster, spec, batch)[:, 0]
        assert 0 < fell.sum() < 32
        away = Degraded.STORE_UNAVAILABLE | Degraded.LAST_KNOWN_VECTOR
        assert ((mine.degraded & int(away)) != 0).tolist() == fell.tolist()
        reported = np.where(fell, Applied.YES, mine.applied)
        assert reported.tolist() == [Applied.YES] * 32
        assert Applied.YES not in mine.applied[fell]
        known = (mine.degraded & int(Degraded.STORE_UNAVAILABLE)) == 0
        assert known.sum() > (~fell).sum()
        assert mine.features[known].tobytes() == theirs.features[known].tobytes()
        waiting = spool.purchases[-1].transaction_id
        chosen = [
            one for one, gone in zip(batch.transaction_id, fell, strict=True) if gone
        ]
        assert waiting == chosen
    assert ladder.counts.calls["partial"] == 9
    assert ladder.breaker.opened == 0
    own_cluster.nodes[0].signal(signal.SIGCONT)
    time.sleep(0.2)
    drain = OnlineFeatures(spec, open_any(own_cluster.url))
    for one in spool.purchases:
        until_applied(drain, one)
    after = purchases(32, seed=7, first=600)
    (theirs,) = single.score([after], write=[True])
    ladder.score([after], write=[False])  # what half-opens the node
    (mine,) = ladder.score([after], write=[True])
    assert mine.features.tobytes() == theirs.features.tobytes()
    assert not np.any(mine.degraded & int(away))
    ladder.close()


def test_look_ups_are_lost_with_their_node_only(
    own_cluster: Cluster, spec: FeatureSpec
) -> None:
    """A row has the bit when its decision, or any list, lives where nobody answers."""
    vip = LookupList("vip", "customer_id", b"tollgate:fraud:list:vip")
    batch = purchases(32)
    settings = StoreSettings(deadline_s=0.5)
    keys = [stored_decision_key("fraud", one) for one in batch.transaction_id]
    for key in keys:
        own_cluster.clients[own_cluster.of(key)].set(key, b"x")
    own_cluster.clients[own_cluster.of(vip.key)].sadd(vip.key, *batch.entity_id[0])
    away = next(node for node in range(3) if node != own_cluster.of(vip.key))
    ladder = open_fallback_chain(spec, own_cluster.url, settings=settings, lists=[vip])
    bit = Degraded.LOOKUPS_UNREAD
    for alive in (True, False):
        (scored,) = ladder.score([batch], write=[False])
        gone = [not alive and own_cluster.of(key) == away for key in keys]
        assert ((scored.degraded & bit) != 0).tolist() == gone
        assert scored.lookups.earlier == [b"" if one else b"x" for one in gone]
        assert scored.lookups.list_hits.tolist() == [1] * 32
        if alive:
            os.kill(own_cluster.nodes[away].pid, signal.SIGKILL)
    os.kill(own_cluster.nodes[own_cluster.of(vip.key)].pid, signal.SIGKILL)
    (scored,) = ladder.score([batch], write=[False])
    ladder.close()
    assert ((scored.degraded & bit) != 0).all()
    assert not scored.lookups.list_hits.any()

"""A real Redis Cluster of three masters: moved slots, lost nodes, lost scripts."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import redis
from redis.crc import key_slot
from redis_processes import free_ports, running

from tollgate.audit.anchor import Mark
from tollgate.audit.source import ChunkSource
from tollgate.backfill.tables import load_table
from tollgate.errors import InputError, OutcomeUnknown, StoreError, StorePartial
from tollgate.features.spec import FeatureSpec, load_spec
from tollgate.features.tables import TableRows
from tollgate.journal.entries import End, stream_key
from tollgate.journal.stream import JournalStream
from tollgate.schema import Applied, Degraded
from tollgate.server.child import Child
from tollgate.server.environment import find_redis_server
from tollgate.store.breaker import Rules
from tollgate.store.cluster import ClusterStore, open_store
from tollgate.store.decided import decided_key, keep_command
from tollgate.store.events import Call, Labels, Packer, Purchases, purchase_entries
from tollgate.store.line import open_line
from tollgate.store.lists import LookupList
from tollgate.store.online import OnlineFeatures
from tollgate.store.opening import StoreSettings, open_ladder
from tollgate.store.redis import Mode, RedisStore
from tollgate.store.slots import SLOTS, SlotMap
from tollgate.store.table_list import table_prefix
from tollgate.store.writer import EventWriter

NOW_US = 1_600_000_000_000_000
DEADLINE_S = 5.0
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
RULES = Rules(probe_interval_s=0.02)


class Cluster:
    """
    Three masters and a client for each.

    Attributes:
        ports: Of the masters.
        nodes: Their processes.
        clients: One per master, of redis-py; they follow no redirection.
    """

    def __init__(self, ports: list[int], nodes: list[Child]) -> None:
        self.ports, self.nodes = ports, nodes
        self.clients = [redis.Redis(port=port) for port in ports]
        self.names = [
            one.execute_command("CLUSTER MYID").decode() for one in self.clients
        ]

    @property
    def url(self) -> str:
        """Its address, by all nodes."""
        return "redis+cluster://" + ",".join(f"127.0.0.1:{one}" for one in self.ports)

    def join(self) -> None:
        """Share the slots and have the nodes meet."""
        for number, client in enumerate(self.clients):
            share = range(number * SLOTS // 3, (number + 1) * SLOTS // 3)
            client.execute_command("CLUSTER", "ADDSLOTS", *share)
            client.execute_command("CLUSTER", "MEET", "127.0.0.1", self.ports[0])
        self.wait_until_ok()

    def wait_until_ok(self) -> None:
        """Wait until each node sees all others and all slots."""
        until = time.monotonic() + 30
        for client in self.clients:
            while not self._ok(client):
                assert time.monotonic() < until, "the cluster did not form"
                time.sleep(0.02)

    def _ok(self, client: redis.Redis) -> bool:
        told = client.execute_command("CLUSTER", "INFO")
        told = (
            told
            if isinstance(told, dict)
            else dict(line.split(":") for line in told.decode().split("\r\n") if line)
        )
        ranges = client.execute_command("CLUSTER", "SLOTS")
        return (
            told["cluster_state"] == "ok"
            and told["cluster_known_nodes"] == "3"
            and len(ranges) >= 3
        )

    def of(self, key: bytes) -> int:
        """Number the node that has a key, before any slot moves."""
        return min(key_slot(key) * 3 // SLOTS, 2)

    def move(self, slot: int, source: int, target: int, *, keys: bool = True) -> None:
        """Begin to move a slot; with `keys` also its keys."""
        for node, what, other in (
            (target, "IMPORTING", source),
            (source, "MIGRATING", target),
        ):
            self.clients[node].execute_command(
                "CLUSTER", "SETSLOT", slot, what, self.names[other]
            )
        if keys:
            self.carry(slot, source, target)

    def carry(self, slot: int, source: int, target: int) -> None:
        """Bring a slot's keys to the other node."""
        found = self.clients[source].execute_command(
            "CLUSTER", "GETKEYSINSLOT", slot, 1000
        )
        if found:
            self.clients[source].execute_command(
                *("MIGRATE", "127.0.0.1", self.ports[target], "", 0, 5000),
                *("KEYS", *found),
            )

    def own(self, slot: int, target: int) -> None:
        """End a move."""
        for client in (self.clients[target], *self.clients):
            client.execute_command(
                "CLUSTER", "SETSLOT", slot, "NODE", self.names[target]
            )

    def values(self) -> dict[bytes, bytes]:
        """Read all values of all nodes."""
        return {
            key: client.get(key)
            for client in self.clients
            for key in client.keys("tollgate:*:*:*:*")
        }


@contextlib.contextmanager
def cluster_at(folder: Path) -> Iterator[Cluster]:
    """Run a cluster."""
    ports = free_ports(3)
    with contextlib.ExitStack() as stack:
        nodes = [
            stack.enter_context(
                running(
                    find_redis_server(),
                    folder / str(port),
                    port=port,
                    options={
                        "port": str(port),
                        "cluster-enabled": "yes",
                        "cluster-node-timeout": "60000",
                        "cluster-require-full-coverage": "no",
                    },
                )
            )
            for port in ports
        ]
        cluster = Cluster(ports, nodes)
        cluster.join()
        yield cluster
        for client in cluster.clients:
            client.close()


@pytest.fixture(scope="module")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One cluster for the tests that leave it as it was."""
    with cluster_at(tmp_path_factory.mktemp("cluster")) as one:
        yield one


@pytest.fixture
def cluster(shared_cluster: Cluster) -> Cluster:
    """The shared cluster, empty and without scripts."""
    for client in shared_cluster.clients:
        client.flushall()
        client.script_flush()
    return shared_cluster


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


def purchases(rows: int, *, first: int = 0, seed: int = 0) -> Purchases:
    """Purchases of many customers at many terminals, over some days."""
    random = np.random.default_rng(seed)
    number = np.arange(first, first + rows)
    return Purchases(
        transaction_id=[b"t%d-%d" % (seed, one) for one in number],
        entity_id=[
            [b"c%d" % one for one in random.integers(0, 40, rows)],
            [b"m%d" % one for one in random.integers(0, 15, rows)],
        ],
        event_time_us=NOW_US + number * 600_000_000,
        cents=random.integers(0, 100_000, rows),
    )


def labels_of(batch: Purchases) -> Labels:
    """Label every purchase fraud."""
    rows = len(batch)
    return Labels(
        transaction_id=batch.transaction_id,
        entity_id=batch.entity_id,
        event_time_us=batch.event_time_us,
        label=np.ones(rows, np.int8),
        label_time_us=batch.event_time_us + 1,
        revision=np.zeros(rows, np.int64),
    )


def same(one: OnlineFeatures, other: OnlineFeatures, batches: list[Purchases]) -> None:
    """Score batches in both, the last one dry; all that is told must be the same."""
    write = [True] * (len(batches) - 1) + [False]
    pairs = zip(
        one.score(batches, write=write), other.score(batches, write=write), strict=True
    )
    for mine, theirs in pairs:
        assert mine.features.tobytes() == theirs.features.tobytes()
        assert mine.degraded.tolist() == theirs.degraded.tolist()
        assert mine.applied.tolist() == theirs.applied.tolist()


def test_features_through_a_cluster_are_those_through_one_redis(
    cluster: Cluster,
    store_url: str,
    redis_client: redis.Redis,
    spec: FeatureSpec,
    open_any: Callable[..., RedisStore],
) -> None:
    """Vectors bit for bit, statuses, and every stored value byte for byte."""
    many = OnlineFeatures(spec, open_any(cluster.url))
    single = OnlineFeatures(spec, open_any(store_url))
    for seed in range(6):
        batches = [purchases(n, first=50 * seed, seed=seed) for n in (32, 1, 7)]
        same(many, single, batches)
        known = labels_of(batches[0])
        assert many.label(known).tolist() == single.label(known).tolist()
        assert many.load(batches[0]).tolist() == single.load(batches[0]).tolist()
        if seed == 3:
            for client in cluster.clients:
                client.script_flush()
    stored = cluster.values()
    assert stored == {key: redis_client.get(key) for key in redis_client.keys("*")}
    assert {cluster.of(key) for key in stored} == {0, 1, 2}


def test_slots_that_move_are_followed(
    own_cluster: Cluster,
    store_url: str,
    spec: FeatureSpec,
    open_any: Callable[..., RedisStore],
) -> None:
    """
    Before, while and after slots with keys move: as one Redis, at every step.

    While they move, a key that is there answers, one that is not is asked of the
    target (ASK), whose script is missing at first; then the source says MOVED.
    """
    cluster = own_cluster
    many = OnlineFeatures(spec, open_any(cluster.url))
    single = OnlineFeatures(spec, open_any(store_url))
    same(many, single, [purchases(32, seed=1), purchases(5, seed=2)])
    slots = sorted({key_slot(key) for key in cluster.values()})
    moving = [(slot, slot * 3 // SLOTS) for slot in slots]
    cluster.clients[1].script_flush()
    for slot, source in moving:
        cluster.move(slot, source, (source + 1) % 3, keys=False)
    same(many, single, [purchases(32, seed=1, first=40), purchases(32, seed=2)])
    for slot, source in moving[::2]:
        cluster.carry(slot, source, (source + 1) % 3)
    same(many, single, [purchases(32, seed=1, first=80), purchases(32, seed=3)])
    for slot, source in moving:
        cluster.carry(slot, source, (source + 1) % 3)
    same(many, single, [purchases(32, seed=1, first=120), purchases(32, seed=4)])
    for slot, source in moving:
        cluster.own(slot, (source + 1) % 3)
    same(many, single, [purchases(32, seed=1, first=160), purchases(32, seed=5)])
    time.sleep(0.3)  # the map may be looked at again
    same(many, single, [purchases(32, seed=1, first=200), purchases(32, seed=6)])


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
            store.flush([(call, Mode.DRY)], beside=[(b"MGET", *call.keys[:2])])
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
    ladder = open_ladder(shop, own_cluster.url, settings=settings)
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
    until = time.monotonic() + 10
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


def test_any_node_that_answers_will_do_to_begin(
    cluster: Cluster, spec: FeatureSpec, open_any: Callable[..., RedisStore]
) -> None:
    """The address may name nodes that are not there."""
    (free,) = free_ports(1)
    url = f"redis+cluster://127.0.0.1:{free},127.0.0.1:{cluster.ports[2]}"
    online = OnlineFeatures(spec, open_any(url))
    assert set(online.load(purchases(8)).tolist()) == {Applied.YES}


def test_stream_and_history_write_through_a_cluster(
    cluster: Cluster,
    store_url: str,
    spec: FeatureSpec,
    open_any: Callable[..., RedisStore],
) -> None:
    """What lands is what lands in one Redis."""
    batch = purchases(150)
    many = EventWriter(spec, open_any(cluster.url))
    single = EventWriter(spec, open_any(store_url))
    for writer in (many, single):
        assert writer.purchases(batch).applied.all()
        assert writer.purchases(batch).duplicate.all()
        assert writer.labels(labels_of(batch)).applied.all()


def test_what_no_one_node_can_answer_is_refused(
    cluster: Cluster, open_any: Callable[..., RedisStore]
) -> None:
    """A scan over all keys: the error says that this is a cluster."""
    store = open_any(cluster.url)
    with pytest.raises(InputError, match="is a cluster's, which cannot SCAN"):
        store.flush([], beside=[(b"SCAN", b"0")])
    _, replies = store.flush([], beside=[(b"SET", b"a", b"1"), (b"MGET", b"a", b"b")])
    assert replies == [b"OK", [b"1", None]]


def test_slot_map_takes_no_nonsense() -> None:
    """An error, an empty list or a torn reply leaves the map as it was."""
    slots = SlotMap()
    seed = ("seed", 1)
    assert slots.learn([[0, SLOTS - 1, [b"", 7, b"id"]]], told_by=seed)
    assert slots.place(5) == ("seed", 7)
    whole = [0, SLOTS - 1, [b"h", 1]]
    for nonsense in (
        ValueError(),
        None,
        [],
        [[0, 5]],
        [[0, 5, [b"h"]]],
        [[0, SLOTS, [b"h", 1]]],
        [[-3, 5, [b"h", 1]]],
        [whole, 3],
    ):
        assert not slots.learn(nonsense, told_by=seed), nonsense
    assert slots.place(5) == ("seed", 7)
    slots.move(5, ("other", 2))
    assert (slots.place(5), slots.place(6)) == (("other", 2), ("seed", 7))
    assert slots.places == {("seed", 7), ("other", 2)}


def test_ladder_opens_over_a_cluster(
    cluster: Cluster, spec: FeatureSpec, store_url: str
) -> None:
    """Feeds' watermarks, which lie in several slots, come along too."""
    settings = StoreSettings(deadline_s=DEADLINE_S)
    scored = []
    for url in (cluster.url, store_url):
        ladder = open_ladder(spec, url, settings=settings)
        (one,) = ladder.score([purchases(32)], write=[True])
        assert "purchases" in ladder.feeds.watermark_us
        ladder.close()
        scored.append(one)
    assert scored[0].features.tobytes() == scored[1].features.tobytes()
    assert not np.any(scored[0].degraded & ~np.uint32(Degraded.COLD_START))


class Kept:
    """A spool that keeps what it is given."""

    def __init__(self) -> None:
        self.purchases: list[Purchases] = []

    def append(self, purchases: Purchases) -> bool:
        """Keep them."""
        self.purchases.append(purchases)
        return True


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
    ladder = open_ladder(spec, own_cluster.url, settings=settings, spool=spool)
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
        told = np.where(fell, Applied.YES, mine.applied)
        assert told.tolist() == [Applied.YES] * 32
        assert Applied.YES not in mine.applied[fell]
        kept = (mine.degraded & int(Degraded.STORE_UNAVAILABLE)) == 0
        assert kept.sum() > (~fell).sum()
        assert mine.features[kept].tobytes() == theirs.features[kept].tobytes()
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


def test_users_of_the_paper_need_two_rights_more_in_a_cluster(
    own_cluster: Cluster, spec: FeatureSpec
) -> None:
    """With the rights named for a cluster, no step is refused while slots move."""
    paper = (Path(__file__).parents[3] / "docs" / "store.md").read_text()
    found = re.search(r"^user (tollgate-step) on >(\S+) (.*)$", paper, re.MULTILINE)
    more = re.search(r"In a cluster each of them.* needs `(.*?)`", paper)
    assert found is not None
    assert more is not None
    user, password, rights = found.groups()
    for client in own_cluster.clients:
        client.execute_command(
            *("ACL", "SETUSER", user, "on", f">{password}"),
            *rights.split(),
            *more[1].split(),
        )
    url = own_cluster.url.replace("://", f"://{user}:{password}@")
    store = open_store(url, deadline_s=DEADLINE_S)
    assert store.probe()
    online = OnlineFeatures(spec, store)
    online.load(purchases(32))
    for slot in {key_slot(key) for key in own_cluster.values()}:
        source = slot * 3 // SLOTS
        own_cluster.move(slot, source, (source + 1) % 3, keys=slot % 2 == 0)
    online.score([purchases(32, first=40)], write=[True])
    store.flush([], beside=[(b"MGET", b"tollgate:fraud:a", b"tollgate:fraud:b")])
    store.close()
    assert [client.acl_log() for client in own_cluster.clients] == [[], [], []]


def test_store_is_chosen_by_its_address(store_url: str, cluster: Cluster) -> None:
    """One Redis or a cluster; neither opens at the other's address."""
    assert type(open_store(store_url, deadline_s=1.0)) is RedisStore
    assert type(open_store(cluster.url, deadline_s=1.0)) is ClusterStore
    with pytest.raises(InputError, match="this needs a single Redis"):
        RedisStore(cluster.url, deadline_s=1.0)


def test_a_journal_in_a_cluster(cluster: Cluster) -> None:
    """Chunks come in order to the node that has the stream; answers to theirs."""
    stream = JournalStream("fraud", open_line(cluster.url, deadline_s=DEADLINE_S))
    chunks = [b"chunk %d" % number for number in range(5)]
    keys = [decided_key("fraud", b"t%d" % number) for number in range(30)]
    beside = [keep_command(key, b"value", window_ms=60_000) for key in keys]
    assert stream.add(chunks, beside=beside) == 5
    assert stream.end(End("00" * 8, 5, killed=False))
    owner = cluster.clients[cluster.of(stream_key("fraud"))]
    entries = [entry for _, entry in owner.xrange(stream_key("fraud"))]
    assert [entry[b"c"] for entry in entries[:5]] == chunks
    assert b"e" in entries[5]
    for key in keys:
        assert cluster.clients[cluster.of(key)].get(key) == b"value"
    stream.close()


def test_a_journal_is_read_in_a_cluster(cluster: Cluster) -> None:
    """The stream, its head and its dead letters, each on the node that has it."""
    stream = JournalStream("fraud", open_line(cluster.url, deadline_s=DEADLINE_S))
    assert stream.add([b"chunk %d" % number for number in range(5)]) == 5
    stream.close()
    source = ChunkSource(cluster.url, product="fraud")
    mark = Mark(chain="00" * 16, number=1, hash="11" * 32)
    source.require_chain(mark, [mark.hash])
    source.note(mark)
    source.require_chain(mark, [mark.hash])
    taken = source.poll(most=3, wait_s=0.01)
    taken += source.poll(most=3, wait_s=0.01)  # what is new, behind what was left
    taken += source.poll(most=3, wait_s=0.01)
    assert [one.chunk for one in taken] == [b"chunk %d" % number for number in range(5)]
    assert source.poll(most=3, wait_s=0.01) == []
    source.bury(taken[0], "it is no chunk")
    source.acknowledge([one.id for one in taken[:4]])
    owner = cluster.clients[cluster.of(stream_key("fraud"))]
    assert owner.xlen(stream_key("fraud")) == 1
    letters = stream_key("fraud") + b":dead-letters"
    assert cluster.clients[cluster.of(letters)].xlen(letters) == 1
    source.close()


def test_look_ups_are_lost_with_their_node_only(
    own_cluster: Cluster, spec: FeatureSpec
) -> None:
    """A row has the bit when its decision, or any list, lives where nobody answers."""
    vip = LookupList("vip", "customer_id", b"tollgate:fraud:list:vip")
    batch = purchases(32)
    settings = StoreSettings(deadline_s=0.5)
    keys = [decided_key("fraud", one) for one in batch.transaction_id]
    for key in keys:
        own_cluster.clients[own_cluster.of(key)].set(key, b"x")
    own_cluster.clients[own_cluster.of(vip.key)].sadd(vip.key, *batch.entity_id[0])
    away = next(node for node in range(3) if node != own_cluster.of(vip.key))
    ladder = open_ladder(spec, own_cluster.url, settings=settings, lists=[vip])
    bit = Degraded.LOOKUPS_UNREAD
    for alive in (True, False):
        (scored,) = ladder.score([batch], write=[False])
        gone = [not alive and own_cluster.of(key) == away for key in keys]
        assert ((scored.degraded & bit) != 0).tolist() == gone
        assert scored.looked.earlier == [b"" if one else b"x" for one in gone]
        assert scored.looked.list_hits.tolist() == [1] * 32
        if alive:
            os.kill(own_cluster.nodes[away].pid, signal.SIGKILL)
    os.kill(own_cluster.nodes[own_cluster.of(vip.key)].pid, signal.SIGKILL)
    (scored,) = ladder.score([batch], write=[False])
    ladder.close()
    assert ((scored.degraded & bit) != 0).all()
    assert not scored.looked.list_hits.any()

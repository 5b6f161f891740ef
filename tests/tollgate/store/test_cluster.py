"""A real Redis Cluster of three masters: as one Redis, also while slots move."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest
import redis
from redis.crc import key_slot

from tests.support.store.redis_cluster import (
    DEADLINE_S,
    Cluster,
    cluster_at,
    labels_of,
    purchases,
    same,
)
from tests.support.store.redis_processes import free_ports
from tollgate.audit.chain.anchor import AnchorMark
from tollgate.audit.worker.chunk_source import ChunkSource
from tollgate.errors import InputError
from tollgate.features.spec.feature_spec import FeatureSpec
from tollgate.journal.journal_stream import JournalStream
from tollgate.journal.stream_entries import End, stream_key
from tollgate.schema import Applied, Degraded
from tollgate.store.dual_writes import WrittenStates, states_key, written_state
from tollgate.store.event_writer import EventWriter
from tollgate.store.online_features import OnlineFeatures
from tollgate.store.redis.cluster_nodes import SLOTS, SlotMap
from tollgate.store.redis.cluster_store import ClusterStore, open_store
from tollgate.store.redis.pipelined_connection import open_pipeline
from tollgate.store.redis.redis_store import RedisStore
from tollgate.store.store_opening import StoreSettings, open_fallback_chain
from tollgate.store.stored_decisions import store_command, stored_decision_key


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


def values_of(client: redis.Redis) -> dict[bytes, bytes]:
    """Read all values of one Redis."""
    return {key: client.get(key) for key in client.keys("*")}


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
    assert stored == values_of(redis_client)
    assert {cluster.of(key) for key in stored} == {0, 1, 2}


def test_slots_that_move_are_followed(
    own_cluster: Cluster,
    store_url: str,
    redis_client: redis.Redis,
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
    for target in range(3):
        cluster.own([slot for slot, at in moving if (at + 1) % 3 == target], target)
    assert cluster.values() == values_of(redis_client), "the cluster lost a value"
    same(many, single, [purchases(32, seed=1, first=160), purchases(32, seed=5)])
    time.sleep(0.3)  # the map may be looked at again
    same(many, single, [purchases(32, seed=1, first=200), purchases(32, seed=6)])


def test_a_step_writes_the_other_state_of_a_cluster(
    cluster: Cluster, spec: FeatureSpec, spec_path: Path, tmp_path: Path
) -> None:
    """Each key goes to its own node; a node without the script gets it."""
    path = tmp_path / "features.yaml"
    path.write_text(spec_path.read_text() + "\ngeneration: 1\n")
    states = [written_state(one, since="") for one in (spec_path, path)]
    settings = StoreSettings(deadline_s=5.0)
    chain = open_fallback_chain(spec, cluster.url, settings=settings)
    open_store(cluster.url, deadline_s=5.0).flush(
        [],
        extra_commands=[
            (b"SET", states_key("fraud"), msgspec.json.encode(WrittenStates(states)))
        ],
    )
    time.sleep(1.1)  # the step reads the list once a second
    cluster.clients[1].script_flush()
    for number in range(2):
        (scored,) = chain.score([purchases(16, seed=number)], write=[True])
        assert not np.any(scored.degraded & Degraded.STORE_UNAVAILABLE)
    chain.close()
    own, other = (one.state.encode() for one in states)
    stored = cluster.values()
    values = {key: value for key, value in stored.items() if own in key}
    assert values
    assert stored == values | {
        key.replace(own, other): value for key, value in values.items()
    }


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
        store.flush([], extra_commands=[(b"SCAN", b"0")])
    meant: list[str] = []
    _, replies = store.flush(
        [],
        extra_commands=[(b"SET", b"a", b"1"), (b"MGET", b"a", b"b")],
        on_wait=lambda: meant.append("once, for all nodes"),
    )
    assert replies == [b"OK", [b"1", None]]
    assert len(meant) == 1


def test_slot_map_takes_no_nonsense() -> None:
    """An error, an empty list or a torn reply leaves the map as it was."""
    slots = SlotMap()
    seed = ("seed", 1)
    assert slots.learn([[0, SLOTS - 1, [b"", 7, b"id"]]], source=seed)
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
        assert not slots.learn(nonsense, source=seed), nonsense
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
        ladder = open_fallback_chain(spec, url, settings=settings)
        (one,) = ladder.score([purchases(32)], write=[True])
        assert "purchases" in ladder.feeds.watermark_us
        ladder.close()
        scored.append(one)
    assert scored[0].features.tobytes() == scored[1].features.tobytes()
    assert not np.any(scored[0].degraded & ~np.uint32(Degraded.COLD_START))


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
    store.flush(
        [], extra_commands=[(b"MGET", b"tollgate:fraud:a", b"tollgate:fraud:b")]
    )
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
    stream = JournalStream("fraud", open_pipeline(cluster.url, deadline_s=DEADLINE_S))
    chunks = [b"chunk %d" % number for number in range(5)]
    keys = [stored_decision_key("fraud", b"t%d" % number) for number in range(30)]
    extra_commands = [store_command(key, b"value", window_ms=60_000) for key in keys]
    assert stream.add(chunks, extra_commands=extra_commands) == 5
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
    stream = JournalStream("fraud", open_pipeline(cluster.url, deadline_s=DEADLINE_S))
    assert stream.add([b"chunk %d" % number for number in range(5)]) == 5
    stream.close()
    source = ChunkSource(cluster.url, product="fraud")
    mark = AnchorMark(chain="00" * 16, number=1, hash="11" * 32)
    source.require_chain(mark, [mark.hash])
    source.note(mark)
    source.require_chain(mark, [mark.hash])
    taken = source.poll(most=3, wait_s=0.01)
    taken += source.poll(most=3, wait_s=0.01)  # what is new, behind what was left
    taken += source.poll(most=3, wait_s=0.01)
    assert [one.chunk for one in taken] == [b"chunk %d" % number for number in range(5)]
    assert source.poll(most=3, wait_s=0.01) == []
    source.add_dead_letter(taken[0], "it is no chunk")
    source.acknowledge([one.id for one in taken[:4]])
    owner = cluster.clients[cluster.of(stream_key("fraud"))]
    assert owner.xlen(stream_key("fraud")) == 1
    letters = stream_key("fraud") + b":dead-letters"
    assert cluster.clients[cluster.of(letters)].xlen(letters) == 1
    source.close()

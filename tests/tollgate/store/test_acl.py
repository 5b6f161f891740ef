"""The lines of docs/store.md give each user what it needs, and nothing else."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import redis

from tests.support.audit.ranked_records import write_ranked_shop
from tests.support.products.small_shop import small_catalogue
from tests.support.store.redis_processes import free_ports, running, system_redis
from tests.support.stream.alarm_chain import make_consumer, reading
from tollgate.backfill.copying import (
    copy_state,
    delete_values,
    end_dual_writes,
    mark_filled,
    read_states,
    start_dual_writes,
)
from tollgate.backfill.materialize import materialize
from tollgate.backfill.prepared_lists import (
    PreparedRelease,
    most_active_users,
    open_ranking_release,
    prepare_lists,
)
from tollgate.backfill.tables import load_table
from tollgate.errors import StoreError
from tollgate.features.feature_tables import TableRows
from tollgate.features.spec.feature_spec import FeatureSpec, load_spec
from tollgate.history import history_of
from tollgate.journal.journal_stream import JournalStream
from tollgate.journal.stream_entries import End
from tollgate.ranking.prepared import prepared_key
from tollgate.schema import Applied, Degraded, hash_words
from tollgate.server.processes.environment import find_redis_server
from tollgate.simulate import simulate
from tollgate.store.dual_writes import WrittenState, state_text
from tollgate.store.event_writer import EventWriter
from tollgate.store.fallback.fallback_chain import FallbackChain
from tollgate.store.id_lists import LookupList, list_key
from tollgate.store.list_editing import ListStore
from tollgate.store.online_features import OnlineFeatures
from tollgate.store.redis.pipelined_connection import open_pipeline
from tollgate.store.redis.redis_store import RedisStore
from tollgate.store.redis.store_address import open_client
from tollgate.store.stock_view import StockView
from tollgate.store.store_events import Labels, Purchases
from tollgate.store.store_opening import StoreSettings, open_fallback_chain
from tollgate.store.stored_decisions import stored_decision_key
from tollgate.stream.consumer import StreamConsumer, StreamMetrics
from tollgate.stream.events import EventCodec
from tollgate.stream.redis_streams import RedisFeed, RedisSource
from tollgate.testing import Answer, TestServer

PAPER = Path(__file__).parents[3] / "docs" / "store.md"
FEED = "tollgate.fraud.events"
NOW_US = 1_600_000_000_000_000
LEASE_S = 30.0  # none runs out on a busy machine
UrlOf = Callable[[str], str]
TABLES = """
version: 1
product: fraud
entities:
  customer: {key: customer_id}
  terminal: {key: terminal_id}
tables:
  limits: {entity: customer, refresh: 1h}
features:
  - {name: n_1d, entity: customer, aggregate: count, window: 1d}
  - {name: limit, table: limits, column: limit, default: 0.5}
  - {name: m_1d, entity: terminal, aggregate: count, window: 1d}
"""

ASKS_FOR_TOO_MUCH: list[tuple[str | bytes, ...]] = [
    ("FLUSHALL",),
    ("FLUSHDB",),
    ("KEYS", "*"),
    ("SCAN", "0"),
    ("CONFIG", "GET", "*"),
    ("CONFIG", "SET", "maxmemory", "1"),
    ("ACL", "LIST"),
    ("SCRIPT", "FLUSH"),
    ("SHUTDOWN", "NOSAVE"),
    ("SUBSCRIBE", "anything"),
    ("EVAL", "return 1", "0"),
    ("CLIENT", "LIST"),
    ("DUMP", "tollgate:fraud:x"),
    ("GET", "tollgate:other-product:x"),
    ("SET", "tollgate:other-product:x", "1"),
    ("GET", "session:1"),
    ("XADD", "another-feed:0", "*", "event", "{}"),
]


def lines() -> list[str]:
    """Take the ACL lines out of the paper."""
    return re.findall(r"^user .*$", PAPER.read_text(), re.MULTILINE)


def users() -> dict[str, str]:
    """Name the paper's users, with their passwords."""
    found = [re.match(r"user (\S+) on >(\S+) ", line) for line in lines()]
    return {one[1]: one[2] for one in found if one}


@pytest.fixture(
    scope="module",
    params=[
        "embedded",
        pytest.param("system", marks=pytest.mark.system("redis-server")),
    ],
)
def port(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[int]:
    """A Redis that knows the paper's users, and one who may do all."""
    old = request.param == "embedded"
    binary = find_redis_server() if old else system_redis()
    folder = tmp_path_factory.mktemp(f"acl-{request.param}")
    acl = folder / "users.acl"
    everything = "user root on >root ~* &* +@all"
    acl.write_text("\n".join([*lines(), everything]) + "\n")
    (number,) = free_ports(1)
    options = {"port": str(number), "aclfile": str(acl)}
    with running(binary, folder, port=number, options=options):
        yield number


@pytest.fixture
def root(port: int) -> Iterator[redis.Redis]:
    """Whoever may do all; the store is empty, and nothing was refused yet."""
    client = redis.Redis(port=port, username="root", password="root")
    client.flushall()
    client.script_flush()
    client.acl_log_reset()
    yield client
    client.close()


@pytest.fixture
def url_of(port: int) -> UrlOf:
    """Address the store as one of the paper's users."""
    return lambda user: f"redis://{user}:{users()[user]}@127.0.0.1:{port}"


class AtFirstTrouble(threading.Event):
    """Stops a consumer where it would wait to try again."""

    def wait(self, timeout: float | None = None) -> bool:
        """Do not."""
        self.set()
        return True


def purchases(first: int = 0) -> Purchases:
    """Three purchases of two customers."""
    return Purchases(
        transaction_id=[b"t%d" % (first + row) for row in range(3)],
        entity_id=[[b"c1", b"c2", b"c1"], [b"m1", b"m1", b"m2"]],
        event_time_us=NOW_US + first + np.arange(3),
        cents=np.array([100, 200, 300]),
    )


def labels() -> Labels:
    """The label of the first of them."""
    return Labels(
        transaction_id=[b"t0"],
        entity_id=[[b"c1"], [b"m1"]],
        event_time_us=np.array([NOW_US]),
        label=np.array([1], np.int8),
        label_time_us=np.array([NOW_US + 10]),
        revision=np.array([0]),
    )


def refused(root: redis.Redis) -> list[str]:
    """Tell what the store refused, and to whom; as it logged it."""
    return [f"{one['username']}: {one['object']}" for one in root.acl_log()]


def test_paper_has_a_line_for_each_user() -> None:
    """Each is on, with a password of its own; the default user is off."""
    assert lines()[0] == "user default off"
    assert len(users()) == len(lines()) - 1 == len(set(users().values()))


def test_step_needs_no_more_than_its_line(
    url_of: UrlOf, root: redis.Redis, spec: FeatureSpec
) -> None:
    """Warm-up, decisions wet and dry, watermarks, a probe, the journal: all allowed."""
    settings = StoreSettings(deadline_s=5.0)
    vip = LookupList("vip", "customer_id", list_key("fraud", "vip"))
    url = url_of("tollgate-step")
    ladder = open_fallback_chain(spec, url, settings=settings, lists=[vip])
    (scored,) = ladder.score([purchases()], write=[True])
    assert scored.applied.tolist() == [Applied.YES] * 3
    root.script_flush()
    (again,) = ladder.score([purchases(3)], write=[False])
    assert not np.any(again.degraded & ~np.uint32(Degraded.COLD_START))
    assert "purchases" in ladder.feeds.watermark_us
    ladder.score([purchases(6)], write=[True])
    assert hits_of(ladder) == 2
    ladder.close()
    store = RedisStore(url_of("tollgate-step"), deadline_s=5.0)
    assert store.probe()
    store.close()
    line = open_pipeline(url_of("tollgate-step"), deadline_s=5.0)
    stream = JournalStream("fraud", line)
    answer = (
        b"SET",
        stored_decision_key("fraud", b"t0"),
        b"value",
        b"NX",
        b"PX",
        1_000,
    )
    assert stream.add([b"chunk"], extra_commands=[answer]) == 1
    assert stream.end(End("00" * 8, 1, killed=False))
    stream.close()
    store = RedisStore(url_of("tollgate-step"), deadline_s=5.0)
    stock = StockView(store, small_catalogue(), product="fraud", name="out_of_stock")
    stock.refresh()
    stock.close()
    assert refused(root) == []


def hits_of(chain: FallbackChain) -> int:
    """Return how many purchases were appended in place."""
    assert chain._caller._appends is not None
    return chain._caller._appends.hits


@pytest.mark.parametrize("right", ["getrange", "setrange", "append", "expire"])
def test_step_needs_no_right_to_append_in_place(
    url_of: UrlOf, root: redis.Redis, spec: FeatureSpec, right: str
) -> None:
    """Without it, the store reads every value: the same answers and values."""
    everything = open_fallback_chain(
        spec, url_of("tollgate-step"), settings=StoreSettings(deadline_s=5.0)
    )
    answers, stored = [], []
    for change in (f"+{right}", f"-{right}"):
        root.execute_command("ACL", "SETUSER", "tollgate-step", change)
        root.flushall()
        for first in (0, 3, 6):
            (scored,) = everything.score([purchases(first)], write=[True])
            assert scored.applied.tolist() == [Applied.YES] * 3
        answers.append(scored.features)
        stored.append({key: root.get(key) for key in root.scan_iter("*:customer:*")})
    root.execute_command("ACL", "SETUSER", "tollgate-step", f"+{right}")
    everything.close()
    assert hits_of(everything) == 4
    np.testing.assert_array_equal(*answers)
    assert stored[0] == stored[1]


def test_tables_need_no_more_than_the_lines(
    url_of: UrlOf, root: redis.Redis, tmp_path: Path
) -> None:
    """The loader fills one, the step reads it at its start and with a batch."""
    path = tmp_path / "features.yaml"
    path.write_text(TABLES)
    shop = load_spec(path)
    (table,) = shop.tables
    rows = TableRows(
        source="a test",
        ids=[b"c1"],
        valid_us=np.array([0]),
        values=np.array([[0.25]]),
    )
    store = RedisStore(url_of("tollgate-load"), deadline_s=5.0)
    assert load_table(shop, table, rows, store).written == 1
    store.close()
    settings = StoreSettings(deadline_s=5.0)
    ladder = open_fallback_chain(shop, url_of("tollgate-step"), settings=settings)
    assert len(ladder.tables.memory) >= 1
    (scored,) = ladder.score([purchases()], write=[True])
    ladder.close()
    assert scored.features[:, 1].tolist() == [0.25, 0.5, 0.25]
    assert refused(root) == []


def test_copying_a_state_needs_no_more_than_its_line(
    url_of: UrlOf, root: redis.Redis, spec: FeatureSpec
) -> None:
    """Another state of the same product is filled from this one, listed and deleted."""
    store = RedisStore(url_of("tollgate-load"), deadline_s=5.0)
    OnlineFeatures(spec, store).load(purchases())
    store.close()
    other = msgspec.structs.replace(spec, state_hash=spec.state_hash + 1)
    root.script_flush()
    store = RedisStore(url_of("tollgate-copy"), deadline_s=5.0)
    done = copy_state(spec, other, store)
    assert (done.values, done.applied) == (4, 6)
    assert delete_values("fraud", state_text(other), store) == 4
    states = [WrittenState(state=name, spec="", hook="", since="") for name in "ab"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tollgate.backfill.copying.WRITERS_READ_S", 0)
        start_dual_writes("fraud", states, store, days=1)
        mark_filled("fraud", "a", store, filled="now")
        end_dual_writes("fraud", ["b"], store)
    assert read_states("fraud", store) == []
    store.close()
    assert refused(root) == []


def test_loading_history_needs_no_more_than_its_line(
    url_of: UrlOf, root: redis.Redis, spec: FeatureSpec
) -> None:
    """Purchases, labels and reading: nothing is refused."""
    store = RedisStore(url_of("tollgate-load"), deadline_s=5.0)
    online = OnlineFeatures(spec, store)
    assert online.load(purchases()).tolist() == [Applied.YES] * 3
    assert online.label(labels()).tolist() == [Applied.YES]
    online.score([purchases(3)], write=[True])
    frame = simulate(customers=3, terminals=3, days=2, radius=80.0, seed=1)
    done = materialize(spec, history_of(frame, spec=spec, source="simulated"), store)
    assert done.sent == done.applied > 0
    store.close()
    assert refused(root) == []


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> PreparedRelease:
    """A release that ranks, with the keys of the paper's product."""
    repository = tmp_path_factory.mktemp("shop") / "models"
    write_ranked_shop(repository)
    release = open_ranking_release(repository, "shop")
    spec = msgspec.structs.replace(release.spec, product="fraud")
    return msgspec.structs.replace(release, spec=spec, stock="out_of_stock")


def test_preparing_lists_needs_no_more_than_its_line(
    url_of: UrlOf, root: redis.Redis, shop: PreparedRelease
) -> None:
    """The most active users are found, and the first step reads their lists."""
    store = RedisStore(url_of("tollgate-load"), deadline_s=5.0)
    views = Purchases(
        transaction_id=[b"e1", b"e2"],
        entity_id=[[b"ann", b"ann"]],
        event_time_us=np.array([NOW_US, NOW_US + 1]),
        cents=np.zeros(2, np.int64),
        fields={
            "item": hash_words([b"i1", b"i2"]),
            "action": hash_words([b"view"] * 2),
        },
    )
    EventWriter(shop.spec, store).purchases(views)
    store.close()
    root.script_flush()
    store = RedisStore(url_of("tollgate-prepare"), deadline_s=5.0)
    now_us = NOW_US + 1_000_000
    users = most_active_users(shop.spec, store, 5, now_us=now_us)
    assert users == [b"ann"]
    done = prepare_lists(shop, store, users, life_us=10**8, wall_us=lambda: now_us)
    assert done.prepared == 1
    store.close()
    settings = StoreSettings(deadline_s=5.0, updates=False)
    ladder = open_fallback_chain(shop.spec, url_of("tollgate-step"), settings=settings)
    (scored,) = ladder.score([msgspec.structs.replace(views, fields={})], write=[True])
    ladder.close()
    entry = root.get(prepared_key("fraud", b"ann"))
    assert scored.lookups.prepared == [entry] * 2
    assert refused(root) == []


def test_feed_and_stream_need_no_more_than_their_lines(
    url_of: UrlOf, root: redis.Redis, spec: FeatureSpec
) -> None:
    """Events of both kinds and poison, leases, dead letters, tidying, backlog."""
    codec = EventCodec(spec)
    feed = RedisFeed(url_of("tollgate-feeder"), feed=FEED)
    sent = [*codec.encode_purchases(purchases()), *codec.encode_labels(labels())]
    feed.send([b"c1"] * 5, [*sent, b"poison"])
    feed.close()
    source = RedisSource(
        url_of("tollgate-stream"), feed=FEED, group="tollgate", lease_s=LEASE_S
    )
    source._tidy_at_s = 0.0  # due at once
    store = RedisStore(url_of("tollgate-stream"), deadline_s=5.0)
    consumer = StreamConsumer(
        source, EventWriter(spec, store), metrics=StreamMetrics("fraud")
    )
    stopped = AtFirstTrouble()
    while consumer.step(stopped, wait_s=0.01) and not stopped.is_set():
        pass
    source._leases._next_s = 0.0  # their renewal is due at once
    consumer.step(stopped, wait_s=0.01)
    source.close()
    store.close()
    assert (consumer.tally.applied, consumer.tally.dead_letters) == (4, 1)
    assert consumer.tally.retries == 0
    assert refused(root) == []


def test_alarms_need_no_more_than_their_line(
    url_of: UrlOf, root: redis.Redis, spec: FeatureSpec
) -> None:
    """Readings, dead letters, outcomes and alarms; leases, tidying, backlog."""
    feed = "tollgate.fraud.readings"
    url = url_of("tollgate-alarms")
    for event in (reading("r-1", "m", amount=500.0), reading("r-2", "m"), b"poison"):
        root.xadd(f"{feed}:0", {"event": event})
    source = RedisSource(url, feed=feed, group="tollgate", lease_s=LEASE_S)
    source._tidy_at_s = 0.0  # due at once
    stopped = AtFirstTrouble()
    with TestServer() as server:
        server.answer("r-1", Answer("review"))
        consumer = make_consumer(
            source,
            RedisFeed(url, feed="tollgate.fraud.alarms"),
            spec=spec,
            store_url=url,
            server_url=server.url,
            stopped=stopped,
        )
        while consumer.step(wait_s=0.01) and not stopped.is_set():
            pass
        consumer._outcomes.require_store()
        consumer._scorer.close()
        consumer._alarms.close()
    source._leases._next_s = 0.0  # their renewal is due at once
    consumer.step(wait_s=0.01)
    source.close()
    assert (consumer.decided, consumer.alarms) == (2, 2)
    assert consumer.dead_letters == 1
    assert consumer.retries == 0
    assert refused(root) == []


def test_lists_need_no_more_than_their_line(
    url_of: UrlOf, root: redis.Redis, spec: FeatureSpec
) -> None:
    """Added, counted, looked up, listed and removed: nothing is refused."""
    lists = ListStore(url_of("tollgate-lists"), timeout_s=5.0)
    key = list_key("fraud", "stolen_cards")
    assert lists.add(key, [b"c1", b"c2"]) == 2
    assert lists.size(key) == 2
    assert lists.holds(key, [b"c1", b"c3"]) == [True, False]
    assert sorted(lists.members(key)) == [b"c1", b"c2"]
    assert lists.remove(key, [b"c1"]) == 1
    lists.close()
    assert refused(root) == []


def test_who_keeps_lists_sees_no_values(url_of: UrlOf, root: redis.Redis) -> None:
    """Only keys of lists are theirs."""
    lists = ListStore(url_of("tollgate-lists"), timeout_s=5.0)
    with pytest.raises(StoreError):
        lists.size(b"tollgate:fraud:0123456789abcdef:customer:c1")
    lists.close()
    assert refused(root) != []


@pytest.mark.parametrize("user", sorted(users()))
@pytest.mark.parametrize("command", ASKS_FOR_TOO_MUCH, ids=lambda one: " ".join(one))
def test_what_no_line_gives_is_refused(
    url_of: UrlOf, root: redis.Redis, user: str, command: tuple[str, ...]
) -> None:
    """Emptying, listing, settings, other products' keys: for none of the users."""
    if command[0] == "SCAN" and user in ("tollgate-copy", "tollgate-prepare"):
        return  # which is what it is for
    client = open_client(url_of(user), timeout_s=5.0)
    with pytest.raises(redis.exceptions.NoPermissionError):
        client.execute_command(*command)
    client.close()
    assert refused(root) != []


def granted() -> list[tuple[str, str]]:
    """Name each right with the user whose line gives it."""
    return [
        (re.match(r"user (\S+)", line)[1], right)
        for line in lines()
        for right in re.findall(r" \+(\S+)", line)
    ]


@pytest.mark.parametrize(("user", "right"), granted())
def test_no_right_in_a_line_is_to_spare(
    url_of: UrlOf,
    root: redis.Redis,
    spec: FeatureSpec,
    shop: PreparedRelease,
    user: str,
    right: str,
) -> None:
    """Without any one of them, something the user does is refused."""
    old = root.info()["redis_version"] < "7"  # it cannot take a subcommand away
    if right == "xrange" and not old:
        return  # Redis 7 counts what waits by itself; 6.2 must be asked to
    taken = right.partition("|")[0] if old else right
    root.execute_command("ACL", "SETUSER", user, f"-{taken}")
    try:
        with pytest.raises((StoreError, AssertionError)):
            DOES[user](url_of, root, shop if user == "tollgate-prepare" else spec)
    finally:
        root.execute_command("ACL", "SETUSER", user, f"+{right}")


DOES: dict[str, Callable[[UrlOf, redis.Redis, Any], None]] = {
    "tollgate-step": test_step_needs_no_more_than_its_line,
    "tollgate-copy": test_copying_a_state_needs_no_more_than_its_line,
    "tollgate-load": test_loading_history_needs_no_more_than_its_line,
    "tollgate-stream": test_feed_and_stream_need_no_more_than_their_lines,
    "tollgate-alarms": test_alarms_need_no_more_than_their_line,
    "tollgate-prepare": test_preparing_lists_needs_no_more_than_its_line,
    "tollgate-lists": test_lists_need_no_more_than_their_line,
    "tollgate-feeder": test_feed_and_stream_need_no_more_than_their_lines,
}

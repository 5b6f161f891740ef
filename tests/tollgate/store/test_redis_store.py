"""One connection to a real Redis: scripts that vanish, silence, death, refusal."""

from __future__ import annotations

import os
import select
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import redis

from tests.support.store.relay import Relay
from tollgate.errors import (
    InputError,
    OutcomeUnknown,
    StoreError,
    StoreLost,
    StoreTimeout,
)
from tollgate.features.spec.feature_spec import FeatureSpec
from tollgate.schema import Applied
from tollgate.server.processes.redis_server import EmbeddedRedis
from tollgate.store.online_features import OnlineFeatures
from tollgate.store.redis.redis_store import Mode, RedisStore
from tollgate.store.store_events import Packer, Purchases, purchase_entries

NOW_US = 1_600_000_000_000_000
OnlineAt = Callable[..., OnlineFeatures]

COUNT = 3  # column of customer_nb_tx_1d


@pytest.fixture
def online_at(spec: FeatureSpec, open_store: Callable[..., RedisStore]) -> OnlineAt:
    """Open the product's features over the store at an address."""

    def open_(url: str, *, deadline_s: float = 10.0) -> OnlineFeatures:
        return OnlineFeatures(spec, open_store(url, deadline_s=deadline_s))

    return open_


def of(customer: bytes, *, rows: int = 1, first: int = 0) -> Purchases:
    """Purchases of one customer, one µs apart."""
    return Purchases(
        transaction_id=[b"%s-%d" % (customer, first + n) for n in range(rows)],
        entity_id=[[customer] * rows, [b"t-" + customer] * rows],
        event_time_us=NOW_US + first + np.arange(rows),
        cents=np.full(rows, 100),
    )


def counts(online: OnlineFeatures, batch: Purchases) -> list[float]:
    """How many purchases each row's customer made within a day."""
    (vectors,) = online.score([batch], write=[True])
    return vectors.features[:, COUNT].tolist()


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[EmbeddedRedis]:
    """A Redis that a test may stop, freeze or fill."""
    with EmbeddedRedis(tmp_path) as server:
        yield server


@pytest.fixture
def relay(redis_server: EmbeddedRedis, store_url: str) -> Iterator[Relay]:
    """A port before the shared, empty Redis."""
    one = Relay(redis_server.socket_path)
    yield one
    one.close()


def test_script_is_loaded_when_redis_does_not_have_it(
    online_at: OnlineAt, store_url: str, redis_client: redis.Redis
) -> None:
    """On a fresh server, and again after SCRIPT FLUSH; several calls at once too."""
    online = online_at(store_url)
    assert counts(online, of(b"c")) == [1]
    redis_client.script_flush()
    batches = [of(b"c", first=1), of(b"c", first=2), of(b"d")]
    answers = online.score(batches, write=[True, False, True])
    assert [one.features[0, COUNT] for one in answers] == [2, 3, 1]
    assert [one.applied.tolist() for one in answers[::2]] == [[Applied.YES]] * 2
    redis_client.script_flush()
    assert online.load(of(b"c", first=1)).tolist() == [Applied.DUPLICATE]


def test_store_that_is_not_there_is_an_error_and_may_come(
    online_at: OnlineAt, tmp_path: Path
) -> None:
    """Nobody listens: StoreError. Once somebody does, the next call works."""
    with EmbeddedRedis(tmp_path) as server:
        url = server.url
    online = online_at(url)
    for _ in range(2):
        with pytest.raises(StoreError, match="the store failed: ") as caught:
            online.score([of(b"c")], write=[True])
        assert not isinstance(caught.value, StoreTimeout)
    with EmbeddedRedis(tmp_path):
        assert counts(online, of(b"c")) == [1]


def test_store_that_died_and_came_back_is_used_again(
    online_at: OnlineAt, tmp_path: Path
) -> None:
    """A restart between two calls costs none; one that is not over, those meanwhile."""
    with EmbeddedRedis(tmp_path) as server:
        online = online_at(server.url)
        assert counts(online, of(b"c")) == [1]
    with EmbeddedRedis(tmp_path):
        assert counts(online, of(b"c", first=1)) == [2]
    for _ in range(2):
        with pytest.raises(StoreError) as caught:
            online.score([of(b"c", first=2)], write=[True])
        assert not isinstance(caught.value, OutcomeUnknown)
    with EmbeddedRedis(tmp_path):
        assert counts(online, of(b"c", first=3)) == [3]


def test_connection_closed_while_idle_costs_no_call(
    online_at: OnlineAt, store_url: str, redis_client: redis.Redis
) -> None:
    """Redis drops idle clients (`timeout`); the next call opens a new connection."""
    online = online_at(store_url)
    for first in range(3):
        assert counts(online, of(b"c", first=first)) == [first + 1]
        assert redis_client.client_kill_filter(_type="normal", skipme=True) == 1


def test_connection_closed_while_idle_costs_no_call_over_tcp(
    online_at: OnlineAt, relay: Relay
) -> None:
    """There the first bytes after the close would still go out without an error."""
    online = online_at(relay.url)
    for first in range(3):
        assert counts(online, of(b"c", first=first)) == [first + 1]
        relay.drop()
    assert relay.accepted == 3


def test_connection_that_breaks_while_sending_is_replaced_once(
    online_at: OnlineAt, relay: Relay
) -> None:
    """An open connection gets a second try; a new one that breaks too is lost."""
    online = online_at(relay.url)
    assert counts(online, of(b"c")) == [1]
    large = Purchases(  # more than the sockets hold: to send it takes a reader
        transaction_id=[b"1"],
        entity_id=[[b"d" * 5_000_000], [b"t" * 5_000_000]],
        event_time_us=np.array([NOW_US]),
        cents=np.array([100]),
    )
    relay.hang_ups = 1
    assert set(online.load(large).tolist()) == {Applied.YES}
    assert (relay.hang_ups, relay.accepted) == (0, 2)
    relay.hang_ups = 2
    with pytest.raises(StoreLost):
        online.load(large)
    assert (relay.hang_ups, relay.accepted) == (0, 3)
    assert online.load(large).tolist() == [Applied.DUPLICATE]


def test_connection_lost_before_the_answer_leaves_the_outcome_unknown(
    online_at: OnlineAt, relay: Relay
) -> None:
    """The events are applied, nobody can know, and once more does no harm."""
    online = online_at(relay.url)
    assert counts(online, of(b"c")) == [1]
    relay.mute = True
    with pytest.raises(StoreLost, match="lost before it answered: ") as caught:
        online.score([of(b"c", first=1)], write=[True])
    assert isinstance(caught.value, OutcomeUnknown)
    assert relay.accepted == 1
    relay.mute = False
    assert online.load(of(b"c", first=1)).tolist() == [Applied.DUPLICATE]
    assert counts(online, of(b"c", first=2)) == [3]


@pytest.mark.parametrize("warm", [True, False])
def test_deadline_holds_for_the_whole_call(
    online_at: OnlineAt, relay: Relay, redis_client: redis.Redis, *, warm: bool
) -> None:
    """
    Each answer comes in time, all of them together do not.

    A new connection waits for its greetings; an open one whose script is gone waits
    for the refusal, then for the answer.
    """
    online = online_at(relay.url, deadline_s=0.5)
    if warm:
        assert counts(online, of(b"c")) == [1]
        redis_client.script_flush()
    relay.delay_s = 0.3
    with pytest.raises(StoreTimeout, match="within 500 ms"):
        online.load(of(b"c", first=1))
    relay.delay_s = 0.0
    assert len(counts(online_at(relay.url), of(b"c", first=2))) == 1


def test_call_refused_in_part_leaves_the_outcome_unknown(
    spec: FeatureSpec,
    own_server: EmbeddedRedis,
    open_store: Callable[..., RedisStore],
) -> None:
    """Without memory a dry run is answered and a write is not: not all was refused."""
    store, batch = open_store(own_server.url), of(b"c")
    call = Packer(spec).pack(purchase_entries(batch), batch.entity_id)
    with redis.Redis.from_url(own_server.url) as client:
        client.config_set("maxmemory", 1)
    with pytest.raises(OutcomeUnknown, match="OOM command not allowed"):
        store.apply([(call, Mode.DRY), (call, Mode.WRITE)])
    with pytest.raises(StoreError, match="OOM command not allowed") as caught:
        store.apply([(call, Mode.WRITE)])
    assert not isinstance(caught.value, OutcomeUnknown)


def test_silent_store_is_a_timeout_and_its_late_reply_is_never_read(
    online_at: OnlineAt, store_url: str, redis_client: redis.Redis
) -> None:
    """After a pause the next call has a connection, and an answer, of its own."""
    online = online_at(store_url, deadline_s=0.5)
    assert counts(online, of(b"c")) == [1]
    for round_ in (1, 2):
        redis_client.execute_command("CLIENT", "PAUSE", 60_000, "WRITE")
        try:
            with pytest.raises(StoreTimeout, match="within 500 ms") as caught:
                online.score(
                    [of(b"c", rows=5, first=10 * round_)] * 2, write=[True] * 2
                )
        finally:
            redis_client.execute_command("CLIENT", "UNPAUSE")
        assert caught.value.deadline_s == 0.5
        assert counts(online, of(b"d", first=round_)) == [round_]


def test_late_store_keeps_its_connection_and_late_replies_are_dropped(
    online_at: OnlineAt, store_url: str, redis_client: redis.Redis
) -> None:
    """A new connection would come even later; the next answer is the next call's."""
    online = online_at(store_url, deadline_s=0.5)
    assert counts(online, of(b"c")) == [1]
    before = {client["id"] for client in redis_client.client_list()}
    redis_client.execute_command("CLIENT", "PAUSE", 60_000, "WRITE")
    try:
        for first in (10, 20):
            with pytest.raises(StoreTimeout):
                online.score([of(b"c", first=first)], write=[True])
    finally:
        redis_client.execute_command("CLIENT", "UNPAUSE")
    assert counts(online, of(b"d", first=1)) == [1]
    assert counts(online, of(b"c", first=30)) == [4]
    assert {client["id"] for client in redis_client.client_list()} == before


@pytest.mark.parametrize("warm", [True, False])
def test_frozen_store_is_a_timeout_and_applying_again_repairs(
    online_at: OnlineAt, own_server: EmbeddedRedis, *, warm: bool
) -> None:
    """
    The outcome is unknown; the same events once more leave what one time leaves.

    A process that is stopped accepts connections and bytes and answers nothing, so
    a new connection times out as an open one does.
    """
    online = online_at(own_server.url, deadline_s=0.5)
    if warm:
        online.load(of(b"c"))
    os.kill(own_server.pid, signal.SIGSTOP)
    try:
        with pytest.raises(StoreTimeout):
            online.score([of(b"c", rows=3)], write=[True])
        with pytest.raises(StoreTimeout):
            online.load(of(b"c", rows=3))
    finally:
        os.kill(own_server.pid, signal.SIGCONT)
    undisturbed = online_at(own_server.url)
    assert counts(undisturbed, of(b"c", rows=3)) == [1, 2, 3]
    assert counts(online, of(b"c", rows=3)) == [1, 2, 3]
    assert counts(online, of(b"d")) == [1]


def test_values_larger_than_the_buffers_of_the_socket_arrive_whole(
    open_store: Callable[..., RedisStore], own_server: EmbeddedRedis
) -> None:
    """Sent and received in parts; a command cut off by the deadline runs not at all."""
    store = open_store(own_server.url, deadline_s=10.0)
    value = np.random.default_rng(1).bytes(8 << 20)
    commands = [(b"SET", b"a", value), (b"GET", b"a"), (b"PING",)]
    assert store.flush([], extra_commands=commands)[1] == [b"OK", value, b"PONG"]
    os.kill(own_server.pid, signal.SIGSTOP)
    store.deadline_s = 0.5
    try:
        with pytest.raises(StoreTimeout):
            store.flush([], extra_commands=[(b"SET", b"b", value)])
    finally:
        os.kill(own_server.pid, signal.SIGCONT)
    store.deadline_s = 10.0
    commands = [(b"GET", b"b"), (b"PING",)]
    assert store.flush([], extra_commands=commands)[1] == [None, b"PONG"]


def test_store_that_refuses_is_an_error_and_stays_usable(
    online_at: OnlineAt, own_server: EmbeddedRedis
) -> None:
    """Out of memory: StoreError with Redis's words; with memory again it works."""
    online = online_at(own_server.url)
    client = redis.Redis.from_url(own_server.url)
    assert counts(online, of(b"c")) == [1]
    client.config_set("maxmemory", 1)
    with pytest.raises(StoreError, match="OOM command not allowed"):
        online.score([of(b"c", first=1), of(b"d")], write=[True, True])
    client.config_set("maxmemory", 0)
    assert counts(online, of(b"c", first=2)) == [2]
    client.close()


def test_store_that_loads_its_file_has_applied_nothing(
    online_at: OnlineAt, own_server: EmbeddedRedis, tmp_path: Path
) -> None:
    """Redis says so: a StoreError with its words, and no unknown outcome."""
    online = online_at(own_server.url)
    assert counts(online, of(b"c")) == [1]
    script = b"local sum = 0 for i = 1, 20000 do sum = sum + i end"
    slow = b"*3\r\n$4\r\nEVAL\r\n$%d\r\n%s\r\n$1\r\n0\r\n" % (len(script), script)
    with (tmp_path / "redis" / "appendonly.aof").open("ab") as file:
        file.write(slow * 10_000)
    # A plain socket waits as long as it takes: a client would give up while a busy
    # machine still loads.
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(str(own_server.socket_path))
        line.sendall(b"DEBUG LOADAOF\r\n")

        def score_until_refused() -> None:
            while not select.select([line], [], [], 0)[0]:
                online.score([of(b"c")], write=[True])

        with pytest.raises(StoreError, match="failed: Redis is loading") as caught:
            score_until_refused()
        assert not isinstance(caught.value, OutcomeUnknown)
        assert line.recv(64) == b"+OK\r\n"
    assert counts(online, of(b"c", first=1)) == [2]


def test_closed_store_opens_again(
    spec: FeatureSpec, store_url: str, open_store: Callable[..., RedisStore]
) -> None:
    """`close` drops the connection, not the store."""
    store = open_store(store_url)
    online = OnlineFeatures(spec, store)
    assert counts(online, of(b"c")) == [1]
    store.close()
    store.close()
    assert counts(online, of(b"c", first=1)) == [2]


@pytest.mark.parametrize("url", ["", "localhost:6379", "http://localhost", "redis"])
def test_address_of_no_redis_is_refused(url: str) -> None:
    """The sentence says which addresses there are."""
    with pytest.raises(InputError, match=r"store url: .*redis://"):
        RedisStore(url, deadline_s=1.0)

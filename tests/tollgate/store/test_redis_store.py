"""One connection to a real Redis: scripts that vanish, silence, death, refusal."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import redis

from tollgate.errors import InputError, StoreError, StoreTimeout
from tollgate.features.spec import FeatureSpec
from tollgate.schema import Applied
from tollgate.server.redis import EmbeddedRedis
from tollgate.store.events import Purchases
from tollgate.store.online import OnlineFeatures
from tollgate.store.redis import RedisStore

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
    """A restart costs at most the call that finds the old connection closed."""
    with EmbeddedRedis(tmp_path) as server:
        online = online_at(server.url)
        assert counts(online, of(b"c")) == [1]
    with pytest.raises(StoreError):
        online.score([of(b"c", first=1)], write=[True])
    with EmbeddedRedis(tmp_path):
        assert counts(online, of(b"c", first=2)) == [2]


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

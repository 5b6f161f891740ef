"""Appending in place: the same answers and the same bytes as reading every value."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest
import redis
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.store.hot_entities import START_US, busy_spec
from tests.support.store.redis_cluster import Cluster
from tests.support.store.value_model import HORIZON_US, Event, Model
from tollgate import compiled
from tollgate.errors import OutcomeUnknown
from tollgate.features.spec.feature_spec import FeatureSpec
from tollgate.schema import Applied, Degraded
from tollgate.server.processes.redis_server import EmbeddedRedis
from tollgate.store.fallback.fallback_chain import FallbackChain
from tollgate.store.fallback.last_known import LastKnown
from tollgate.store.in_place_appends import InPlaceAppends
from tollgate.store.online_features import OnlineFeatures
from tollgate.store.redis.redis_store import RedisStore
from tollgate.store.store_events import (
    Labels,
    Packer,
    Purchases,
    purchase_entries,
)
from tollgate.store.store_opening import StoreSettings, open_fallback_chain

pytestmark = pytest.mark.skipif(
    compiled.appends is None, reason="the compiled loops are not built here"
)

DAY_US = 86_400_000_000
DEADLINE_S = 30.0
SETTINGS = StoreSettings(deadline_s=DEADLINE_S)
WITHOUT = StoreSettings(deadline_s=DEADLINE_S, appends=False)


@pytest.fixture
def other_server(tmp_path: Path) -> Iterator[EmbeddedRedis]:
    """Start a second Redis, which no process appends to in place."""
    with EmbeddedRedis(tmp_path / "other") as server:
        yield server


def appends_of(chain: FallbackChain) -> InPlaceAppends:
    """Return how often a chain appended in place."""
    appends = chain._caller._appends
    assert appends is not None
    return appends


def random_batch(
    source: random.Random, spec: FeatureSpec, *, newest_us: int, names: list[bytes]
) -> Purchases:
    """Draw purchases: mostly new ones, late ones, ties, and some that come again."""
    rows = source.choice([1, 1, 2, 5, 12])
    ids, times = [], []
    for _ in range(rows):
        if names and source.random() < 0.1:
            ids.append(source.choice(names))
        else:
            ids.append(b"x%d" % source.getrandbits(40))
            names.append(ids[-1])
        behind = source.choice([0, 0, 0, 1, DAY_US // 2, 3 * DAY_US])
        times.append(newest_us - behind + source.choice([0, 0, 1, 60_000_000]))
    fields = {
        field.name: np.array([source.randint(-50, 900) for _ in ids])
        for field in spec.fields
    }
    return Purchases(
        transaction_id=ids,
        entity_id=[
            [b"e%d" % min(source.getrandbits(4), 9) for _ in ids] for _ in spec.entities
        ],
        event_time_us=np.array(times, np.int64),
        cents=np.array([source.randint(0, 9_999) for _ in ids], np.int64),
        fields=fields,
    )


def labels_of(source: random.Random, batch: Purchases) -> Labels:
    """Label the purchases of a batch, with some revision."""
    count = len(batch)
    return Labels(
        transaction_id=batch.transaction_id,
        entity_id=batch.entity_id,
        event_time_us=batch.event_time_us,
        label=np.array([source.randint(0, 1) for _ in range(count)], np.int8),
        label_time_us=batch.event_time_us + source.randint(1, DAY_US),
        revision=np.array([source.choice([0, 0, 1, 2])] * count),
    )


def small(spec: FeatureSpec, *, cap: int) -> FeatureSpec:
    """Let the values without tiles hold fewer entries."""
    entities = tuple(
        one if one.tiles else msgspec.structs.replace(one, cap=cap)
        for one in spec.entities
    )
    return msgspec.structs.replace(spec, entities=entities)


def values_of(client: redis.Redis, spec: FeatureSpec) -> dict[bytes, bytes]:
    """Read the values of all entities."""
    found = client.scan_iter(f"tollgate:{spec.product}:*:*:*", count=1_000)
    return {key: client.get(key) for key in found}


@pytest.mark.parametrize(
    ("hops", "seed"), [(("0", "1h"), 1), (("1h", "1d"), 2), (("0", "0"), 3)]
)
def test_answers_and_bytes_are_those_of_reading_every_value(
    hops: tuple[str, str],
    seed: int,
    tmp_path: Path,
    store_url: str,
    redis_client: redis.Redis,
    other_server: EmbeddedRedis,
) -> None:
    """
    Two processes write one store, with labels, and lose values now and then.

    Late, repeated and simultaneous purchases, folds, trims, full values, dry runs,
    deleted values, an emptied store and lost scripts all occur.
    """
    spec = small(busy_spec(tmp_path, customer=hops[0], terminal=hops[1]), cap=9)
    source = random.Random(seed)
    writers = [open_fallback_chain(spec, store_url, settings=SETTINGS) for _ in "ab"]
    reference = open_fallback_chain(spec, other_server.url, settings=WITHOUT)
    stores = [
        RedisStore(url, deadline_s=DEADLINE_S) for url in (store_url, other_server.url)
    ]
    labelled = [OnlineFeatures(spec, store) for store in stores]
    other = redis.Redis.from_url(other_server.url)
    newest_us, names, batch = START_US, [], None
    for step in range(400):
        newest_us += source.choice([0, 1, 3_600_000_000, DAY_US // 3])
        draw = source.random()
        if draw < 0.05 and batch is not None:
            labels = labels_of(source, batch)
            first, second = (one.label(labels).tolist() for one in labelled)
            assert first == second
        elif draw < 0.07:
            for client in (redis_client, other):
                keys = sorted(client.scan_iter("tollgate:*"))
                client.delete(*keys[: step % 5 + 1], b"none")
        elif draw < 0.08:
            redis_client.script_flush()
        elif draw < 0.085:
            redis_client.flushall()
            other.flushall()
        elif draw < 0.1:
            known = writers[0].last_known
            for key in sorted(known._entries)[: step % 5]:
                known._forget(key)
        else:
            batch = random_batch(source, spec, newest_us=newest_us, names=names)
            chain = writers[source.random() < 0.2]
            write = [source.random() < 0.9]
            (mine,) = chain.score([batch], write=write)
            (wanted,) = reference.score([batch], write=write)
            np.testing.assert_array_equal(mine.features, wanted.features)
            np.testing.assert_array_equal(mine.degraded, wanted.degraded)
            np.testing.assert_array_equal(mine.applied, wanted.applied)
        assert values_of(redis_client, spec) == values_of(other, spec), step
    appends = appends_of(writers[0])
    assert 30 < appends.hits < appends.tries
    for one in (*writers, reference, *stores, other):
        one.close()


@pytest.fixture(scope="module")
def card_packer(spec: FeatureSpec) -> Packer:
    """Pack purchases of one entity with a small value."""
    card = msgspec.structs.replace(
        spec.entities[0], horizon_us=HORIZON_US, cap=12, name="card"
    )
    return Packer(msgspec.structs.replace(spec, entities=(card,)))


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_planned_value_is_that_of_the_contract(
    card_packer: Packer, data: st.DataObject
) -> None:
    """Every usual purchase is planned, and no other; damaged values do no harm."""
    model, time_us = Model(), START_US
    for number in range(data.draw(st.integers(1, 20))):
        time_us += data.draw(st.sampled_from([0, 1, 70_000, 200_000, 1_500_000]))
        event = Event(b"%d" % data.draw(st.integers(0, 30)), time_us, cents=number)
        purchase = Purchases(
            transaction_id=[event.transaction_id],
            entity_id=[[b"card"]],
            event_time_us=np.array([event.time_us]),
            cents=np.array([event.cents]),
        )
        call = card_packer.pack(purchase_entries(purchase), purchase.entity_id)
        before = model.packed()
        place = data.draw(st.integers(0, len(before)))
        for damaged in (before[:place], before[:place] + b"\x07" + before[place + 1 :]):
            compiled.appends.plan_appends(call.arguments, call.events, [damaged])
        planned = compiled.appends.plan_appends(call.arguments, call.events, [before])
        usual = bool(model.entries) and all(
            one["time"] < time_us and one["hash"] != event.hash for one in model.entries
        )
        model.apply([event])
        assert (planned is not None) == (usual and not model.full)
        if planned is not None:
            (known,), appends = planned
            assert appends == [(0, model.packed())]
            assert known[8:40] == model.packed()[:32]
            assert before.startswith(known[40:])
        if data.draw(st.integers(0, 9)) == 0:
            one = data.draw(st.sampled_from(model.entries))
            known_us = one["time"] + 5
            model.apply([Event(b"", one["time"], label=1, label_time_us=known_us)])


def test_entries_leave_several_at_a_time(spec: FeatureSpec) -> None:
    """Two a day for 31 days: 2**38 µs are 3.2 days, so one purchase in 6 or 7 trims."""
    packer = Packer(msgspec.structs.replace(spec, entities=spec.entities[:1]))
    value, trimmed = b"", 0
    model = Model(horizon_us=spec.entities[0].horizon_us, cap=1_000)
    for number in range(300):
        event = Event(b"%d" % number, START_US + number * 43_200_000_000, cents=1)
        purchase = Purchases(
            transaction_id=[event.transaction_id],
            entity_id=[[b"c"]],
            event_time_us=np.array([event.time_us]),
            cents=np.array([event.cents]),
        )
        call = packer.pack(purchase_entries(purchase), purchase.entity_id)
        planned = compiled.appends.plan_appends(call.arguments, call.events, [value])
        model.apply([event])
        value = model.packed()
        if planned is not None:
            (known,), appends = planned
            assert appends == [(0, value)]
            trimmed += number >= 100 and len(known) > 72
    assert trimmed in range(28, 34)  # of 200


def one_purchase(
    number: int, *, customer: bytes = b"c", at_us: int = START_US
) -> Purchases:
    """Make a purchase of a customer at a terminal of its own."""
    return Purchases(
        transaction_id=[b"t%d" % number],
        entity_id=[[customer], [b"m" + customer]],
        event_time_us=np.array([at_us + number * 1_000_000]),
        cents=np.array([100 + number]),
    )


def test_next_purchase_reads_and_writes_no_whole_value(
    spec: FeatureSpec, store_url: str, redis_client: redis.Redis
) -> None:
    """Redis reads the header, and writes it and the value's end."""
    chain = open_fallback_chain(spec, store_url, settings=SETTINGS)
    for number in range(3):
        chain.score([one_purchase(number)], write=[True])
    before = redis_client.info("commandstats")
    (scored,) = chain.score([one_purchase(3)], write=[True])
    after = redis_client.info("commandstats")
    assert scored.features[0, spec.feature_names.index("customer_nb_tx_1d")] == 4
    added = {
        name: after[name]["calls"] - before.get(name, {"calls": 0})["calls"]
        for name in ("cmdstat_append", "cmdstat_setrange", "cmdstat_getrange")
    }
    assert added == {"cmdstat_append": 2, "cmdstat_setrange": 2, "cmdstat_getrange": 2}
    assert appends_of(chain).hits == 6
    chain.close()


def test_time_to_live_begins_again(
    spec: FeatureSpec, store_url: str, redis_client: redis.Redis
) -> None:
    """As with every change of a value."""
    chain = open_fallback_chain(spec, store_url, settings=SETTINGS)
    chain.score([one_purchase(0)], write=[True])
    keys = list(redis_client.scan_iter("tollgate:fraud:*:c*"))
    whole = {key: redis_client.ttl(key) for key in keys}
    for key in keys:
        redis_client.expire(key, 1_000)
    chain.score([one_purchase(1)], write=[True])
    assert appends_of(chain).hits == 2
    assert all(redis_client.ttl(key) >= whole[key] - 5 for key in keys)
    chain.close()


@pytest.mark.parametrize("bytes_more", [48, -48, 4, -4])
def test_value_of_another_length_is_handled_as_always(
    bytes_more: int,
    spec: FeatureSpec,
    store_url: str,
    redis_client: redis.Redis,
    other_server: EmbeddedRedis,
) -> None:
    """Its header is the expected one; its length is not."""
    other = redis.Redis.from_url(other_server.url)
    found = []
    for client, url, options in (
        (redis_client, store_url, SETTINGS),
        (other, other_server.url, WITHOUT),
    ):
        chain = open_fallback_chain(spec, url, settings=options)
        for number in range(2):
            chain.score([one_purchase(number)], write=[True])
        (key,) = client.scan_iter("tollgate:fraud:*:customer:c")
        client.set(key, (client.get(key) + bytes(48))[: bytes_more - 48 or None])
        (scored,) = chain.score([one_purchase(2)], write=[True])
        assert scored.degraded[0] & Degraded.STATE_CORRUPT
        found.append(values_of(client, spec))
        chain.close()
    assert found[0] == found[1]
    other.close()


def test_damage_behind_the_header_is_found_in_the_end(
    spec: FeatureSpec, store_url: str, redis_client: redis.Redis
) -> None:
    """The answers come from a sound copy, until a purchase reads the whole value."""
    chain = open_fallback_chain(spec, store_url, settings=SETTINGS)
    chain.score([one_purchase(0)], write=[True])
    (key,) = redis_client.scan_iter("tollgate:fraud:*:customer:c")
    redis_client.setrange(key, 40, b"\xff")
    found = [
        bool(
            chain.score([one_purchase(number)], write=[True])[0].degraded[0]
            & Degraded.STATE_CORRUPT
        )
        for number in range(1, 300)
    ]
    assert not found[0]
    assert any(found)
    chain.close()


def test_store_continues_from_its_file(
    spec: FeatureSpec, tmp_path: Path, store_url: str, redis_client: redis.Redis
) -> None:
    """The file holds the calls, or their effects; a restart gives the same values."""
    reference = open_fallback_chain(spec, store_url, settings=WITHOUT)
    with EmbeddedRedis(tmp_path / "state") as server:
        chain = open_fallback_chain(spec, server.url, settings=SETTINGS)
        for number in range(20):
            for one in (chain, reference):
                one.score([one_purchase(number)], write=[True])
        assert appends_of(chain).hits > 30
    with EmbeddedRedis(tmp_path / "state") as server:
        client = redis.Redis.from_url(server.url)
        assert values_of(client, spec) == values_of(redis_client, spec)
        chain.close()
        chain = open_fallback_chain(spec, server.url, settings=SETTINGS)
        for number in range(20, 40):
            for one in (chain, reference):
                (scored,) = one.score([one_purchase(number)], write=[True])
            assert scored.applied.tolist() == [Applied.YES]
        assert values_of(client, spec) == values_of(redis_client, spec)
        client.close()
        chain.close()
    reference.close()


def test_lost_reply_changes_nothing_twice(
    spec: FeatureSpec,
    store_url: str,
    redis_client: redis.Redis,
    other_server: EmbeddedRedis,
) -> None:
    """The store applied a purchase, its reply was lost, and it comes again."""
    chain = open_fallback_chain(spec, store_url, settings=SETTINGS)
    reference = open_fallback_chain(spec, other_server.url, settings=WITHOUT)
    flush = chain._store.flush

    def lose(*args: object, **options: object) -> None:
        flush(*args, **options)  # type: ignore[arg-type]
        raise OutcomeUnknown("the reply was lost")

    for number in range(12):
        if number % 4 == 3:
            chain._store.flush = lose  # type: ignore[method-assign,assignment]
            chain.score([one_purchase(number)], write=[True])
            chain._store.flush = flush  # type: ignore[method-assign]
        (mine,) = chain.score([one_purchase(number)], write=[True])
        (wanted,) = reference.score([one_purchase(number)], write=[True])
        np.testing.assert_array_equal(mine.features, wanted.features)
        assert (mine.applied[0] == Applied.DUPLICATE) == (number % 4 == 3)
    other = redis.Redis.from_url(other_server.url)
    assert values_of(redis_client, spec) == values_of(other, spec)
    assert appends_of(chain).hits > 8
    for one in (chain, reference, other):
        one.close()


def test_cluster_appends_in_place(
    own_cluster: Cluster, spec: FeatureSpec, store_url: str, redis_client: redis.Redis
) -> None:
    """Each node gets what belongs to its keys."""
    chain = open_fallback_chain(spec, own_cluster.url, settings=SETTINGS)
    reference = open_fallback_chain(spec, store_url, settings=WITHOUT)
    for turn in range(4):
        names = [b"e%d" % number for number in range(12)]
        batch = Purchases(
            transaction_id=[b"t%d-%b" % (turn, one) for one in names],
            entity_id=[names, [b"m" + one for one in names]],
            event_time_us=np.full(len(names), START_US + turn),
            cents=np.arange(len(names)),
        )
        (mine,) = chain.score([batch], write=[True])
        (wanted,) = reference.score([batch], write=[True])
        np.testing.assert_array_equal(mine.features, wanted.features)
        np.testing.assert_array_equal(mine.applied, wanted.applied)
    assert appends_of(chain).hits > 60
    found = {
        key: client.get(key)
        for client in own_cluster.clients
        for key in client.scan_iter("tollgate:fraud:*:*:*")
    }
    assert found == values_of(redis_client, spec)
    chain.close()
    reference.close()


class Stopped:
    """A clock that a test moves."""

    now_s = 1_000.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now_s


def test_keys_that_others_write_are_tried_less_often(spec: FeatureSpec) -> None:
    """Without any hit, a try is rare for the key, and after a while for all."""
    clock = Stopped()
    values = LastKnown(1_000_000, 1e9, clock=clock)
    appends = InPlaceAppends(values, clock=clock)
    packer, model = Packer(spec), Model(horizon_us=10**15, cap=1_000)
    model.apply([Event(b"t0", START_US)])
    value = model.packed()

    def tried(number: int) -> bool:
        batch = one_purchase(number)
        call = packer.pack(purchase_entries(batch), batch.entity_id)
        values.put(call.keys, [value, b""])
        plan = appends.plan(call)
        if plan is not None:
            appends.complete(plan, ([value, b""], b"\1\1"))
        return plan is not None

    tries = [tried(number) for number in range(1, 1_000)]
    assert sum(tries) < 40
    appends._misses.clear()
    appends.tries = 999
    while not tried(2):
        pass
    assert not any(tried(number) for number in range(500))
    clock.now_s += 61.0
    assert any(tried(number) for number in range(500))


def test_dry_run_reads_whole_values(spec: FeatureSpec, store_url: str) -> None:
    """Its event must not be in the value that this process has."""
    chain = open_fallback_chain(spec, store_url, settings=SETTINGS)
    for number in range(3):
        chain.score([one_purchase(number)], write=[number == 0])
    assert appends_of(chain).tries == 0
    chain.close()


def test_without_the_compiled_loop_every_value_is_read(
    spec: FeatureSpec, store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python would take longer than Redis saves."""
    monkeypatch.setattr(compiled, "appends", None)
    chain = open_fallback_chain(spec, store_url, settings=SETTINGS)
    for number in range(3):
        (scored,) = chain.score([one_purchase(number)], write=[True])
    assert scored.features[0, spec.feature_names.index("customer_nb_tx_1d")] == 3
    assert appends_of(chain).tries == 0
    chain.close()

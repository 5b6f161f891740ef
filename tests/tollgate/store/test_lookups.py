"""Lists and earlier decisions, looked up in the flush of the windows."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import pytest
import redis

from tollgate.errors import InputError
from tollgate.features.spec.feature_spec import FeatureSpec
from tollgate.schema import Degraded
from tollgate.store.fallback.fallback_chain import FallbackChain
from tollgate.store.id_lists import LookupList, list_key
from tollgate.store.lookups import MOST_LISTS, Lookups
from tollgate.store.store_events import Purchases
from tollgate.store.store_opening import StoreSettings, open_fallback_chain
from tollgate.store.stored_decisions import stored_decision_key

NOW_US = time.time_ns() // 1000
SETTINGS = StoreSettings(deadline_s=5.0)
LISTS = (
    LookupList("vip", "customer_id", list_key("fraud", "vip")),
    LookupList("stolen", "terminal_id", list_key("fraud", "stolen")),
    LookupList("known", "transaction_id", list_key("fraud", "known")),
)
VIP, STOLEN, KNOWN = 1, 2, 4
UNREAD = Degraded.LOOKUPS_UNREAD


def purchases(*names: str) -> Purchases:
    """Rows named like `t1 c2 m3`."""
    parts = [name.encode().split() for name in names]
    return Purchases(
        transaction_id=[one[0] for one in parts],
        entity_id=[[one[1] for one in parts], [one[2] for one in parts]],
        event_time_us=NOW_US + np.arange(len(names)),
        cents=np.full(len(names), 100),
    )


@pytest.fixture
def ladder(store_url: str, spec: FeatureSpec) -> Iterator[FallbackChain]:
    """A ladder that looks three lists up."""
    opened = open_fallback_chain(spec, store_url, settings=SETTINGS, lists=LISTS)
    yield opened
    opened.close()


def test_each_row_gets_its_hits_and_its_decision(
    ladder: FallbackChain, redis_client: redis.Redis
) -> None:
    """Of all batches of a flush, dry ones too; a bit for each list, in their order."""
    redis_client.sadd(list_key("fraud", "vip"), "c1", "c3")
    redis_client.sadd(list_key("fraud", "stolen"), "m2", "c1")
    redis_client.sadd(list_key("fraud", "known"), "t4")
    redis_client.set(stored_decision_key("fraud", b"t2"), b"\x00two")
    redis_client.set(stored_decision_key("fraud", b"t5"), b"five")
    wet = purchases("t1 c1 m1", "t2 c2 m2", "t3 c3 m2")
    one, other = purchases("t4 c1 m2"), purchases("t5 c5 m5", "t2 c9 m9")
    scored = ladder.score([wet, one, other], write=[True, False, False])
    assert [found.lookups.list_hits.tolist() for found in scored] == [
        [VIP, STOLEN, VIP | STOLEN],
        [VIP | STOLEN | KNOWN],
        [0, 0],
    ]
    assert [found.lookups.earlier for found in scored] == [
        [b"", b"\x00two", b""],
        [b""],
        [b"five", b"\x00two"],
    ]
    assert not any((found.degraded & UNREAD).any() for found in scored)


def test_look_ups_ride_along(ladder: FallbackChain, redis_client: redis.Redis) -> None:
    """One read of Redis for windows, lists and decisions of a batch together."""
    batch = purchases(*(f"t{row} c{row} m{row}" for row in range(8)))
    ladder.score([batch], write=[True])
    before = redis_client.info("stats")["total_reads_processed"]
    ladder.score([batch], write=[True])
    after = redis_client.info("stats")["total_reads_processed"]
    assert after - before == 1 + 1


def test_lookups_store_and_write_nothing(
    ladder: FallbackChain, redis_client: redis.Redis
) -> None:
    """The path only reads decisions and lists."""
    ladder.score([purchases("t1 c1 m1")], write=[True])
    assert redis_client.keys("tollgate:fraud:decided:*") == []
    assert redis_client.keys("tollgate:fraud:list:*") == []


def test_a_key_that_is_no_list_costs_the_row_its_certainty_alone(
    ladder: FallbackChain, redis_client: redis.Redis, spec: FeatureSpec
) -> None:
    """The bit, no hit of that list, everything else as ever."""
    redis_client.set(list_key("fraud", "stolen"), "m1")
    redis_client.sadd(list_key("fraud", "vip"), "c1")
    redis_client.set(stored_decision_key("fraud", b"t1"), b"one")
    (scored,) = ladder.score([purchases("t1 c1 m1")], write=[True])
    assert scored.degraded.tolist() == [UNREAD | Degraded.COLD_START]
    assert scored.lookups.list_hits.tolist() == [VIP]
    assert scored.lookups.earlier == [b"one"]


def test_a_decision_of_another_kind_is_none(
    ladder: FallbackChain, redis_client: redis.Redis
) -> None:
    """Redis gives nothing for a key that holds a set; nor do we."""
    redis_client.sadd(stored_decision_key("fraud", b"t1"), "one")
    (scored,) = ladder.score([purchases("t1 c1 m1")], write=[True])
    assert scored.lookups.earlier == [b""]


def test_without_an_answer_nothing_was_looked_up(spec: FeatureSpec) -> None:
    """A store that is away: no hits, no decisions, the bit on every row."""
    ladder = open_fallback_chain(spec, "", settings=SETTINGS, lists=LISTS)
    wet, dry = ladder.score(
        [purchases("t1 c1 m1", "t2 c2 m2"), purchases("t3 c3 m3")], write=[True, False]
    )
    ladder.close()
    for scored, rows in ((wet, 2), (dry, 1)):
        assert (scored.degraded & UNREAD == UNREAD).tolist() == [True] * rows
        assert scored.lookups.list_hits.tolist() == [0] * rows
        assert scored.lookups.earlier == [b""] * rows


@pytest.mark.parametrize(
    ("lists", "words"),
    [
        (
            [LookupList("cards", "card_id", b"k")],
            "lists: cards: 'card_id' is none of transaction_id, customer_id, "
            "terminal_id",
        ),
        (
            [LookupList("many", "customer_id", b"k")] * (MOST_LISTS + 1),
            "lists: 33 of them, 32 are allowed",
        ),
    ],
)
def test_a_list_that_cannot_be_looked_up_is_refused(
    spec: FeatureSpec, lists: list[LookupList], words: str
) -> None:
    """At the start, in one line."""
    with pytest.raises(InputError) as caught:
        Lookups(spec, lists)
    assert str(caught.value) == words


def test_the_last_bit_is_a_bit(
    store_url: str,
    redis_client: redis.Redis,
    spec: FeatureSpec,
) -> None:
    """Thirty-two lists fill the word."""
    lists = [LookupList(f"l{bit}", "customer_id", b"l%d" % bit) for bit in range(32)]
    redis_client.sadd("l31", "c1")
    redis_client.sadd("l0", "c1")
    ladder = open_fallback_chain(spec, store_url, settings=SETTINGS, lists=lists)
    (scored,) = ladder.score([purchases("t c1 m", "u c2 m")], write=[False])
    ladder.close()
    assert scored.lookups.list_hits.tolist() == [2**31 + 1, 0]

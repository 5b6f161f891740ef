"""The newest events of a user are those that plain Python finds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tollgate.engine.feature_stage import FeatureStage
from tollgate.engine.row_batches import Batch, DryShare
from tollgate.errors import SpecError
from tollgate.features.spec.feature_spec import FeatureSpec, load_spec
from tollgate.ranking.history import UserHistory
from tollgate.schema import ACTIONS, MISSING, Degraded, hash_words
from tollgate.server.processes.redis_server import EmbeddedRedis
from tollgate.store.event_writer import EventWriter
from tollgate.store.memory_store import MemoryStore
from tollgate.store.redis.cluster_store import open_store
from tollgate.store.redis.redis_store import NoStore, RedisStore
from tollgate.store.store_events import Purchases
from tollgate.store.store_opening import StoreSettings, chain_over

SPEC = """\
version: 1
product: shop
amount: false
entities:
  user: {key: user_id, cap: 64}
fields:
  - {name: item, type: category, use: events}
  - {name: action, type: category, vocabulary: [view, cart, purchase], use: events}
history: {entity: user, of: [item, action], most: 5}
features:
  - {name: events, entity: user, aggregate: count, window: 30d}
"""
START_US = 1_760_000_000_000_000
SECOND_US = 1_000_000
Event = tuple[str, int, str, str, str]  # id, time, user, item, action

STORES = ("redis", "memory")
WORDS = ("", *(f"i{at}" for at in range(9)), *ACTIONS)


def spec_of(folder: Path, text: str = SPEC) -> FeatureSpec:
    path = folder / "features.yaml"
    path.write_text(text)
    return load_spec(path)


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RedisStore]:
    """A real Redis, and the store in memory."""
    if request.param == "memory":
        yield MemoryStore()
        return
    with EmbeddedRedis(tmp_path / "redis") as server:
        opened = open_store(server.url, deadline_s=10.0)
        yield opened
        opened.close()


def write(store: RedisStore, spec: FeatureSpec, events: list[Event]) -> None:
    """Apply events in the given order; an empty item is none."""
    for at in range(0, len(events), 32):
        ids, times, users, items, actions = zip(*events[at : at + 32], strict=True)
        EventWriter(spec, store).purchases(
            Purchases(
                transaction_id=[one.encode() for one in ids],
                entity_id=[[one.encode() for one in users]],
                event_time_us=np.array(times),
                cents=np.zeros(len(ids), np.int64),
                fields={
                    "item": hash_words([one.encode() for one in items]),
                    "action": hash_words([one.encode() for one in actions]),
                },
            )
        )


def read(
    store: RedisStore, spec: FeatureSpec, rows: list[tuple[str, int, str]]
) -> tuple[UserHistory, np.ndarray]:
    """Read requests (id, time, user): histories and degraded bits."""
    settings = StoreSettings(deadline_s=10.0, updates=False, marks=False)
    chain = chain_over(spec, store, settings=settings)
    ids, times, users = zip(*rows, strict=True)
    (scored,) = chain.score(
        [
            Purchases(
                transaction_id=[one.encode() for one in ids],
                entity_id=[[one.encode() for one in users]],
                event_time_us=np.array(times),
                cents=np.zeros(len(ids), np.int64),
            )
        ],
        write=[True],
    )
    assert scored.history is not None
    return scored.history, scored.degraded


def plainly(events: list[Event], time_us: int, name: str, user: str) -> list[Event]:
    """Find the newest five events up to (time, id) that have a value."""
    known = [
        one
        for one in events
        if one[2] == user
        and (one[1], len(one[0]), one[0]) < (time_us, len(name), name)
        and (one[3] or one[4])
    ]
    return sorted(known, key=lambda one: (one[1], len(one[0]), one[0]))[::-1][:5]


def test_histories_are_those_of_plain_python(store: RedisStore, tmp_path: Path) -> None:
    spec = spec_of(tmp_path)
    rng = np.random.default_rng(8)
    events = [
        (
            f"e{at}",
            START_US + int(rng.integers(0, 40)) * SECOND_US,  # many at one instant
            f"u{rng.integers(0, 6)}",
            "" if rng.random() < 0.2 else f"i{rng.integers(0, 9)}",
            "" if rng.random() < 0.3 else str(rng.choice(ACTIONS)),
        )
        for at in range(200)
    ]
    write(store, spec, events)
    rows = [
        (f"r{at}", START_US + int(rng.integers(-2, 45)) * SECOND_US, f"u{at % 8}")
        for at in range(60)
    ]
    for at in range(0, len(rows), 20):
        part = rows[at : at + 20]
        found, _ = read(store, spec, part)
        for row, (name, time_us, user) in enumerate(part):
            wanted = plainly(events, time_us, name, user)
            count = len(wanted)
            assert found.known[row]
            assert found.count[row] == count
            assert found.time_us[row].tolist() == [one[1] for one in wanted] + [0] * (
                5 - count
            )
            for field, place in (("item", 3), ("action", 4)):
                words = hash_words([one[place].encode() for one in wanted]).tolist()
                values = found.columns[field][row].tolist()
                assert values == words + [MISSING] * (5 - count)


def arriving(chance: np.random.Generator, count: int) -> list[Event]:
    """
    Make events of 9 users, as they arrive.

    Half of them happen at the same microsecond as the one before, some arrive late,
    some have no value, and some arrive twice. The busiest user has hundreds.
    """
    steps = np.where(chance.random(count) < 0.5, 0, chance.integers(1, 9, count))
    times = START_US + np.cumsum(steps)
    users = np.minimum(chance.geometric(0.3, count), 9)
    events = [
        (
            f"e{at}",
            int(times[at]),
            f"u{users[at]}",
            "" if chance.random() < 0.1 else f"i{chance.integers(0, 9)}",
            "" if chance.random() < 0.3 else str(chance.choice(ACTIONS)),
        )
        for at in range(count)
    ]
    order = np.argsort(np.arange(count) + chance.integers(0, 12, count))
    late = [events[at] for at in order.tolist()]
    for at in chance.choice(count - 50, count // 10, replace=False).tolist():
        late.insert(at + int(chance.integers(0, 50)), late[at])
    return late


def scan(events: list[Event], row: tuple[str, int, str]) -> tuple[int, list[Event]]:
    """
    Look through events for those of a request's user.

    Returns:
        The number of events after the request, and those before it that have a value,
            the newest first.
    """
    name, time_us, user = row
    mine = {one[0]: one for one in events if one[2] == user}.values()
    earlier = [
        one
        for one in mine
        if (one[1], len(one[0]), one[0]) < (time_us, len(name), name)
    ]
    with_value = [one for one in earlier if one[3] or one[4]]
    with_value.sort(key=lambda one: (one[1], len(one[0]), one[0]), reverse=True)
    return len(mine) - len(earlier), with_value


def held(events: list[Event], user: str) -> list[Event]:
    """Look through events for the newest 64 of a user: the cap of the entity."""
    mine = {one[0]: one for one in events if one[2] == user}.values()
    return sorted(mine, key=lambda one: (one[1], len(one[0]), one[0]))[-64:]


@pytest.mark.parametrize("most", [10, 64])
def test_a_request_reads_what_a_scan_of_all_events_finds(
    store: RedisStore, tmp_path: Path, most: int
) -> None:
    """
    Thousands of requests, between events that arrive, to the stage that serves.

    A value holds 64 events, so a request with many events after it sees fewer. The
    other rows of a batch, which may be of the same user, take no event away.
    """
    spec = spec_of(tmp_path, SPEC.replace("most: 5", f"most: {most}"))
    chance = np.random.default_rng(most)
    arrived: list[Event] = []
    kinds: Counter[str] = Counter()
    settings = StoreSettings(deadline_s=10.0, updates=False, marks=False)
    stage = FeatureStage(
        spec, chain_over(spec, store, settings=settings), share=DryShare(0.0)
    )
    events, sent = arriving(chance, 1_500), 0
    words = {word: int(hash_words([word.encode()])[0]) for word in WORDS}
    while sent < len(events):
        part = events[sent : sent + int(chance.integers(1, 20))]
        write(store, spec, part)
        sent += len(part)
        arrived += part
        newest_us = max(one[1] for one in arrived)
        rows = [
            (
                f"{'abcdefg'[chance.integers(0, 7)]}{sent}{at}",
                newest_us
                - int(chance.integers(-20, 200) if chance.random() < 0.6 else 0),
                f"u{chance.integers(1, 11)}",
            )
            for at in range(int(chance.integers(1, 33)))
        ]
        ids, times, users = zip(*rows, strict=True)
        _, _, found = stage.score_with_history(
            Batch(
                ids={
                    "transaction_id": [one.encode() for one in ids],
                    "user_id": [one.encode() for one in users],
                },
                cents=np.zeros(len(rows), np.int64),
                time_us=np.array(times),
                errors={},
                bounds=[0, len(rows)],
                dry=[False],
            ),
            arrival_us=0,
        )
        assert found.known.all()
        for at, row in enumerate(rows):
            later, every = scan(arrived, row)
            _, wanted = scan(held(arrived, row[2]), row)
            every, wanted = every[:most], wanted[:most]
            kinds["requests"] += 1
            kinds["with later events"] += later > 0
            kinds["at the time of an event"] += [one[1] for one in every[:1]] == [
                row[1]
            ]
            kinds["with ties"] += len({one[1] for one in every}) < len(every)
            kinds["all that there are"] += every == wanted
            kinds["fewer, by the cap"] += every != wanted
            count = len(wanted)
            assert found.count[at] == count
            assert found.time_us[at].tolist() == [
                *(one[1] for one in wanted),
                *[0] * (most - count),
            ]
            for field, place in (("item", 3), ("action", 4)):
                values = [words[one[place]] for one in wanted]
                values += [MISSING] * (most - count)
                assert found.columns[field][at].tolist() == values
    assert kinds["requests"] > 2_000
    if most == 10:
        assert kinds.pop("fewer, by the cap") < 20
    assert min(kinds.values()) > 50, kinds


def test_a_store_that_is_away_leaves_unknown_histories(tmp_path: Path) -> None:
    found, degraded = read(
        NoStore(), spec_of(tmp_path), [("r1", START_US, "ann"), ("r2", START_US, "ben")]
    )
    assert found.known.tolist() == [False, False]
    assert found.count.tolist() == [0, 0]
    assert (degraded & np.uint32(Degraded.STORE_UNAVAILABLE)).all()


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("of: [item, action]", "of: [item, colour]", "colour"),
        ("entity: user, of", "entity: shop, of", "shop"),
        ("most: 5", "most: 0", "most"),
        ("most: 5", "most: 65", "most"),
        ("cap: 64", "hop: 1h", "history"),
        ("cap: 64", "delay: 1h", "history"),
    ],
)
def test_a_history_that_cannot_be_read_is_refused(
    tmp_path: Path, old: str, new: str, problem: str
) -> None:
    assert old in SPEC
    with pytest.raises(SpecError, match=problem):
        spec_of(tmp_path, SPEC.replace(old, new))

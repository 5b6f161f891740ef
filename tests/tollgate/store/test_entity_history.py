"""The newest events of a user are those that plain Python finds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

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

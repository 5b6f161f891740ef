"""Windows with a hop: offline and online equal the definition, in every bit."""

from __future__ import annotations

import copy
import json
import random
import re
from collections import Counter
from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import structs

from tests.support.features.plain_windows import (
    DAY_US,
    HOPS_US,
    HOUR_US,
    LABELS_HELD,
    MINUTE_US,
    SECOND_US,
    Answer,
    Entity,
    Feature,
    Label,
    PlainState,
    Purchase,
    closed_form,
    floor_us,
)
from tollgate.errors import SpecError
from tollgate.features.offline import build
from tollgate.features.spec.feature_spec import FeatureSpec, load_spec
from tollgate.features.spec.tile_form import LEAST_HEAD
from tollgate.history import History, history_of
from tollgate.replay import purchases_of
from tollgate.schema import Applied, Degraded
from tollgate.server.processes.redis_server import EmbeddedRedis
from tollgate.store.online_features import OnlineFeatures, Vectors
from tollgate.store.redis.redis_store import RedisStore
from tollgate.store.store_events import Labels, Packer

# Every example is the same in every run.
BOUNDED = settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
MAX_BYTES = 16_384
START_US = 1_600_000_000_000_000
WINDOWS = ["7s", "24s", "1m", "4m", "10m", "25m", "1h", "3h", "6h", "1d", "36h", "30d"]
LATENESS = ["0s", "5s", "1m", "10m", "3h", "1d"]
DELAYS = ["0s", "0s", "0s", "5s", "90s", "1h", "1d", "7d"]
NUMBERS: dict[str, list[Any]] = {
    "amount": [0, 1, 99, 250, 10_000, 10**9],
    "weight": [None, 0, 1, -1, -1250, 7_100, 10**9],
    "spot": [None, 0.0, 52.123456, 52.1234560000001, -3e-310, -7e30],
}
# The largest numbers of a field, whose products need more than 64 bits.
LARGE = NUMBERS | {"weight": [None, 0, 1, -1, 10**12, -(10**12), 1 - 10**12]}
# So many devices that a sketch has several values in most registers.
DEVICES = NUMBERS | {"device": [None, "é", *map(str, range(400))]}
MOMENTS = ("std", "slope")
FIELDS = {
    "weight": {"name": "weight", "type": "number", "decimals": 3},
    "spot": {"name": "spot", "type": "number", "decimals": "exact"},
    "device": {"name": "device", "type": "category"},
}
STATUS = {"late": Applied.NO, "applied": Applied.YES, "duplicate": Applied.DUPLICATE}
UNITS_US = {"s": SECOND_US, "m": MINUTE_US, "h": HOUR_US, "d": DAY_US}


# Products and streams ----------------------------------------------------------------


@dataclass(frozen=True)
class Product:
    """Hold a features.yaml, and the entities that it declares."""

    document: dict[str, Any]
    entities: dict[str, Entity]

    def with_hop(self, hop: str) -> Product:
        """Return the same product with another hop."""
        document = copy.deepcopy(self.document)
        for entity in document["entities"].values():
            entity["hop"] = hop if hop != "0" else 0
        return product_of(document)


def product_of(document: dict[str, Any]) -> Product:
    """Read the entities of a document."""
    entities = {}
    for name, entity in document["entities"].items():
        features = tuple(
            Feature(
                aggregate=one.get("aggregate", "time_since_last"),
                window_us=in_us(one["window"]),
                of=one.get("of", "amount"),
                default=one.get("default", 0.0),
                nth=one.get("nth", 2 if one.get("aggregate") == "change" else 1),
            )
            for one in document["features"]
            if name in (one.get("entity"), one.get("time_since_last"))
        )
        hop = entity.get("hop", 0)
        entities[name] = Entity(
            features=features,
            hop_us=HOPS_US[hop] if hop else 0,
            delay_us=in_us(entity["delay"]),
            lateness_us=in_us(document["lateness"]),
            cap=entity.get("cap", 64),
        )
    return Product(document, entities)


def in_us(text: str) -> int:
    """Read a duration."""
    return int(text[:-1]) * UNITS_US[text[-1]]


@st.composite
def products(
    draw: st.DrawFn,
    hops: Sequence[str],
    kinds: Sequence[str] = ("count", "sum", "mean", "min", "max", "flagged", "share"),
    newest: Sequence[str] = ("last", "time_since_last"),
    nth: Sequence[int] = (),
) -> Product:
    """A product of one or two entities with windows over all kinds of numbers."""
    names = draw(st.sampled_from([["card"], ["card"], ["card", "shop"]]))
    hop = draw(st.sampled_from(hops))
    entities, features = {}, []
    for name in names:
        delay = draw(st.sampled_from(DELAYS))
        entities[name] = {"key": f"{name}_id", "delay": delay}
        if hop != "0":
            cap = draw(st.sampled_from([8, 9, 13, None, None]))
            entities[name] |= {"hop": hop} | ({"cap": cap} if cap else {})
        near = draw(st.lists(st.sampled_from(WINDOWS), min_size=1, max_size=3))
        for number in range(draw(st.integers(1, 6))):
            alone = hop == "0" or delay == "0s"
            kind = draw(st.sampled_from([*kinds, *newest] if alone else kinds))
            feature = {
                "name": f"{name}_{number}",
                "window": draw(st.sampled_from(near)),
            }
            if kind == "time_since_last":
                feature |= {"time_since_last": name}
            else:
                feature |= {"entity": name, "aggregate": kind}
            if kind in ("sum", "mean", "std", "slope"):
                feature |= {"of": draw(st.sampled_from(["amount", "weight"]))}
            if kind in ("min", "max", "last", "change"):
                feature |= {"of": draw(st.sampled_from(sorted(NUMBERS)))}
            if kind == "approx_distinct":
                feature |= {"of": "device"}
            if nth and kind in ("last", "change"):
                feature |= {"nth": draw(st.sampled_from(nth))}
            feature |= {"default": draw(st.sampled_from([0.0, -1.5]))}
            features.append(feature)
    used = {one.get("of") for one in features}
    return product_of(
        {
            "version": 1,
            "product": "any",
            "lateness": draw(st.sampled_from(LATENESS)),
            "entities": entities,
            "fields": [field for name, field in FIELDS.items() if name in used],
            "features": features,
        }
    )


def load(
    folder: Path, product: Product, *, most_bytes: int = 0
) -> tuple[Product, FeatureSpec]:
    """
    Load a product, with the hop that its refusal names if its own is too small.

    Args:
        folder: Where to write it.
        product: The product.
        most_bytes: Of a value that may hold more purchases than its cap, instead of
            4,096: so few purchases fill it.
    """
    path = folder / "features.yaml"
    document = copy.deepcopy(product.document)
    path.write_text(json.dumps(document))
    try:
        spec = load_spec(path)
    except SpecError as exc:
        hop = re.search(r": set hop: (\w+)$", str(exc))
        if hop is None:
            raise
        larger = product.with_hop(hop[1])
        assert all(
            entity.hop_us > product.entities[name].hop_us
            for name, entity in larger.entities.items()
        )
        return load(folder, larger, most_bytes=most_bytes)
    if most_bytes:
        entities = tuple(
            structs.replace(one, cap=LEAST_HEAD, most_bytes=most_bytes)
            if one.most_bytes
            else one
            for one in spec.entities
        )
        spec = structs.replace(spec, entities=entities)
    for entity in spec.entities:
        # Without a cap in the file, it is what the tiles leave.
        document["entities"][entity.name]["cap"] = entity.cap
    loaded = product_of(document)
    for entity in spec.entities:
        # Labels that have to be listed let the store fold fewer than fill the head.
        plain = loaded.entities[entity.name]
        loaded.entities[entity.name] = replace(plain, fills=True)
    return loaded, spec


@dataclass(frozen=True, eq=False)
class Event:
    """Hold a purchase with the id of each entity, and its labels in order."""

    purchase: Purchase
    owners: dict[str, str]
    labels: tuple[Label, ...]


def stream(product: Product, *, seed: int, size: int) -> list[Event]:
    """
    Draw purchases in the order of time; a stream of a smaller size is its beginning.

    Times are equal, or next to edges of windows and tiles, or far apart. Ids have many
    lengths. Labels become known one by one, or many at one time. Moments are of numbers
    as large as a field may have.
    """
    source = random.Random(seed)
    kinds = {
        feature["aggregate"]
        for feature in product.document["features"]
        if "aggregate" in feature
    }
    choices = NUMBERS if kinds.isdisjoint(MOMENTS) else LARGE
    if "approx_distinct" in kinds:
        choices = DEVICES
    widths = [SECOND_US, source.choice(list(HOPS_US.values()))]
    for entity in product.entities.values():
        widths += [entity.hop_us or 1, entity.delay_us]
        for one in entity.features:
            widths += [
                one.window_us // 24,
                one.window_us,
                entity.rounding_us(one.window_us),
            ]
    widths = sorted({*widths, 1} - {0})
    gaps = [0, *source.sample(widths, min(3, len(widths)))]
    if source.random() < 0.3:
        gaps = [0, 0, 0, *gaps]
    rare = [*widths, 3 * max(widths)]
    # Of some streams the labels become known together, at multiples of this time.
    together_us = source.choice([0, 0, 50 * source.choice(gaps), source.choice(widths)])
    fraud_share, owners = source.choice([0.1, 0.9]), source.choice([1, 2, 6])
    # Labels from before their purchase take places of the head.
    at_once: Counter[int] = Counter()
    time_us, events, names = START_US, [], set()
    while len(events) < size:
        gap_us = source.choice(rare if source.random() < 0.05 else gaps)
        time_us += source.randint(0, gap_us) if source.random() < 0.5 else gap_us
        if source.random() < 0.3:
            snapped_us = floor_us(time_us, source.choice(widths))
            time_us = max(time_us, snapped_us + source.choice([-1, 0, 1]))
        name = source.choice(["", "", "fifteen-bytes-..", "é" * 9])
        name += str(source.randrange(10 ** source.randint(1, 5)))
        if name in names:
            continue
        names.add(name)
        numbers = {of: source.choice(values) for of, values in choices.items()}
        purchase = Purchase(name, time_us, numbers)
        labels = []
        if source.random() < 0.7:
            fraud, known_us = source.random() < fraud_share, time_us
            for revision in range(source.choice([1, 1, 1, 2])):
                known_us += source.choice([0, 1, *gaps, source.choice(rare)])
                known_us = -floor_us(-known_us, together_us)
                if known_us == time_us and at_once[time_us] == LABELS_HELD - 1:
                    known_us += 1
                at_once[time_us] += known_us == time_us
                labels.append(Label(purchase, fraud, known_us, revision))
                fraud = not fraud
        own = {
            entity: f"{entity}{min(source.randrange(owners), source.randrange(owners))}"
            for entity in product.entities
        }
        events.append(Event(purchase, own, tuple(labels)))
    return sorted(events, key=lambda one: one.purchase.place)


def history(product: Product, spec: FeatureSpec, events: Sequence[Event]) -> History:
    """Write events as a history, each with its first label."""
    first = [one.labels[0] if one.labels else None for one in events]
    purchases = [one.purchase for one in events]
    weights = [one.numbers["weight"] for one in purchases]
    table: dict[str, Any] = {
        "transaction_id": [one.id for one in purchases],
        "event_time": [one.time_us for one in purchases],
        "amount": [(one.numbers["amount"] or 0) / 100 for one in purchases],
        "label": [None if one is None else int(one.fraud) for one in first],
        "label_time": [None if one is None else one.time_us for one in first],
        "weight": [None if one is None else one / 1000 for one in weights],
        "spot": [one.numbers["spot"] for one in purchases],
        "device": [one.numbers.get("device") for one in purchases],
    }
    table |= {
        f"{name}_id": [one.owners[name] for one in events] for name in product.entities
    }
    kinds = {
        "label": pl.Int8,
        "label_time": pl.Int64,
        "weight": pl.Float64,
        "spot": pl.Float64,
        "device": pl.String,
    }
    frame = pl.DataFrame(table, schema_overrides=kinds)
    return history_of(frame, spec=spec, source="")


def expected(product: Product, events: Sequence[Event]) -> np.ndarray:
    """Compute every feature of every purchase from the definition."""
    rows = []
    for row in events:
        values = []
        for name, entity in product.entities.items():
            own = [one for one in events if one.owners[name] == row.owners[name]]
            purchases = [one.purchase for one in own]
            labels = [label for one in own for label in one.labels[:1]]
            values += [
                closed_form(
                    entity, feature, row.purchase, purchases=purchases, labels=labels
                )
                for feature in entity.features
            ]
        rows.append(values)
    return np.array(rows)


# The store ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where specs are written."""
    return tmp_path_factory.mktemp("specs")


@dataclass(frozen=True)
class Store:
    """Hold a product over an empty Redis, and the stream that is sent to it."""

    online: OnlineFeatures
    client: redis.Redis
    history: History
    position: dict[str, int]

    def score(
        self, batches: Sequence[Sequence[Purchase]], write: Sequence[bool]
    ) -> list[Vectors]:
        """Score batches in one call."""
        found = self.online.score(
            [self._purchases(batch) for batch in batches], write=write
        )
        self.check_sizes()
        return found

    def load(self, batch: Sequence[Purchase]) -> list[int]:
        """Apply a batch without reading it; the status of each purchase."""
        found = self.online.load(self._purchases(batch)).tolist()
        self.check_sizes()
        return found

    def label(self, labels: Sequence[Label]) -> list[int]:
        """Apply labels; the status of each."""
        purchases = self._purchases([one.purchase for one in labels])
        found = self.online.label(
            Labels(
                transaction_id=purchases.transaction_id,
                entity_id=purchases.entity_id,
                event_time_us=purchases.event_time_us,
                label=np.array([one.fraud for one in labels], np.int8),
                label_time_us=np.array([one.time_us for one in labels]),
                revision=np.array([one.revision for one in labels]),
            )
        )
        self.check_sizes()
        return found.tolist()

    def check_sizes(self) -> None:
        """Refuse a value that is longer than the bound of its entity."""
        for entity in self.online.spec.entities:
            if entity.tiles is None:
                continue
            pipe = self.client.pipeline()
            for key in self.client.scan_iter(f"tollgate:*:{entity.name}:*"):
                pipe.strlen(key)
            sizes = pipe.execute()
            assert max(sizes, default=0) <= entity.value_bytes <= MAX_BYTES

    def _purchases(self, batch: Sequence[Purchase]) -> Any:
        rows = np.array([self.position[one.id] for one in batch], np.int64)
        return purchases_of(self.online.spec, self.history, rows)


@contextmanager
def empty_store(
    server: EmbeddedRedis, product: Product, spec: FeatureSpec, events: Sequence[Event]
) -> Iterator[Store]:
    """Empty the Redis and open a product's store in it."""
    client = redis.Redis.from_url(server.url)
    client.flushall()
    store = RedisStore(server.url, deadline_s=30.0)
    position = {one.purchase.id: at for at, one in enumerate(events)}
    yield Store(
        online=OnlineFeatures(spec, store),
        client=client,
        history=history(product, spec, events),
        position=position,
    )
    store.close()
    client.close()


# Offline -----------------------------------------------------------------------------


@BOUNDED
@given(
    product=products(["0", *HOPS_US]),
    seed=st.integers(0, 2**32),
    size=st.integers(1, 70),
)
def test_offline_equals_the_definition(
    folder: Path, product: Product, seed: int, size: int
) -> None:
    """Every aggregate over any stream, to the last bit of a double."""
    product, spec = load(folder, product)
    events = stream(product, seed=seed, size=size)
    mixed = random.Random(seed).sample(events, len(events))
    found = build(spec, history(product, spec, mixed))
    np.testing.assert_array_equal(found, expected(product, mixed))


@BOUNDED
@given(
    product=products(["0", *HOPS_US], kinds=("count", *MOMENTS)),
    seed=st.integers(0, 2**32),
    size=st.integers(1, 70),
)
def test_offline_moments_equal_the_definition(
    folder: Path, product: Product, seed: int, size: int
) -> None:
    """Deviations and trends of large numbers, from integers of any size."""
    product, spec = load(folder, product)
    events = stream(product, seed=seed, size=size)
    found = build(spec, history(product, spec, events))
    np.testing.assert_array_equal(found, expected(product, events))


@BOUNDED
@given(
    product=products(["0", *HOPS_US], kinds=("count", "approx_distinct"), newest=()),
    seed=st.integers(0, 2**32),
    size=st.integers(1, 300),
)
def test_offline_sketches_equal_the_definition(
    folder: Path, product: Product, seed: int, size: int
) -> None:
    """Estimates of different texts, from their hashes written as bits."""
    product, spec = load(folder, product)
    events = stream(product, seed=seed, size=size)
    found = build(spec, history(product, spec, events))
    np.testing.assert_array_equal(found, expected(product, events))


# The state of the decision -----------------------------------------------------------


def arrivals(
    events: Sequence[Event], *, lateness_us: int, source: random.Random
) -> list[Event | Label]:
    """Order purchases and labels as they arrive: late, out of order, some twice."""
    far = source.choice(
        [0, 1, lateness_us // 20, lateness_us, 2 * lateness_us + DAY_US]
    )
    shares = source.choice([(0.0, 0.0), (0.2, 0.05), (0.8, 0.3)])
    sent: list[tuple[int, int, Event | Label]] = []
    for event in events:
        time_us = event.purchase.time_us
        times = [time_us]
        if source.random() < shares[0]:
            times = [time_us + source.randint(0, far)]
        while source.random() < shares[1]:
            times.append(times[0] + source.randint(0, far))
        sent += [(at, 0, event) for at in times]
        label_us = times[0] - source.choice([0, 0, 0, 0, lateness_us // 5])
        for label in event.labels:
            label_us = max(label_us, label.time_us)
            if source.random() < shares[0] / 2:
                label_us += source.randint(0, far)
            sent.append((label_us, 1, label))
            while source.random() < shares[1]:
                sent.append((label_us + source.randint(0, far), 1, label))
    sent.sort(key=lambda one: one[:2])
    return [one for _, _, one in sent]


def batches_of(
    sent: Sequence[Event | Label], *, source: random.Random
) -> Iterator[list[Event] | list[Label]]:
    """Cut what arrives into batches of purchases and of labels."""
    most = source.choice([1, 5, 32])
    at = 0
    while at < len(sent):
        size, batch = source.randint(1, most), []
        while (
            at < len(sent)
            and type(sent[at]) is type(sent[at - len(batch)])
            and len(batch) < size
        ):
            batch.append(sent[at])
            at += 1
        source.shuffle(batch)
        yield batch  # type: ignore[misc]


def follows(
    label: Label, accepted: Container[str], seen: Container[tuple[str, int]]
) -> bool:
    """Test whether a label's purchase, and its label before, were applied."""
    one = label.purchase.id
    return one in accepted and (not label.revision or (one, label.revision - 1) in seen)


@settings(BOUNDED, max_examples=100)
@given(
    product=products(list(HOPS_US)),
    seed=st.integers(0, 2**32),
    size=st.integers(1, 150),
)
def test_head_and_tiles_equal_the_definition(
    product: Product, seed: int, size: int
) -> None:
    """The state of the decision answers as the definition, from what it accepted."""
    ((name, entity), *_) = product.entities.items()
    events = [
        one
        for one in stream(product, seed=seed, size=size)
        if one.owners[name] == f"{name}0"
    ]
    source, state = random.Random(seed), PlainState(entity)
    accepted: dict[str, Purchase] = {}
    labels: list[Label] = []
    seen: set[tuple[str, int]] = set()
    sent = arrivals(events, lateness_us=entity.lateness_us, source=source)
    for batch in batches_of(sent, source=source):
        if isinstance(batch[0], Label):
            sound = [one for one in batch if follows(one, accepted, seen)]
            for one, status in zip(sound, state.label(sound), strict=True):
                if status != "late":
                    seen.add((one.purchase.id, one.revision))
                if status == "applied":
                    labels.append(one)
            continue
        rows = [one.purchase for one in batch]
        answers = state.apply(rows)
        for row, answer in zip(rows, answers, strict=True):
            if answer.status == "applied":
                accepted[row.id] = row
        purchases = list(accepted.values())
        for row, answer in zip(rows, answers, strict=True):
            if answer.values is not None:
                assert answer.values == tuple(
                    closed_form(
                        entity, feature, row, purchases=purchases, labels=labels
                    )
                    for feature in entity.features
                )


# Online ------------------------------------------------------------------------------


def in_order(
    events: Sequence[Event], *, source: random.Random
) -> Iterator[tuple[list[Event], list[Label]]]:
    """
    Cut a stream into batches, with the labels to send before each.

    A label is sent before the first batch with a row at or after its label time. As in
    a replay, at most as many are sent ahead of a row as a value lists.
    """
    labels = [label for one in events for label in one.labels[:1]]
    labels.sort(key=lambda one: one.time_us)
    at = 0
    while at < len(events):
        first_us = events[at].purchase.time_us
        later_us = [one.time_us for one in labels if one.time_us > first_us]
        later_us = later_us[LABELS_HELD:]
        batch = [
            one
            for one in events[at : at + source.randint(1, 32)]
            if not later_us or one.purchase.time_us < later_us[0]
        ]
        at += len(batch)
        last_us = batch[-1].purchase.time_us
        known = [one for one in labels if one.time_us <= last_us]
        labels = labels[len(known) :]
        yield batch, known


@pytest.mark.usefixtures("both_readers")
@BOUNDED
@given(
    product=products(["0", *HOPS_US]),
    most_bytes=st.integers(300, 2_500),
    seed=st.integers(0, 2**32),
    size=st.integers(1, 200),
)
def test_online_in_order_equals_offline(
    folder: Path,
    redis_server: EmbeddedRedis,
    product: Product,
    most_bytes: int,
    seed: int,
    size: int,
) -> None:
    """Batches in the order of time, each permuted: equal in every bit, or marked."""
    product, spec = load(folder, product, most_bytes=most_bytes)
    events = stream(product, seed=seed, size=size)
    source = random.Random(seed)
    offline = build(spec, history(product, spec, events))
    lateness_us = in_us(product.document["lateness"])
    seen: set[tuple[str, str]] = set()
    start = 0
    with empty_store(redis_server, product, spec, events) as store:
        for batch, labels in in_order(events, source=source):
            if labels:
                store.label(source.sample(labels, len(labels)))
            order = source.sample(range(len(batch)), len(batch))
            rows = [batch[at].purchase for at in order]
            (found,) = store.score([rows], [True])
            wanted = offline[start : start + len(batch)][order]
            cold = []
            for one in batch:
                cold.append(not seen.issuperset(one.owners.items()))
                seen.update(one.owners.items())
            assert found.degraded[np.array(cold)[order]].all()
            exact = (found.degraded & ~np.uint32(Degraded.COLD_START)) == 0
            np.testing.assert_array_equal(found.features[exact], wanted[exact])
            span_us = batch[-1].purchase.time_us - batch[0].purchase.time_us
            if len(batch) == 1 or span_us < lateness_us:
                assert exact.all()
            start += len(batch)


class PlainStates:
    """Hold the state of every id of a product."""

    def __init__(self, product: Product) -> None:
        self.product = product
        self.of: dict[tuple[str, str], PlainState] = {}

    def _grouped(
        self, events: Sequence[Event]
    ) -> Iterator[tuple[int, PlainState, list[int]]]:
        """Group the events of a batch by id: number of the entity, state, positions."""
        for number, (name, entity) in enumerate(self.product.entities.items()):
            owners = [one.owners[name] for one in events]
            for owner in sorted(set(owners)):
                state = self.of.setdefault((name, owner), PlainState(entity))
                yield (
                    number,
                    state,
                    [at for at, one in enumerate(owners) if one == owner],
                )

    def apply(self, events: Sequence[Event]) -> list[list[Answer]]:
        """Apply a batch; the answers to each row, one of each entity."""
        answers: list[dict[int, Answer]] = [{} for _ in events]
        for number, state, places in self._grouped(events):
            found = state.apply([events[at].purchase for at in places])
            for at, answer in zip(places, found, strict=True):
                answers[at][number] = answer
        return [[one[number] for number in sorted(one)] for one in answers]

    def fold_as(self, store: Store) -> None:
        """Fold as many purchases of each id as the store has."""
        packer = Packer(store.online.spec)
        names = list(self.product.entities)
        for (name, owner), state in self.of.items():
            if state.entity.fills:
                key = packer.key(names.index(name), owner.encode())
                header = store.client.getrange(key, 8, 11)
                state.fold_as(int.from_bytes(header, "little"))

    def label(
        self, events: Sequence[Event], labels: Sequence[Label]
    ) -> list[set[str | None]]:
        """Apply labels of events; the statuses of each, by entity."""
        statuses: list[set[str | None]] = [set() for _ in labels]
        for _, state, places in self._grouped(events):
            found = state.label([labels[at] for at in places])
            for at, status in zip(places, found, strict=True):
                statuses[at].add(status)
        return statuses


def check_rows(
    product: Product, found: Vectors, answers: Sequence[Sequence[Answer]]
) -> None:
    """Compare status, mark and values of rows with those of the plain state."""
    marked = ((found.degraded & Degraded.EVENT_TOO_LATE) > 0).tolist()
    assert marked == [any(one.values is None for one in row) for row in answers]
    assert not (found.degraded & Degraded.WINDOW_OVERFLOW).any()
    assert found.applied.tolist() == [
        min(STATUS[one.status] for one in row) for row in answers
    ]
    sizes = [len(entity.features) for entity in product.entities.values()]
    for features, row in zip(found.features.tolist(), answers, strict=True):
        for size, answer in zip(sizes, row, strict=True):
            own, features = features[:size], features[size:]
            assert answer.values in (None, tuple(own))


@pytest.mark.usefixtures("both_readers")
@BOUNDED
@given(
    product=products(list(HOPS_US)),
    most_bytes=st.integers(300, 2_500),
    seed=st.integers(0, 2**32),
    size=st.integers(1, 150),
)
def test_online_equals_head_and_tiles(
    folder: Path,
    redis_server: EmbeddedRedis,
    product: Product,
    most_bytes: int,
    seed: int,
    size: int,
) -> None:
    """Late, out of order and twice: values, marks and statuses of the decision."""
    product, spec = load(folder, product, most_bytes=most_bytes)
    events = stream(product, seed=seed, size=size)
    source, states = random.Random(seed), PlainStates(product)
    event_of = {one.purchase.id: one for one in events}
    lateness_us = in_us(product.document["lateness"])
    sent = arrivals(events, lateness_us=lateness_us, source=source)
    seen: set[tuple[str, int]] = set()
    applied: set[str] = set()
    with empty_store(redis_server, product, spec, events) as store:
        for batch in batches_of(sent, source=source):
            if isinstance(batch[0], Label):
                labels = [one for one in batch if follows(one, applied, seen)]
                if not labels:
                    continue
                wanted = states.label(
                    [event_of[one.purchase.id] for one in labels], labels
                )
                found = store.label(labels)
                for label, status, expected_ in zip(labels, found, wanted, strict=True):
                    if "late" not in expected_:
                        seen.add((label.purchase.id, label.revision))
                    if None not in expected_:
                        assert status == min(STATUS[str(one)] for one in expected_)
                continue
            rows = [one.purchase for one in batch]
            answers = states.apply(batch)
            applied |= {
                row.id
                for row, answer in zip(rows, answers, strict=True)
                if {one.status for one in answer} == {"applied"}
            }
            mode = source.choice(["write"] * 6 + ["dry", "load"])
            late = any(one.status == "late" for row in answers for one in row)
            if mode == "load" and not late:  # load takes older ones, too
                assert store.load(rows) == [
                    min(STATUS[one.status] for one in row) for row in answers
                ]
            elif mode == "dry":
                dry, wet = store.score([rows, rows], [False, True])
                check_rows(product, dry, answers)
                check_rows(product, wet, answers)
            else:
                (vectors,) = store.score([rows], [True])
                check_rows(product, vectors, answers)
            states.fold_as(store)


@pytest.mark.usefixtures("both_readers")
@BOUNDED
@given(
    product=products(list(HOPS_US), kinds=("count", *MOMENTS)),
    most_bytes=st.integers(300, 2_500),
    seed=st.integers(0, 2**32),
    size=st.integers(1, 150),
)
def test_online_moments_equal_head_and_tiles(
    folder: Path,
    redis_server: EmbeddedRedis,
    product: Product,
    most_bytes: int,
    seed: int,
    size: int,
) -> None:
    """Deviations and trends of large numbers, late, out of order and twice."""
    compare = test_online_equals_head_and_tiles.hypothesis.inner_test
    compare(folder, redis_server, product, most_bytes, seed, size)


@pytest.mark.usefixtures("both_readers")
@BOUNDED
@given(
    product=products(list(HOPS_US), kinds=("count", "approx_distinct")),
    most_bytes=st.integers(300, 2_500),
    seed=st.integers(0, 2**32),
    size=st.integers(1, 300),
)
def test_online_sketches_equal_head_and_tiles(
    folder: Path,
    redis_server: EmbeddedRedis,
    product: Product,
    most_bytes: int,
    seed: int,
    size: int,
) -> None:
    """Estimates of different texts, late, out of order and twice."""
    compare = test_online_equals_head_and_tiles.hypothesis.inner_test
    compare(folder, redis_server, product, most_bytes, seed, size)


@pytest.mark.usefixtures("both_readers")
@BOUNDED
@given(
    product=products(
        list(HOPS_US), kinds=("count",), newest=("last", "change"), nth=(2, 3, 4)
    ),
    most_bytes=st.integers(300, 2_500),
    seed=st.integers(0, 2**32),
    size=st.integers(1, 150),
)
def test_online_nth_values_equal_head_and_tiles(
    folder: Path,
    redis_server: EmbeddedRedis,
    product: Product,
    most_bytes: int,
    seed: int,
    size: int,
) -> None:
    """A value further back than the head is marked, never another value."""
    compare = test_online_equals_head_and_tiles.hypothesis.inner_test
    compare(folder, redis_server, product, most_bytes, seed, size)
    offline = test_offline_equals_the_definition.hypothesis.inner_test
    offline(folder, product, seed, size)


# By hand -----------------------------------------------------------------------------

HAND = {
    "version": 1,
    "product": "hand",
    "lateness": "2d",
    "entities": {
        "card": {"key": "card_id", "delay": "0s", "hop": "1h", "cap": 8},
        "shop": {"key": "shop_id", "delay": "1d", "hop": "1h", "cap": 8},
    },
    "features": [
        {"name": "n_1d", "entity": "card", "aggregate": "count", "window": "1d"},
        {"name": "sum_1d", "entity": "card", "aggregate": "sum", "window": "1d"},
        {"name": "n_7d", "entity": "card", "aggregate": "count", "window": "7d"},
        {"name": "mean_7d", "entity": "card", "aggregate": "mean", "window": "7d"},
        {"name": "least_7d", "entity": "card", "aggregate": "min", "window": "7d"},
        {"name": "last_1d", "entity": "card", "aggregate": "last", "window": "1d"},
        {"name": "gap_7d", "time_since_last": "card", "window": "7d"},
        {"name": "n_shop", "entity": "shop", "aggregate": "count", "window": "1d"},
        {"name": "frauds", "entity": "shop", "aggregate": "flagged", "window": "1d"},
        {"name": "risk", "entity": "shop", "aggregate": "share", "window": "1d"},
    ],
}
MONDAY_US = 1_709_510_400_000_000  # 2024-03-04T00:00:00Z


def at_us(day: int, hour: int, minute: int = 0) -> int:
    """Return a time of a day, counted from Monday 2024-03-04."""
    return MONDAY_US + day * DAY_US + hour * HOUR_US + minute * MINUTE_US


def bought(name: str, time_us: int, cents: int = 100, *labels: int) -> Event:
    """Return a purchase of card a at shop s, a fraud from some time on or not."""
    purchase = Purchase(name, time_us, {"amount": cents, "weight": None, "spot": None})
    known = tuple(Label(purchase, True, one) for one in labels)
    return Event(purchase, {"card": "a", "shop": "s"}, known)


@pytest.mark.usefixtures("both_readers")
@pytest.mark.parametrize("served", [False, True])
def test_numbers_worked_out_by_hand(
    folder: Path, redis_server: EmbeddedRedis, served: bool
) -> None:
    """
    Six purchases of one card at one shop, by hand.

    1d / 24 is 1h, so windows of a day begin at a full hour. 7d / 24 is 7 hours, and the
    largest width within is 6h, so windows of a week begin at 0, 6, 12 or 18 o'clock.

    * 3, Tuesday 10:30: the day begins after Monday 10:00, so it contains 1 (10:20),
      which is older than 24 hours: 3 purchases of 70.00.
    * 4, Tuesday 11:00: after Monday 11:00, without 1 and 2: 40.00 + 80.00.
      The shop's day ends at Monday 11:00: 1 and 2. The fraud is not yet known.
    * 5, Tuesday 12:30: after Monday 12:00: 40 + 80 + 5 = 125.00. The shop's day is
      Sunday 12:00 to Monday 12:00: 1 and 2, and 1 is a fraud since 12:00.
    * 6, next Monday 11:30: its week begins after Monday 6:00 and contains all six, 1
      and 2 at 10:20 and 10:40 too: (10 + 20 + 40 + 80 + 5 + 160) / 6 = 52.50. The gap
      from Tuesday 12:30 is 5 days and 23 hours, 514,800 s. Its day holds nothing else.
    """
    events = [
        bought("1", at_us(0, 10, 20), 1_000, at_us(1, 12)),
        bought("2", at_us(0, 10, 40), 2_000),
        bought("3", at_us(1, 10, 30), 4_000),
        bought("4", at_us(1, 11), 8_000),
        bought("5", at_us(1, 12, 30), 500),
        bought("6", at_us(7, 11, 30), 16_000),
    ]
    wanted = [
        [1, 10.0, 1, 10.0, 10.0, 0.0, 0, 0, 0, 0.0],
        [2, 30.0, 2, 15.0, 10.0, 10.0, 1_200, 0, 0, 0.0],
        [3, 70.0, 3, 70 / 3, 10.0, 20.0, 85_800, 0, 0, 0.0],
        [2, 120.0, 4, 37.5, 10.0, 40.0, 1_800, 2, 0, 0.0],
        [3, 125.0, 5, 31.0, 5.0, 80.0, 5_400, 2, 1, 0.5],
        [1, 160.0, 6, 52.5, 5.0, 0.0, 514_800, 0, 0, 0.0],
    ]
    product = product_of(HAND)
    (folder / "features.yaml").write_text(json.dumps(HAND))
    spec = load_spec(folder / "features.yaml")
    assert expected(product, events).tolist() == wanted
    if not served:
        assert build(spec, history(product, spec, events)).tolist() == wanted
        return
    with empty_store(redis_server, product, spec, events) as store:
        for row, values in zip(events, wanted, strict=True):
            if row.purchase.id == "5":
                assert store.label(events[0].labels) == [Applied.YES]
            (found,) = store.score([[row.purchase]], [True])
            assert found.features.tolist() == [values]
            cold = Degraded.COLD_START if row is events[0] else 0
            assert found.degraded.tolist() == [cold]


def test_horizons_worked_out_by_hand(folder: Path, redis_server: EmbeddedRedis) -> None:
    """
    A head of 8: of twelve purchases at 10:00, 10:01, … the first eight are folded, so
    that half of the head is free.

    So a purchase at 10:06:30 is too late, and one at 10:07:30 is applied. A purchase of
    the head is a duplicate, one that was folded is too late. The purchase of eleven
    days later ends the lateness of all that are over two days older: they are marked,
    though they are newer than the folded ones and within the longest window, its
    rounding, the delay and the lateness.
    """
    minutes = [bought(f"m{n}", at_us(0, 10, n)) for n in range(12)]
    half_us = 30 * SECOND_US
    early = bought("early", at_us(0, 10, 6) + half_us)
    later = bought("later", at_us(0, 10, 7) + half_us)
    next_ = bought("next", at_us(0, 10, 12))
    far = bought("far", at_us(11, 0))
    behind = bought("behind", at_us(8, 23, 59))
    within = bought("within", at_us(9, 0))
    events = [*minutes, early, later, next_, far, behind, within]
    yes, no, again = Applied.YES, Applied.NO, Applied.DUPLICATE
    late = Degraded.EVENT_TOO_LATE
    steps = [
        (early, no, late, None),
        (minutes[7], no, late, None),
        (minutes[8], again, 0, 9),
        (minutes[11], again, 0, 12),
        (later, yes, 0, 9),
        (later, again, 0, 9),
        (minutes[8], again, 0, 10),
        (next_, yes, 0, 14),
        (far, yes, 0, 1),
        (behind, yes, late, None),
        (within, yes, 0, 2),
        (next_, again, late, None),
    ]
    product = product_of(HAND)
    (folder / "features.yaml").write_text(json.dumps(HAND))
    spec = load_spec(folder / "features.yaml")
    with empty_store(redis_server, product, spec, events) as store:
        store.score([[one.purchase for one in minutes]], [True])
        for event, applied, mark, count in steps:
            (found,) = store.score([[event.purchase]], [True])
            assert found.applied.tolist() == [applied]
            assert (found.degraded & ~np.uint32(Degraded.COLD_START)).tolist() == [mark]
            if count is not None:
                assert found.features[0, 0] == count


def test_head_without_a_cap_worked_out_by_hand(
    folder: Path, redis_server: EmbeddedRedis
) -> None:
    """
    A value without tiles has 160 + 16 bytes and 48 a purchase: 81 fit into 4,096.

    So after 81 purchases at 10:00, 10:01, … one of 9:59 is applied. It is the 82nd, and
    the oldest 42 are folded, up to that of 10:40: one of 10:40:30 is applied, one of
    10:39:30 is too late. A card's window of a day begins at 10:00, without that of 9:59
    and of 10:00: 80 are in it, and the two rows.
    """
    half_us = 30 * SECOND_US
    minutes = [bought(f"m{n}", at_us(0, 10, n)) for n in range(81)]
    before = bought("before", at_us(0, 9, 59))
    later = bought("later", at_us(0, 10, 40) + half_us)
    early = bought("early", at_us(0, 10, 39) + half_us)
    next_ = bought("next", at_us(1, 10, 59))
    product = copy.deepcopy(HAND)
    for entity in product["entities"].values():
        del entity["cap"]
    (folder / "features.yaml").write_text(json.dumps(product))
    spec = load_spec(folder / "features.yaml")
    assert [one.value_bytes for one in spec.entities] == [4096, 4096]
    events = [*minutes, before, later, early, next_]
    with empty_store(redis_server, product_of(product), spec, events) as store:
        for one in minutes:
            store.score([[one.purchase]], [True])
        for one, applied in (
            (before, Applied.YES),
            (early, Applied.NO),
            (later, Applied.YES),
            (next_, Applied.YES),
        ):
            (found,) = store.score([[one.purchase]], [True])
            assert found.applied.tolist() == [applied]
        assert found.features[0, 0] == 82


def test_labels_worked_out_by_hand(folder: Path, redis_server: EmbeddedRedis) -> None:
    """
    Of twenty purchases from 10:00 on, a head of 8 leaves twelve in tiles.

    The fifth label of these pushes the first, of 11:00, out of the list of four. Sent
    again, or corrected, it is too late, and the tile counts it once. A label in the
    list can be corrected. A row from before 11:00 cannot tell, and is marked.
    """
    minutes = [bought(f"m{n}", at_us(0, 10, n)) for n in range(20)]
    rows = [bought(f"r{n}", at_us(0, 12, n)) for n in range(4)]
    early = bought("early", at_us(0, 10, 59))
    document = copy.deepcopy(HAND)
    document["entities"] = {"card": HAND["entities"]["card"]}
    document["features"] = [
        {"name": "f", "entity": "card", "aggregate": "flagged", "window": "1d"}
    ]
    product = product_of(document)
    (folder / "features.yaml").write_text(json.dumps(document))
    spec = load_spec(folder / "features.yaml")
    first, *_, fifth = known = [
        Label(one.purchase, True, at_us(0, 11, n)) for n, one in enumerate(minutes[:5])
    ]
    yes, no, again = Applied.YES, Applied.NO, Applied.DUPLICATE
    steps = [
        (known, [yes] * 5, 5.0),
        ([first], [no], 5.0),
        ([fifth], [again], 5.0),
        (
            [
                Label(first.purchase, False, at_us(0, 11, 20), 1),
                Label(fifth.purchase, False, at_us(0, 11, 20), 1),
            ],
            [no, yes],
            4.0,
        ),
    ]
    with empty_store(redis_server, product, spec, [*minutes, *rows, early]) as store:
        store.score([[one.purchase for one in minutes]], [True])
        for row, (labels, statuses, frauds) in zip(rows, steps, strict=True):
            if labels is known:
                assert [store.label([one])[0] for one in labels] == statuses
            else:
                assert store.label(labels) == statuses
            (found,) = store.score([[row.purchase]], [True])
            assert found.features.tolist() == [[frauds]]
            assert found.degraded.tolist() == [0]
        (found,) = store.score([[early.purchase]], [True])
        assert found.applied.tolist() == [yes]
        assert found.degraded.tolist() == [Degraded.EVENT_TOO_LATE]


@pytest.mark.usefixtures("both_readers")
def test_moments_of_a_reading_a_second_cover_an_hour(
    folder: Path, redis_server: EmbeddedRedis
) -> None:
    """
    2,000 readings of a sensor, one a second, of up to 10¹² units each.

    The squares of a window need up to 91 bits. Most of the windows have over 1,024
    readings, and most of these are in tiles.
    """
    product = product_of(
        {
            "version": 1,
            "product": "sensor",
            "lateness": "1m",
            "entities": {"card": {"key": "card_id", "delay": "0s", "hop": "1m"}},
            "fields": [FIELDS["weight"]],
            "features": [
                {"name": "w", "entity": "card", "aggregate": "std", "window": "1h"}
                | {"of": "weight"},
                {"name": "a", "entity": "card", "aggregate": "std", "window": "1h"},
                {"name": "t", "entity": "card", "aggregate": "slope", "window": "1h"}
                | {"of": "weight"},
            ],
        }
    )
    (folder / "features.yaml").write_text(json.dumps(product.document))
    spec = load_spec(folder / "features.yaml")
    source = random.Random(5)
    events = []
    for second in range(2_000):
        weight = source.randint(-(10**12), 10**12)
        numbers = {"amount": source.randint(0, 10**9), "weight": weight, "spot": None}
        purchase = Purchase(f"{second:04}", START_US + second * SECOND_US, numbers)
        events.append(Event(purchase, {"card": "a"}, ()))
    offline = build(spec, history(product, spec, events))
    (entity,) = product.entities.values()
    purchases = [one.purchase for one in events]
    for at in (0, 1, 700, 1_999):
        assert offline[at].tolist() == [
            closed_form(entity, feature, purchases[at], purchases=purchases)
            for feature in entity.features
        ]
    readings = [one.numbers["weight"] / 1000 for one in purchases]
    assert offline[-1, 0] == pytest.approx(float(np.std(readings)), rel=1e-12)
    hours = [one.time_us / HOUR_US for one in purchases]
    line = np.polyfit(np.array(hours) - hours[0], readings, 1)
    assert offline[-1, 2] == pytest.approx(line[0], rel=1e-9)
    with empty_store(redis_server, product, spec, events) as store:
        for start in range(0, len(events), 32):
            rows = purchases[start : start + 32]
            (found,) = store.score([rows], [True])
            np.testing.assert_array_equal(
                found.features, offline[start : start + len(rows)]
            )
            assert not (found.degraded & ~np.uint32(Degraded.COLD_START)).any()


@pytest.mark.usefixtures("both_readers")
@pytest.mark.parametrize("rows_at_once", [1, 32])
def test_nth_values_of_a_full_head_are_never_marked(
    folder: Path, redis_server: EmbeddedRedis, rows_at_once: int
) -> None:
    """
    Purchases in order, 300 a minute apart; those before 11:00 have no weight.

    `nth: 9` needs a head of 17, of which 9 are left when purchases are folded. Of the
    9th newest weight, the tiles know that there is none in a window of an hour, until
    they know one that the head lacks.
    """
    document = {
        "version": 1,
        "product": "nth",
        "lateness": "1h",
        "entities": {"card": {"key": "card_id", "delay": "0s", "hop": "5m", "cap": 17}},
        "fields": [FIELDS["weight"]],
        "features": [
            {"name": "last_9", "entity": "card", "aggregate": "last", "window": "1h"}
            | {"nth": 9},
            {"name": "change_9", "entity": "card", "aggregate": "change"}
            | {"window": "1d", "nth": 9},
            {"name": "step", "entity": "card", "aggregate": "change", "window": "1h"}
            | {"of": "weight", "nth": 9},
        ],
    }
    product = product_of(document)
    (folder / "features.yaml").write_text(json.dumps(document))
    spec = load_spec(folder / "features.yaml")
    events = []
    for minute in range(300):
        weight = 7 * minute * minute if minute >= 60 else None
        numbers = {"amount": minute**3 % 1_000, "weight": weight, "spot": None}
        purchase = Purchase(f"{minute:03}", at_us(0, 10, minute), numbers)
        events.append(Event(purchase, {"card": "a"}, ()))
    offline = build(spec, history(product, spec, events))
    assert offline[200].tolist() == [
        191**3 % 1_000 / 100,
        (199**3 % 1_000 - 191**3 % 1_000) / 100,
        7 * (199**2 - 191**2) / 1000,
    ]
    with empty_store(redis_server, product, spec, events) as store:
        for start in range(0, len(events), rows_at_once):
            rows = [one.purchase for one in events[start : start + rows_at_once]]
            (found,) = store.score([rows[::-1]], [True])
            expected_ = offline[start : start + len(rows)][::-1]
            np.testing.assert_array_equal(found.features, expected_)
            assert not (found.degraded & ~np.uint32(Degraded.COLD_START)).any()


BUSY = [
    {"name": "n", "entity": "card", "aggregate": "count", "window": "25m"},
    {"name": "sum", "entity": "card", "aggregate": "sum", "window": "24s"},
    {"name": "least", "entity": "card", "aggregate": "min", "window": "1m"},
    {"name": "most", "entity": "card", "aggregate": "max", "window": "10m"},
    {"name": "last", "entity": "card", "aggregate": "last", "window": "24s"},
    {"name": "risk", "entity": "card", "aggregate": "share", "window": "1m"},
]


@pytest.mark.parametrize("span_s", [0, 60])
def test_value_of_a_busy_id_is_bounded(
    folder: Path, redis_server: EmbeddedRedis, span_s: int
) -> None:
    """3,000 purchases at one instant, or within a minute: exact, and still small."""
    product = product_of(
        {
            "version": 1,
            "product": "busy",
            "lateness": "10s",
            "entities": {"card": {"key": "card_id", "delay": "0s", "hop": "1s"}},
            "features": BUSY,
        }
    )
    (folder / "features.yaml").write_text(json.dumps(product.document))
    spec = load_spec(folder / "features.yaml")
    source = random.Random(span_s)
    times_us = [START_US + source.randint(0, span_s * SECOND_US) for _ in range(3_000)]
    events = []
    for number, time_us in enumerate(times_us):
        one = bought(str(number), time_us, source.randrange(10_000))
        known_us = time_us + source.randrange(10 * SECOND_US)
        labels = (Label(one.purchase, True, known_us),) * (number % 5 == 0)
        events.append(Event(one.purchase, {"card": "a"}, labels))
    events.sort(key=lambda one: one.purchase.place)
    offline = build(spec, history(product, spec, events))
    some = source.sample(range(len(events)), 10)
    (entity,) = product.entities.values()
    purchases = [one.purchase for one in events]
    labels = [label for one in events for label in one.labels]
    for at in some:
        assert offline[at].tolist() == [
            closed_form(
                entity, feature, purchases[at], purchases=purchases, labels=labels
            )
            for feature in entity.features
        ]
    start = 0
    with empty_store(redis_server, product, spec, events) as store:
        for batch, known in in_order(events, source=source):
            if known:
                store.label(known)
            (found,) = store.score([[one.purchase for one in batch]], [True])
            stop = start + len(batch)
            np.testing.assert_array_equal(found.features, offline[start:stop])
            assert not (found.degraded & ~np.uint32(Degraded.COLD_START)).any()
            start = stop

"""Any spec over any history: offline, online over Redis and a slow loop agree."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import redis
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from tollgate.features.offline import build
from tollgate.features.spec import FeatureSpec, load_spec
from tollgate.history import History, history_of
from tollgate.replay import labels_of, purchases_of
from tollgate.server.redis import EmbeddedRedis
from tollgate.store.online import OnlineFeatures
from tollgate.store.redis import RedisStore

HOUR_US = 3_600_000_000
START_US = 1_600_000_000_000_000
UNIT_US = {"s": 10**6, "m": 60 * 10**6, "h": HOUR_US, "d": 24 * HOUR_US}
# Every example is the same in every run; each takes some milliseconds.
BOUNDED = settings(
    max_examples=120,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
WORDS = ["web", "app", "shop", "é"]

FIELDS = [
    {"name": "items", "type": "number", "range": [-5, 100]},
    {"name": "weight", "type": "number", "decimals": 3},
    {"name": "channel", "type": "category", "vocabulary": WORDS[1:]},
    {"name": "device", "type": "category"},
]
NUMBERS, CATEGORIES = ("items", "weight"), ("channel", "device")
KEYS = {"customer": "customer_id", "terminal": "terminal_id", "card": "card_id"}
OF_NUMBER = ["sum", "mean", "min", "max", "last"]
WINDOWED = ["count", *OF_NUMBER, "distinct", "flagged", "share", "time_since_last"]
RATES = ("count", "sum", "flagged")


@dataclass(frozen=True)
class Event:
    """A purchase as its sender would describe it, with its label and when it came."""

    id: str
    time_us: int
    owners: dict[str, str]
    cents: int
    fields: dict[str, Any]
    fraud: bool
    known_us: int


@st.composite
def documents(draw: st.DrawFn) -> dict[str, Any]:
    """A features.yaml: any entities, fields and features that fit together."""
    names = draw(st.lists(st.sampled_from(sorted(KEYS)), min_size=1, unique=True))
    delays = st.sampled_from(["0s", "0s", "2h", "1d"])
    entities = {name: {"key": KEYS[name], "delay": draw(delays)} for name in names}
    features: list[dict[str, Any]] = [
        draw(windowed(name, names)) | {"name": f"of_{name}"} for name in names
    ]
    for number in range(draw(st.integers(0, 9))):
        made = draw(features_after(features, names))
        if made:
            features.append({"name": f"f{number}"} | made)
    used = {
        one[key]
        for one in features
        for key in ("field", "category", "of")
        if key in one
    }
    return {
        "version": 1,
        "product": "any",
        "lateness": "30d",
        "entities": entities,
        "fields": [field for field in FIELDS if field["name"] in used],
        "features": features,
    }


@st.composite
def windowed(draw: st.DrawFn, name: str, names: list[str]) -> dict[str, Any]:
    """A feature over a window of an entity."""
    window = {"window": draw(st.sampled_from(["1h", "90m", "1d", "2d", "30d"]))}
    default = {"default": draw(st.sampled_from([0.0, -1.5, 7.0]))}
    kind = draw(
        st.sampled_from(
            [
                "count",
                "sum",
                "mean",
                "min",
                "max",
                "last",
                "distinct",
                "flagged",
                "share",
                "time_since_last",
            ]
        )
    )
    if kind == "time_since_last":
        return {"time_since_last": name} | window | default
    feature = {"entity": name, "aggregate": kind} | window | default
    others = [KEYS[other] for other in names if other != name]
    if kind == "distinct":
        values = ["amount", *NUMBERS, *CATEGORIES, *others]
        feature["of"] = draw(st.sampled_from(values))
    elif kind in OF_NUMBER:
        of = draw(st.sampled_from([None, "amount", *NUMBERS]))
        feature |= {"of": of} if of else {}
    return feature


@st.composite
def features_after(
    draw: st.DrawFn, before: list[dict[str, Any]], names: list[str]
) -> dict[str, Any]:
    """A feature of any kind that may stand after others; nothing if none fits."""
    kind = draw(st.sampled_from(["window"] * 4 + ["field", "category", "derived"]))
    if kind == "window":
        feature = draw(windowed(draw(st.sampled_from(names)), names))
        bounds = draw(st.sampled_from([None, None, [-2.0, 9.0]]))
        return feature | ({"range": bounds} if bounds else {})
    if kind == "field":
        name = draw(st.sampled_from(["amount", *NUMBERS]))
        return {"field": name, "default": draw(st.sampled_from([0.0, 3.25]))}
    if kind == "category":
        return {"category": "channel"}
    numbers = [one["name"] for one in before if "category" not in one]
    derived = draw(st.sampled_from(["ratio", "difference", "rate_of_change"]))
    default = {"default": draw(st.sampled_from([0.0, -9.0]))}
    if derived == "rate_of_change":
        pairs = [
            [short["name"], long["name"]]
            for short in before
            for long in before
            if short.get("aggregate") in RATES
            and all(short.get(k) == long.get(k) for k in ("aggregate", "entity", "of"))
            and in_us(short["window"]) < in_us(long["window"])
        ]
        return {derived: draw(st.sampled_from(pairs))} | default if pairs else {}
    pair = [draw(st.sampled_from(numbers)), draw(st.sampled_from(numbers))]
    return {derived: pair} | default


@st.composite
def histories(draw: st.DrawFn) -> list[Event]:
    """Purchases of few owners at few moments: ties, gaps, edges of windows."""
    ids = draw(
        st.lists(st.integers(0, 2000).map(str), min_size=1, max_size=40, unique=True)
    )
    times = st.tuples(st.integers(0, 80), st.sampled_from([0, 0, 0, 1, -1]))
    missing = st.none()
    return [
        Event(
            id=one,
            time_us=START_US + hour * HOUR_US + shift,
            owners={
                key: draw(st.sampled_from(["a", "b", "c"])) for key in KEYS.values()
            },
            cents=draw(st.sampled_from([0, 1, 250, 10_000, 10**9])),
            fields={
                "items": draw(missing | st.integers(-5, 100)),
                "weight": draw(missing | st.sampled_from([0.0005, -1.25, 7.1, 1e6])),
                "channel": draw(missing | st.sampled_from(WORDS)),
                "device": draw(missing | st.sampled_from(["d1", "d2", "d3"])),
            },
            fraud=draw(st.booleans()),
            known_us=START_US + draw(st.integers(0, 120)) * HOUR_US,
        )
        for one in ids
        for hour, shift in [draw(times)]
    ]


def in_us(text: str) -> int:
    """Read a duration."""
    return int(text[:-1]) * UNIT_US[text[-1]]


def frame_of(events: list[Event]) -> pl.DataFrame:
    """Write events as the table that a history is read from."""
    table: dict[str, list[Any]] = {
        "transaction_id": [one.id for one in events],
        "event_time": [one.time_us for one in events],
        "amount": [one.cents / 100 for one in events],
        "label": [int(one.fraud) for one in events],
        "label_time": [one.known_us for one in events],
    }
    table |= {key: [one.owners[key] for one in events] for key in KEYS.values()}
    fields = [field["name"] for field in FIELDS]
    kinds = {"items": pl.Float64, "weight": pl.Float64}
    columns = {name: [one.fields[name] for one in events] for name in fields}
    return pl.DataFrame(table).with_columns(
        pl.Series(name, values, dtype=kinds.get(name, pl.String), strict=False)
        for name, values in columns.items()
    )


class Loop:
    """The reference: every number from its definition, one purchase at a time."""

    def __init__(self, document: dict[str, Any], events: list[Event]) -> None:
        self.document = document
        self.events = sorted(events, key=lambda one: (one.time_us, *order(one.id)))
        self.decimals = {"amount": 2} | {
            one["name"]: one.get("decimals", 0) for one in document["fields"]
        }

    def vector(self, own: Event) -> list[float]:
        """Compute one purchase's vector."""
        made: dict[str, float | None] = {}
        vector = []
        for feature in self.document["features"]:
            value = self.value(feature, own, made)
            default = feature.get("default", 0.0)
            made[feature["name"]] = value
            number = default if value is None else value
            if bounds := feature.get("range"):
                number = min(max(number, bounds[0]), bounds[1])
                made[feature["name"]] = None if value is None else number
            vector.append(number)
        return vector

    def value(
        self, feature: dict[str, Any], own: Event, made: dict[str, float | None]
    ) -> float | None:
        """Compute one feature; None where its default has to stand in."""
        if "field" in feature:
            number = self.number(own, feature["field"])
            return None if number is None else self.unscaled(number, feature["field"])
        if "category" in feature:
            word = own.fields[feature["category"]]
            known = next(f for f in FIELDS if f["name"] == feature["category"])
            if not word:
                return -1.0
            words = known["vocabulary"]
            return float(words.index(word)) if word in words else -2.0
        for kind in ("ratio", "difference", "rate_of_change"):
            if kind in feature:
                return self.derived(kind, feature[kind], made)
        return self.windowed(feature, own)

    def derived(
        self, kind: str, names: list[str], made: dict[str, float | None]
    ) -> float | None:
        """Compute a feature of two others."""
        first, second = (made[name] for name in names)
        if first is None or second is None:
            return None
        if kind == "difference":
            return first - second
        if second == 0:
            return None
        if kind == "ratio":
            return first / second
        features = {one["name"]: one for one in self.document["features"]}
        short, long = (in_us(features[name]["window"]) for name in names)
        return first / second * (long / short)

    def windowed(self, feature: dict[str, Any], own: Event) -> float | None:
        """Compute a feature over a window."""
        name = feature.get("entity") or feature["time_since_last"]
        entity = self.document["entities"][name]
        delay_us, width_us = in_us(entity["delay"]), in_us(feature["window"])
        end_us = own.time_us - delay_us
        inside = [
            one
            for one in self.events
            if one.owners[entity["key"]] == own.owners[entity["key"]]
            and end_us - width_us < one.time_us <= end_us
            and (delay_us or self.upto(one, own))
        ]
        if "time_since_last" in feature:
            earlier = [one.time_us for one in inside if one is not own]
            return (own.time_us - earlier[-1]) / 1e6 if earlier else None
        kind, of = feature["aggregate"], feature.get("of", "amount")
        frauds = [one for one in inside if one.fraud and one.known_us <= own.time_us]
        if kind == "count":
            return float(len(inside))
        if kind == "flagged":
            return float(len(frauds))
        if kind == "share":
            return len(frauds) / len(inside) if inside else 0.0
        if kind == "last":
            inside = [one for one in inside if one is not own]
        values = [self.number(one, of) for one in inside]
        return self.aggregate(kind, of, [one for one in values if one is not None])

    def aggregate(self, kind: str, of: str, values: list[Any]) -> float | None:
        """Compute an aggregate of the values that are there."""
        if kind == "distinct":
            return float(len(set(values)))
        if kind == "sum":
            return self.unscaled(sum(values), of)
        if kind == "mean":
            unit = 10 ** self.decimals[of]
            return sum(values) / (len(values) * unit) if values else 0.0
        if not values:
            return None
        pick = {"min": min, "max": max, "last": lambda all_: all_[-1]}[kind]
        return self.unscaled(pick(values), of)

    def number(self, one: Event, of: str) -> Any:
        """Take what a purchase says of something; None if it says nothing."""
        if of == "amount":
            return one.cents
        if of in one.owners:
            return one.owners[of]
        value = one.fields[of]
        if of in CATEGORIES or value is None:
            return value
        return round(value * 10.0 ** self.decimals[of])

    def unscaled(self, number: int, of: str) -> float:
        """Turn a whole number of the last decimal into what it stands for."""
        return number / 10 ** self.decimals[of]

    def upto(self, one: Event, own: Event) -> bool:
        """Tell whether an event of the row's own instant is not after the row."""
        return one.time_us < own.time_us or order(one.id) <= order(own.id)


def order(transaction_id: str) -> tuple[int, bytes]:
    """Sort ids as the contract does."""
    return len(transaction_id), transaction_id.encode()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where specs are written."""
    return tmp_path_factory.mktemp("specs")


def read(folder: Path, document: dict[str, Any]) -> FeatureSpec:
    """Load a document as a features.yaml; JSON is YAML."""
    path = folder / "features.yaml"
    path.write_text(json.dumps(document))
    return load_spec(path)


def arrive(
    online: OnlineFeatures, spec: FeatureSpec, history: History, draw: Any
) -> None:
    """Apply purchases and labels in any order, in batches, some of them twice."""
    count = len(history)
    events = [("purchase", row) for row in range(count)]
    events += [("label", row) for row in range(count) if history.label[row] == 1]
    events += draw.draw(st.lists(st.sampled_from(events), max_size=10))
    events = draw.draw(st.permutations(events))
    while events:
        kind, size = events[0][0], draw.draw(st.integers(1, 12))
        rows = []
        while events and events[0][0] == kind and len(rows) < size:
            rows.append(events.pop(0)[1])
        chosen = np.array(rows)
        if kind == "label":
            online.label(labels_of(spec, history, chosen))
        else:
            online.load(purchases_of(spec, history, chosen))


@BOUNDED
@given(document=documents(), events=histories())
def test_offline_equals_a_loop(
    folder: Path, document: dict[str, Any], events: list[Event]
) -> None:
    """Every aggregate and every derived feature, to the last bit of a double."""
    spec = read(folder, document)
    for feature in document["features"]:
        event(str(feature.get("aggregate") or sorted(feature)))
    got = build(spec, history_of(frame_of(events), spec=spec, source=""))
    loop = Loop(document, events)
    np.testing.assert_array_equal(got, np.array([loop.vector(one) for one in events]))


@settings(BOUNDED, max_examples=80)
@given(document=documents(), events=histories(), data=st.data())
def test_online_equals_offline(
    folder: Path,
    redis_server: EmbeddedRedis,
    document: dict[str, Any],
    events: list[Event],
    data: Any,
) -> None:
    """Out of order, twice, labels first: what Redis holds in the end reads alike."""
    spec = read(folder, document)
    history = history_of(frame_of(events), spec=spec, source="")
    client = redis.Redis.from_url(redis_server.url)
    client.flushall()
    store = RedisStore(redis_server.url, deadline_s=10.0)
    online = OnlineFeatures(spec, store)
    arrive(online, spec, history, data)
    rows = np.array(data.draw(st.permutations(range(len(history)))))
    before = {key: client.get(key) for key in client.scan_iter()}
    read_back = []
    for first in range(0, len(rows), 32):
        batch = purchases_of(spec, history, rows[first : first + 32])
        (vectors,) = online.score([batch], write=[False])
        assert not (vectors.degraded & ~np.uint32(4)).any()  # at most: a cold start
        read_back.append(vectors.features)
    served = np.concatenate(read_back)
    np.testing.assert_array_equal(served, build(spec, history)[rows])
    assert {key: client.get(key) for key in client.scan_iter()} == before
    store.close()
    client.close()

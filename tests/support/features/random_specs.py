"""Any features.yaml, and any history for it, as Hypothesis draws them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import polars as pl
from hypothesis import strategies as st

HOUR_US = 3_600_000_000
START_US = 1_600_000_000_000_000
UNIT_US = {"s": 10**6, "m": 60 * 10**6, "h": HOUR_US, "d": 24 * HOUR_US}
WORDS = ["web", "app", "shop", "é"]

FIELDS = [
    {"name": "items", "type": "number", "range": [-5, 100]},
    {"name": "weight", "type": "number", "decimals": 3},
    {"name": "spot", "type": "number", "decimals": "exact"},
    {"name": "channel", "type": "category", "vocabulary": WORDS[1:]},
    {"name": "device", "type": "category"},
]
ADDABLE, CATEGORIES = ("items", "weight"), ("channel", "device")
NUMBERS = (*ADDABLE, "spot")
SPOTS = [52.123456, 52.1234560000001, -0.0000123, 3e-310, -7e30, 0.0]
KEYS = {"customer": "customer_id", "terminal": "terminal_id", "card": "card_id"}
ADDED = ["sum", "mean", "std", "slope", "ewm"]
OF_NUMBER = [*ADDED, "min", "max", "last", "change"]
COUNTED = ["count", "sessions", "distinct", "approx_distinct", "flagged", "share"]
WINDOWED = [*COUNTED, *OF_NUMBER, "time_since_last"]
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
    kind = draw(st.sampled_from(WINDOWED))
    if kind == "time_since_last":
        return {"time_since_last": name} | window | default
    feature = {"entity": name, "aggregate": kind} | window | default
    others = [KEYS[other] for other in names if other != name]
    if kind == "distinct":
        values = ["amount", *NUMBERS, *CATEGORIES, *others]
        feature["of"] = draw(st.sampled_from(values))
    elif kind == "approx_distinct":
        feature["of"] = draw(st.sampled_from([*CATEGORIES, *others]))
    elif kind == "sessions":
        feature["gap"] = draw(st.sampled_from(["1s", "1h", "2h", "1d"]))
    elif kind in OF_NUMBER:
        numbers = ADDABLE if kind in ADDED else NUMBERS
        of = draw(st.sampled_from([None, "amount", *numbers]))
        feature |= {"of": of} if of else {}
        if kind in ("last", "change"):
            nth = draw(st.sampled_from([None, None, 2, 3]))
            feature |= {"nth": nth} if nth else {}
        if kind == "ewm":
            feature["half_life"] = draw(st.sampled_from(["7s", "50m", "1d", "90d"]))
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
                "spot": draw(missing | st.sampled_from(SPOTS)),
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
    kinds = dict.fromkeys(NUMBERS, pl.Float64)
    columns = {name: [one.fields[name] for one in events] for name in fields}
    return pl.DataFrame(table).with_columns(
        pl.Series(name, values, dtype=kinds.get(name, pl.String), strict=False)
        for name, values in columns.items()
    )

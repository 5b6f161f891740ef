"""The compiled loop reads windows with the bits of the NumPy code."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.features.random_specs import SPOTS, documents
from tollgate import compiled
from tollgate.errors import SpecError
from tollgate.features.spec.feature_spec import Entity, FeatureSpec, load_spec
from tollgate.features.spec.tile_form import FieldKind
from tollgate.features.windows.entity_entries import (
    ENTRY,
    FRAUD,
    HEADER,
    LABEL,
    LABELLED,
    MISSING,
    NEWEST,
    PURCHASE,
    TILED,
    identify,
)
from tollgate.schema import float_places
from tollgate.store.online_features import Packed, Reader, Vectors
from tollgate.store.redis.redis_store import Answer
from tollgate.store.store_events import Packer, Purchases, purchase_entries

BOUNDED = settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
HOUR_US = 3_600_000_000
START_US = 1_600_000_000_000_000
# With a hop, an entity has these aggregates, and these only without a delay.
ADDED = ("count", "sum", "mean", "min", "max", "flagged", "share", "std", "slope")
NEWEST_EVENTS = ("last", "change", "time_since_last")
IN_NUMPY = ("ewm",)  # the loop leaves products with these to NumPy

pytestmark = pytest.mark.skipif(compiled.windows is None, reason="no C compiler")


# Products ----------------------------------------------------------------------------


@st.composite
def products(draw: st.DrawFn) -> dict[str, Any]:
    """A features.yaml with any features; some entities have a hop."""
    document = draw(documents())
    document["lateness"] = draw(st.sampled_from(["0s", "1d", "30d"]))
    hops = {
        name: draw(st.sampled_from([0, 0, "1h", "1d"])) for name in document["entities"]
    }
    features = []
    for one in document["features"]:
        name = one.get("entity", one.get("time_since_last"))
        if name is not None:
            entity = document["entities"][name]
            one = _addable(one) if hops[name] or draw(st.booleans()) else one
            if hops[name] and entity["delay"] != "0s" and _kind(one) in NEWEST_EVENTS:
                one = _counted(one, name)
        features.append(one)
    features += [{"name": one, "calendar": one} for one in ("weekend", "night")]
    features[0] |= draw(st.sampled_from([{}, {"range": [-0.0, 3.0], "default": 1.0}]))
    for name, hop in hops.items():
        document["entities"][name]["hop"] = hop
    used = {one.get(key) for one in features for key in ("field", "category", "of")}
    fields = [one for one in document["fields"] if one["name"] in used]
    return document | {"features": features, "fields": fields}


def _kind(feature: dict[str, Any]) -> str:
    return str(feature.get("aggregate", "time_since_last"))


def _addable(feature: dict[str, Any]) -> dict[str, Any]:
    """Replace an aggregate that needs every event."""
    kind = _kind(feature)
    if kind in ADDED or kind in NEWEST_EVENTS:
        return feature
    return _counted(feature, feature["entity"])


def _counted(feature: dict[str, Any], entity: str) -> dict[str, Any]:
    window = {key: feature[key] for key in ("name", "window", "default")}
    return window | {"entity": entity, "aggregate": "count"}


def loaded(folder: Path, document: dict[str, Any]) -> FeatureSpec:
    """Load a product; without hops if the values of one could be too long."""
    path = folder / "features.yaml"
    path.write_text(json.dumps(document))
    try:
        return load_spec(path)
    except SpecError:
        for entity in document["entities"].values():
            entity["hop"] = 0
        path.write_text(json.dumps(document))
        return load_spec(path)


# Values ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Batch:
    """Hold the rows of a batch and the store's reply."""

    packed: Packed
    answer: Answer


def summed(value: bytes) -> bytes:
    """Write the checksum of a value."""
    bare = value[:4] + bytes(4) + value[8:]
    total = int(np.frombuffer(bare[: len(bare) // 4 * 4], "<u4").sum(dtype=np.uint32))
    return value[:4] + total.to_bytes(4, "little") + value[8:]


def some_times(source: np.random.Generator, count: int) -> np.ndarray:
    """Times within 40 days before the rows, of which many are equal."""
    steps = source.choice([HOUR_US, HOUR_US // 4, 1])
    far = source.choice([2, 100, 40 * 24])
    times_us = START_US - source.integers(-2, far, count) * HOUR_US
    return times_us + source.integers(-1, 2, count) * steps


def some_entries(
    source: np.random.Generator, entity: Entity, own: np.ndarray, count: int
) -> np.ndarray:
    """Events before and after those of the batch, as words in the order of a value."""
    entries = np.zeros(count, ENTRY)
    ids = [b"%d" % one for one in source.integers(0, 3000, count)]
    if count:
        identify(entries, ids)
    entries["time_us"] = some_times(source, count)
    entries["cents"] = source.choice([0, 1, 250, 10**9], count)
    flags = [PURCHASE, PURCHASE | LABELLED, PURCHASE | LABELLED | FRAUD]
    entries["flags"] = source.choice([*flags, LABELLED, LABELLED | FRAUD | 256], count)
    entries["label_time_us"] = some_times(source, count) + HOUR_US * 24
    if len(own):  # known at the time of a row, or just before or after it
        near = source.random(count) < 0.5
        known_us = source.choice(own[:, 0], count) + source.integers(-1, 2, count)
        entries["label_time_us"][near] = known_us[near]
    width = ENTRY.itemsize // 8 + len(entity.columns)
    words = np.zeros((count, width), "<i8")
    words[:, :6] = entries.view("<i8").reshape(count, 6)
    for at, name in enumerate(entity.columns, start=6):
        spots = float_places(np.array(SPOTS)).tolist()
        values = [MISSING, *(spots if name == "spot" else [0, -5, 7, 99])]
        words[:, at] = source.choice(values, count)
    whole = np.concatenate([words, own])
    order = [(int(one[0]), one[1:4].tobytes()) for one in whole]
    return whole[sorted(range(len(whole)), key=order.__getitem__)]


def some_tiles(
    source: np.random.Generator, entity: Entity, first_us: int
) -> tuple[np.ndarray, bytes, int]:
    """Return TILED, the bytes between it and the entries, and the newest folded."""
    form = entity.tiles
    assert form is not None
    count = int(source.choice([0, 1, 5, 30]))
    last = first_us // form.width_us
    base = last - 24 * 40 * HOUR_US // form.width_us - 2
    most = max(last - base, 1)
    index = np.unique(source.integers(0, most + 2, count))
    tiles = np.zeros((len(index), form.record_bytes // 4), "<u4")
    tiles[:, 0] = index
    tiles[:, 1] = source.integers(0, 4, len(index))
    has_moments = any(field.kind >= FieldKind.SQUARES for field in form.fields)
    numbers = [0, -7, 2**40, *([] if has_moments else [MISSING, -MISSING - 1])]
    for field in form.fields:
        at = field.offset // 4
        tiles[:, at] = source.integers(0, 3, len(index))
        if field.kind > FieldKind.KNOWN:
            number = source.choice(numbers, len(index))
            tiles[:, at : at + 2] = number.astype("<i8").view("<u4").reshape(-1, 2)
        if field.kind > FieldKind.SQUARES:
            tiles[:, at + 2 : at + 4] = np.where(number < 0, 2**32 - 1, 0)[:, None]
        elif field.kind == FieldKind.SQUARES:  # more than the square of the sums
            tiles[:, at + 2] = 2**28
    newest = np.zeros(1 + len(entity.columns), NEWEST)
    newest["value"] = source.choice([MISSING, 0, 12], len(newest))
    newest["time_us"] = some_times(source, len(newest))
    labels = np.zeros(int(source.integers(0, 5)), LABEL)
    labels["time_us"] = some_times(source, len(labels))
    labels["flags"] = source.choice([LABELLED, LABELLED | FRAUD], len(labels))
    labels["label_time_us"] = some_times(source, len(labels)) + HOUR_US * 24
    head = np.zeros(1, TILED)
    head["base"], head["tiles"], head["labels"] = base, len(index), len(labels)
    head["label_us"] = source.choice([MISSING, START_US - HOUR_US, START_US + HOUR_US])
    body = newest.tobytes() + tiles.tobytes()
    body += bytes(-len(tiles.tobytes()) % 8) + labels.tobytes()
    # The newest tile may end after the newest purchase in it.
    return head, body, first_us - int(source.choice([0, 1, HOUR_US // 2]))


def some_value(source: np.random.Generator, entity: Entity, own: np.ndarray) -> bytes:
    """A value of an entity that contains some events; sometimes empty."""
    if source.random() < 0.1:
        return b""
    words = some_entries(source, entity, own, int(source.choice([0, 1, 3, 20, 60])))
    header = np.zeros(1, HEADER)
    header["version"] = 2 if entity.tiles else 1
    header["entry_bytes"] = words.shape[1] * 8
    header["count"] = len(words)
    header["watermark_us"] = START_US + source.choice([0, 1, 31 * 24]) * HOUR_US
    header["overflow"] = source.choice([0, 0, 3])
    header["dropped_us"] = some_times(source, 1)
    body = b""
    if entity.tiles:
        first_us = int(words[0, 0]) if len(words) else START_US
        tiled, body, header["dropped_us"] = some_tiles(source, entity, first_us)
        body = tiled.tobytes() + body
    return summed(header.tobytes() + body + words.tobytes())


def damaged(source: np.random.Generator, value: bytes) -> bytes:
    """Flip a byte, cut or lengthen a value; the checksum is wrong, or made right."""
    if not value:
        return bytes(source.integers(0, 256, source.integers(1, 200)).tolist())
    kind = source.integers(4)
    if kind == 0:
        return value[: source.integers(len(value))]
    if kind == 1:
        return value + bytes(int(source.integers(1, 100)))
    changed = bytearray(value)
    # Most lengths and counts are in the first 200 bytes.
    most = min(len(value), 200) if source.random() < 0.7 else len(value)
    for _ in range(source.integers(1, 4)):
        changed[source.integers(most)] ^= 1 << source.integers(8)
    return summed(bytes(changed)) if kind == 2 else bytes(changed)


def some_batch(
    spec: FeatureSpec, source: np.random.Generator, *, rows: int, flawed: bool
) -> Batch:
    """Draw purchases of few ids, and values that contain most of them."""
    ids = [b"%d" % one for one in source.integers(0, 3000, rows)]
    owners = source.integers(0, source.choice([1, 3, 40]), (len(spec.entities), rows))
    numbers = [MISSING, 0, 1, -2500, 99]
    fields = {
        one.name: source.choice(numbers, rows)
        for one in spec.fields
        if source.random() < 0.8
    }
    purchases = Purchases(
        transaction_id=ids,
        entity_id=[[b"o%d" % one for one in own] for own in owners.tolist()],
        event_time_us=START_US + some_times(source, rows) % (2 * HOUR_US),
        cents=source.choice([0, 1, 999, 10**9], rows),
        fields=fields,
    )
    entries, packer = purchase_entries(purchases), Packer(spec)
    columns = packer.columns(purchases)
    call = packer.pack(entries, purchases.entity_id, columns=columns)
    values, at = [], 0
    for position, entity in enumerate(spec.entities):
        width = ENTRY.itemsize // 8 + len(entity.columns)
        own = np.frombuffer(call.events, "<i8", rows * width, at).reshape(rows, width)
        at += own.nbytes
        key = call.code[position][call.order[position]]
        for one in range(call.first_key[position + 1] - call.first_key[position]):
            applied = own[(key == one) & (source.random(rows) < 0.8)]
            applied = np.unique(applied, axis=0)
            values.append(some_value(source, entity, applied))
    if flawed:
        for place in source.integers(0, len(values), 3).tolist():
            values[place] = damaged(source, values[place])
    statuses = source.choice([1, 1, 2, 3], rows * len(spec.entities))
    if source.random() < 0.5:
        statuses[:] = 1
    answer = values, statuses.astype(np.uint8).tobytes()
    return Batch(Packed(purchases=purchases, entries=entries, call=call), answer)


# Comparisons -------------------------------------------------------------------------


def with_numpy(spec: FeatureSpec, batch: Batch) -> Vectors | str:
    """Read a batch with NumPy; the name of its error if it raises one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled, "windows", None)
        return vectors(spec, batch)


def vectors(spec: FeatureSpec, batch: Batch) -> Vectors | str:
    """Read a batch with the compiled loop, if it covers the batch."""
    try:
        return Reader(spec).read(batch.packed, batch.answer)
    except (OverflowError, RuntimeWarning) as exc:
        return type(exc).__name__


def check(spec: FeatureSpec, batch: Batch) -> None:
    """Compare both ways bit by bit."""
    expected, found = with_numpy(spec, batch), vectors(spec, batch)
    if isinstance(expected, str) or isinstance(found, str):
        assert expected == found
        return
    assert found.degraded.tolist() == expected.degraded.tolist()
    assert found.applied.tolist() == expected.applied.tolist()
    wrong = found.features.view("<i8") != expected.features.view("<i8")
    names = np.array(spec.feature_names)[wrong.any(axis=0)]
    assert not wrong.any(), (names, found.features[wrong], expected.features[wrong])


def covered(spec: FeatureSpec) -> bool:
    """Test whether the loop has all aggregates of a product."""
    return not any(one.aggregate in IN_NUMPY for one in spec.features)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where specs are written."""
    return tmp_path_factory.mktemp("specs")


@BOUNDED
@given(
    document=products(),
    seed=st.integers(0, 2**32),
    rows=st.sampled_from([1, 2, 8, 32, 70]),
)
def test_sound_values_are_read_by_the_loop_with_the_same_bits(
    folder: Path, document: dict[str, Any], seed: int, rows: int
) -> None:
    """Any features, delays and hops; ties, waiting labels, overflows, late rows."""
    spec = loaded(folder, document)
    source = np.random.default_rng(seed)
    for _ in range(5):
        batch = some_batch(spec, source, rows=rows, flawed=False)
        check(spec, batch)
        by_loop = Reader(spec)._read_compiled(batch.packed, batch.answer[0])
        assert (by_loop is not None) == covered(spec)


@BOUNDED
@given(
    document=products(),
    seed=st.integers(0, 2**32),
    rows=st.sampled_from([1, 3, 32]),
)
def test_damaged_values_are_judged_alike(
    folder: Path, document: dict[str, Any], seed: int, rows: int
) -> None:
    """Any flipped byte, length or count, with a wrong checksum or the right one."""
    spec = loaded(folder, document)
    source = np.random.default_rng(seed)
    for _ in range(10):
        check(spec, some_batch(spec, source, rows=rows, flawed=True))

"""Events as messages: what is read, and what is refused with which reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.products.small_shop import SPEC as SHOP_SPEC
from tollgate.features.spec.feature_spec import SPEC_FILE, FeatureSpec, load_spec
from tollgate.schema import MAX_AHEAD_US, MISSING, float_places
from tollgate.store.store_events import Labels, Purchases
from tollgate.stream.events import EventCodec

NOW_US = 1_700_000_000_000_000
PURCHASE: dict[str, Any] = {
    "event": "purchase",
    "transaction_id": "t1",
    "customer_id": "c1",
    "terminal_id": "m1",
    "event_time": NOW_US,
    "cents": 1234,
}
LABEL: dict[str, Any] = {
    **{name: PURCHASE[name] for name in list(PURCHASE)[1:5]},
    "event": "label",
    "label": 1,
    "label_time": NOW_US,
}


def message(base: dict[str, Any], **changed: Any) -> bytes:
    """Write an event with some of its fields changed; None leaves one out."""
    event = {**base, **changed}
    return json.dumps({k: v for k, v in event.items() if v is not None}).encode()


def test_events_come_back_as_they_were_sent(spec: FeatureSpec) -> None:
    """Encoding and decoding keep every field of purchases and labels."""
    codec = EventCodec(spec)
    purchases = Purchases(
        transaction_id=[b"1", "ü".encode()],
        entity_id=[[b"c", b"c"], [b"m", b"n"]],
        event_time_us=np.array([NOW_US, NOW_US + 1]),
        cents=np.array([0, 10**9]),
    )
    labels = Labels(
        transaction_id=[b"1"],
        entity_id=[[b"c"], [b"m"]],
        event_time_us=np.array([NOW_US]),
        label=np.array([1], np.int8),
        label_time_us=np.array([NOW_US + 5]),
        revision=np.array([3]),
    )
    sent = codec.encode_labels(labels) + codec.encode_purchases(purchases)
    found = codec.decode(sent, now_us=NOW_US)
    assert not found.poison
    assert (found.label_at, found.purchase_at) == ([0], [1, 2])
    for one, other in ((found.purchases, purchases), (found.labels, labels)):
        for name in one.__struct_fields__:
            left, right = getattr(one, name), getattr(other, name)
            assert [*left] == [*right], name


def test_fields_that_only_events_have_come_back(tmp_path: Path) -> None:
    """The items and actions of a shop are in no request."""
    (tmp_path / SPEC_FILE).write_text(SHOP_SPEC)
    codec = EventCodec(load_spec(tmp_path / SPEC_FILE))
    fields = {"item": np.array([7, -3]), "action": np.array([5, MISSING])}
    purchases = Purchases(
        transaction_id=[b"1", b"2"],
        entity_id=[[b"ann", b"ben"]],
        event_time_us=np.array([NOW_US, NOW_US]),
        cents=np.zeros(2, np.int64),
        fields=fields,
    )
    found = codec.decode(codec.encode_purchases(purchases), now_us=NOW_US)
    assert not found.poison
    for name, column in fields.items():
        assert found.purchases.fields[name].tolist() == column.tolist()


def test_a_label_without_a_revision_is_the_first(spec: FeatureSpec) -> None:
    """`revision` is 0 unless it is said, and unknown keys are left alone."""
    found = EventCodec(spec).decode([message(LABEL, note="x")], now_us=NOW_US)
    assert found.labels.revision.tolist() == [0]


@pytest.mark.parametrize(
    ("poison", "named"),
    [
        (b"", "truncated"),
        (b"{", "truncated"),
        (b"\xff", "JSON"),
        (b"[" * 100_000, "Expected `object`"),
        (b'{"x":' * 100_000, "nested"),
        (b"null", "Expected `object`"),
        (message(PURCHASE, event="refund"), "event: is neither purchase nor label"),
        (message(PURCHASE, event=None), "event"),
        (message(PURCHASE, transaction_id=""), "$.transaction_id"),
        (message(PURCHASE, customer_id=None), "customer_id"),
        (message(PURCHASE, customer_id=7), "$.customer_id"),
        (message(PURCHASE, terminal_id="é" * 65), "terminal_id: is longer than 128"),
        (message(PURCHASE, terminal_id="\ud800"), "surrogate"),
        (message(PURCHASE, cents=-1), "$.cents"),
        (message(PURCHASE, cents=10**9 + 1), "$.cents"),
        (message(PURCHASE, cents=12.5), "$.cents"),
        (message(PURCHASE, event_time=1), "$.event_time"),
        (message(PURCHASE, event_time=10**30), "event_time: is over a day ahead"),
        (
            message(PURCHASE, event_time=NOW_US + MAX_AHEAD_US + 1),
            "event_time: is over a day ahead",
        ),
        (message(LABEL, label=2), "$.label"),
        (message(LABEL, revision=2**24), "$.revision"),
        (
            message(LABEL, label_time=NOW_US + MAX_AHEAD_US + 1),
            "label_time: is over a day ahead",
        ),
    ],
)
def test_poison_is_named_and_spoils_no_other(
    spec: FeatureSpec, poison: bytes, named: str
) -> None:
    """A bad message gets a reason that names the field; its neighbours are read."""
    found = EventCodec(spec).decode(
        [message(PURCHASE), poison, message(LABEL)], now_us=NOW_US
    )
    assert list(found.poison) == [1]
    assert named in found.poison[1]
    assert (found.purchase_at, found.label_at) == ([0], [2])


def test_stored_numbers_out_of_range_are_refused(tmp_path: Path) -> None:
    """Decimals and exact numbers; the limits themselves, and no number, are taken."""
    path = tmp_path / "features.yaml"
    path.write_text(
        "{version: 1, product: p, entities: {c: {key: customer_id}}, fields: ["
        "{name: items, type: number, decimals: 2, range: [0, 10]},"
        "{name: spot, type: number, decimals: exact, range: [-1, 1]}], features: ["
        "{name: n, entity: c, aggregate: count, window: 1d},"
        "{name: s, entity: c, aggregate: sum, of: items, window: 1d},"
        "{name: l, entity: c, aggregate: last, of: spot, window: 1d}]}"
    )
    one, more = float_places(np.array([1.0, 1.0000000000000002])).tolist()
    sent: list[dict[str, int]] = [
        {"items": 1000, "spot": one},
        {},
        {"items": -(2**63), "other": 2**63 - 1},
        {"items": 1001},
        {"items": -1},
        {"spot": more},
    ]
    messages = [message(PURCHASE, kept=numbers) for numbers in sent]
    found = EventCodec(load_spec(path)).decode(messages, now_us=NOW_US)
    assert found.purchase_at == [0, 1, 2]
    assert found.poison == {
        3: "kept.items: is not within 0 … 10",
        4: "kept.items: is not within 0 … 10",
        5: "kept.spot: is not within -1 … 1",
    }


def test_reasons_hold_no_value_of_the_event(spec: FeatureSpec) -> None:
    """A reason may be logged: no id and no amount is in it."""
    secret = "4929-1234-5678-9012"
    events = [
        message(PURCHASE, customer_id=secret, cents=-777_777),
        message(PURCHASE, customer_id=secret * 20),
        message(PURCHASE, event=secret),
        message(PURCHASE, event_time=secret),
    ]
    found = EventCodec(spec).decode(events, now_us=NOW_US)
    assert len(found.poison) == len(events)
    for reason in found.poison.values():
        assert "4929" not in reason
        assert "777" not in reason

"""
Encode and decode purchase and label events: one JSON object per message.

An invalid message does not affect any other one: it is reported with the reason and
goes to the dead letters. Reasons name fields, never their values, so they may be
logged.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import msgspec
import numpy as np

from tollgate.features.fields import field_rule, stored_range
from tollgate.features.spec.feature_spec import FeatureSpec
from tollgate.features.windows.entity_entries import MISSING
from tollgate.schema import (
    EVENT_TIME,
    MAX_AHEAD_US,
    MAX_CENTS,
    MAX_ID_BYTES,
    MIN_EVENT_TIME_US,
    TRANSACTION_ID,
)
from tollgate.store.store_events import MAX_REVISION, Labels, Purchases

KIND = "event"
PURCHASE, LABEL = "purchase", "label"
CENTS, LABEL_VALUE, LABEL_TIME, REVISION = "cents", "label", "label_time", "revision"
STORED_FIELDS = "kept"

_Id = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_ID_BYTES)]
_TimeUs = Annotated[int, msgspec.Meta(ge=MIN_EVENT_TIME_US)]
_Cents = Annotated[int, msgspec.Meta(ge=0, le=MAX_CENTS)]
_Flag = Annotated[int, msgspec.Meta(ge=0, le=1)]
_Revision = Annotated[int, msgspec.Meta(ge=0, le=MAX_REVISION)]
_Whole = Annotated[int, msgspec.Meta(ge=MISSING, le=2**63 - 1)]


class Decoded(msgspec.Struct, frozen=True):
    """
    Hold a batch of decoded messages.

    Attributes:
        purchase_at: Index of the message of each purchase.
        label_at: Index of the message of each label.
        poison: Message -> its error.
    """

    purchases: Purchases
    purchase_at: list[int]
    labels: Labels
    label_at: list[int]
    poison: dict[int, str]


class EventCodec:
    """
    Encode and decode the events of one product.

    A purchase is `{"event": "purchase", "transaction_id", <entity keys>, "event_time",
    "cents"}`, a label `{"event": "label", "transaction_id", <entity keys>,
    "event_time", "label", "label_time", "revision"}`: ids are text of 1 to 128 bytes,
    times µs since the epoch in UTC, `event_time` the purchase's in both, `label` 0 or
    1, `revision` 0 by default. A purchase may have `kept`: declared fields as the store
    holds them, integers by name (tollgate/features/fields.py). Other keys are ignored.
    """

    def __init__(self, spec: FeatureSpec) -> None:
        self._keys = tuple(entity.key for entity in spec.entities)
        self._fields = tuple(field.name for field in spec.event_fields)
        self._numbers = [
            (field.name, *stored_range(field), field_rule(field))
            for field in spec.event_fields
            if field.type == "number"
        ]
        ids: list[Any] = [(name, _Id) for name in (TRANSACTION_ID, *self._keys)]
        tail: list[Any] = [(EVENT_TIME, _TimeUs)]
        self._purchase: Any = msgspec.defstruct(
            "PurchaseEvent",
            [
                *ids,
                *tail,
                (CENTS, _Cents),
                (STORED_FIELDS, dict[str, _Whole], msgspec.field(default_factory=dict)),
            ],
            tag_field=KIND,
            tag=PURCHASE,
            frozen=True,
            omit_defaults=True,
        )
        self._label: Any = msgspec.defstruct(
            "LabelEvent",
            [
                *ids,
                *tail,
                (LABEL_VALUE, _Flag),
                (LABEL_TIME, _TimeUs),
                (REVISION, _Revision, 0),
            ],
            tag_field=KIND,
            tag=LABEL,
            frozen=True,
        )
        either: Any = self._purchase | self._label
        self._decoder = msgspec.json.Decoder(either)
        self._encoder = msgspec.json.Encoder()

    def decode(self, messages: Sequence[bytes], *, now_us: int) -> Decoded:
        """Decode messages into columns; refuse a time over a day ahead of `now_us`."""
        purchases: list[Any] = []
        labels: list[Any] = []
        purchase_at: list[int] = []
        label_at: list[int] = []
        poison: dict[int, str] = {}
        latest_us = now_us + MAX_AHEAD_US
        for position, message in enumerate(messages):
            try:
                event = self._decoder.decode(message)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
                poison[position] = _reason(exc)
                continue
            if problem := self._refused(event, latest_us=latest_us):
                poison[position] = problem
            elif type(event) is self._purchase:
                purchases.append(event)
                purchase_at.append(position)
            else:
                labels.append(event)
                label_at.append(position)
        return Decoded(
            purchases=self._purchases(purchases),
            purchase_at=purchase_at,
            labels=self._labels(labels),
            label_at=label_at,
            poison=poison,
        )

    def encode_purchases(self, purchases: Purchases) -> list[bytes]:
        """Encode purchases as messages."""
        columns = zip(
            purchases.transaction_id,
            *purchases.entity_id,
            purchases.event_time_us.tolist(),
            purchases.cents.tolist(),
            self._stored_fields(purchases),
            strict=True,
        )
        return self._encoded(self._purchase, columns)

    def encode_labels(self, labels: Labels) -> list[bytes]:
        """Encode labels as messages."""
        columns = zip(
            labels.transaction_id,
            *labels.entity_id,
            labels.event_time_us.tolist(),
            labels.label.tolist(),
            labels.label_time_us.tolist(),
            labels.revision.tolist(),
            strict=True,
        )
        return self._encoded(self._label, columns)

    def _encoded(self, kind: Any, columns: Iterable[tuple[Any, ...]]) -> list[bytes]:
        ids = 1 + len(self._keys)
        return [
            self._encoder.encode(kind(*(one.decode() for one in row[:ids]), *row[ids:]))
            for row in columns
        ]

    def _stored_fields(self, purchases: Purchases) -> list[dict[str, int]]:
        """Return the declared fields that were sent, row by row."""
        names = [name for name in self._fields if name in purchases.fields]
        columns = [purchases.fields[name].tolist() for name in names]
        if not names:
            return [{} for _ in range(len(purchases))]
        return [
            {name: one for name, one in zip(names, row, strict=True) if one != MISSING}
            for row in zip(*columns, strict=True)
        ]

    def _refused(self, event: Any, *, latest_us: int) -> str:
        """Check limits that types cannot express: of ids, times and stored numbers."""
        for name in (TRANSACTION_ID, *self._keys):
            value: str = getattr(event, name)
            if len(value) * 3 > MAX_ID_BYTES and len(value.encode()) > MAX_ID_BYTES:
                return f"{name}: is longer than {MAX_ID_BYTES} bytes"
        if event.event_time > latest_us:
            return f"{EVENT_TIME}: is over a day ahead"
        if type(event) is self._label and event.label_time > latest_us:
            return f"{LABEL_TIME}: is over a day ahead"
        if type(event) is self._purchase and event.kept:
            for name, low, high, rule in self._numbers:
                number = event.kept.get(name, MISSING)
                if number != MISSING and not low <= number <= high:
                    return f"{STORED_FIELDS}.{name}: {rule}"
        return ""

    def _purchases(self, events: Sequence[Any]) -> Purchases:
        return Purchases(
            transaction_id=[event.transaction_id.encode() for event in events],
            entity_id=self._entity_ids(events),
            event_time_us=_integers(events, EVENT_TIME),
            cents=_integers(events, CENTS),
            fields={
                name: np.fromiter(
                    (one.kept.get(name, MISSING) for one in events),
                    np.int64,
                    len(events),
                )
                for name in self._fields
            },
        )

    def _labels(self, events: Sequence[Any]) -> Labels:
        return Labels(
            transaction_id=[event.transaction_id.encode() for event in events],
            entity_id=self._entity_ids(events),
            event_time_us=_integers(events, EVENT_TIME),
            label=_integers(events, LABEL_VALUE).astype(np.int8),
            label_time_us=_integers(events, LABEL_TIME),
            revision=_integers(events, REVISION),
        )

    def _entity_ids(self, events: Sequence[Any]) -> list[list[bytes]]:
        return [
            [getattr(event, key).encode() for event in events] for key in self._keys
        ]


def _integers(events: Sequence[Any], name: str) -> Any:
    return np.fromiter((getattr(one, name) for one in events), np.int64, len(events))


def _reason(error: Exception) -> str:
    """Return the field and the rule of a refused message, without any value."""
    if isinstance(error, RecursionError):
        return "is nested too deeply"
    text = str(error)
    if text.startswith("Invalid value "):  # the only sentence that shows the value
        return "event: is neither purchase nor label"
    return " ".join(text.split())[:200]

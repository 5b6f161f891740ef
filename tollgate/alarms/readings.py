"""
Decode readings: one JSON object per message, with the inputs of a request.

A reading that cannot be decoded does not affect any other one: it is reported with the
reason and goes to the dead letters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec

from tollgate.errors import InputError
from tollgate.features.spec.feature_spec import FeatureSpec, all_fields, wire_inputs
from tollgate.schema import EVENT_TIME, MAX_ID_BYTES, TRANSACTION_ID

_INT64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
# The server checks ids by their bytes. A text that fills a request would fail it with
# the other readings in it, again and again.
_ID = Annotated[str, msgspec.Meta(max_length=MAX_ID_BYTES)]
_WORD = Annotated[str, msgspec.Meta(max_length=1_024)]
_INPUT_TYPES: Mapping[str, Any] = {"BYTES": _ID, "FP64": float, "INT64": _INT64}
_FIELD_TYPES: Mapping[str, Any] = {"BYTES": _WORD, "FP64": float}
_REASON_CHARACTERS = 200


class Readings(msgspec.Struct, frozen=True):
    """
    Hold the readings of a batch of messages.

    Attributes:
        columns: Input -> its value in each reading; None where a reading has no value
            of a declared field.
        at: Index of the message of each reading.
        machines: Id of the entity of each reading whose outcome is followed; empty for
            a product without entities.
        unreadable: Message -> its error.
    """

    columns: dict[str, list[Any]]
    at: list[int]
    machines: list[str]
    unreadable: dict[int, str]

    def __len__(self) -> int:
        """Return the number of readings."""
        return len(self.at)


class ReadingCodec:
    """
    Decode the readings of one product.

    A reading is `{"transaction_id", <entity keys>, "amount", "event_time", <declared
    fields>}`, as a request has them: the id of the reading, ids of its entities, the
    amount where the product has one, µs since the epoch in UTC, and numbers or words.
    Declared fields may be missing or null. Keys may be aliases of features.yaml; others
    are ignored.

    Args:
        machine: Entity whose readings stay in order and whose outcome is followed; the
            first one of features.yaml if empty.

    Raises:
        InputError: The product has no such entity.
    """

    def __init__(self, spec: FeatureSpec, *, machine: str = "") -> None:
        self.inputs = wire_inputs(spec)
        self.fields = all_fields(spec)
        self.keys = tuple(entity.key for entity in spec.entities)
        by_name = {entity.name: entity.key for entity in spec.entities}
        if machine and machine not in by_name:
            known = ", ".join(by_name) or "none"
            problem = f"{machine!r:.80} is no entity of {spec.product}; it has {known}"
            raise InputError("entity", problem)
        self.machine_key = by_name[machine] if machine else (*self.keys, "")[0]
        self._names = (*self.inputs, *self.fields)
        wanted: list[Any] = [
            (name, _INPUT_TYPES[kind]) for name, kind in self.inputs.items()
        ]
        optional: list[Any] = [
            (name, _FIELD_TYPES[kind] | None, None)
            for name, kind in self.fields.items()
        ]
        reading: Any = msgspec.defstruct(
            "Reading", [*wanted, *optional], frozen=True, gc=False
        )
        self._reading: Any = reading
        self._decoder: Any = msgspec.json.Decoder(reading)
        self._alias_of = {
            alias: name for name, aliases in spec.aliases.items() for alias in aliases
        }
        self._alias_bytes = [f'"{alias}"'.encode() for alias in self._alias_of]

    def decode(self, messages: Sequence[bytes]) -> Readings:
        """Decode messages into columns."""
        readings: list[Any] = []
        at: list[int] = []
        unreadable: dict[int, str] = {}
        for position, message in enumerate(messages):
            try:
                readings.append(self._decode(message))
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
                unreadable[position] = _reason(exc)
            else:
                at.append(position)
        key = self.machine_key
        return Readings(
            columns={
                name: [getattr(one, name) for one in readings] for name in self._names
            },
            at=at,
            machines=[getattr(one, key) if key else "" for one in readings],
            unreadable=unreadable,
        )

    def _decode(self, message: bytes) -> Any:
        """Decode one message; one without aliases is decoded in a single pass."""
        if not any(alias in message for alias in self._alias_bytes):
            return self._decoder.decode(message)
        values = msgspec.json.decode(message, type=dict[str, Any])
        renamed = {self._alias_of.get(key, key): one for key, one in values.items()}
        return msgspec.convert(renamed | values, self._reading)

    def reading_id(self, readings: Readings, row: int) -> str:
        """Return the id of a reading."""
        return str(readings.columns[TRANSACTION_ID][row])

    def event_time_us(self, readings: Readings, row: int) -> int:
        """Return the time of a reading, µs since the epoch."""
        return int(readings.columns[EVENT_TIME][row])

    def entities(self, readings: Readings, row: int) -> dict[str, str]:
        """Return the ids of a reading's entities, by their keys."""
        return {key: readings.columns[key][row] for key in self.keys}


def _reason(error: Exception) -> str:
    """Return the field and the rule of a refused message, without any value."""
    if isinstance(error, RecursionError):
        return "is nested too deeply"
    return " ".join(str(error).split())[:_REASON_CHARACTERS]

"""Decode Universal Binary JSON strictly: no duplicate field, no data after the end."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

# Marker -> big-endian number, from https://ubjson.org/type-reference/.
_NUMBERS = {
    ord(marker): struct.Struct(f">{code}")
    for marker, code in zip("iUIlLdD", "bBhiqfd", strict=True)
}
_WHOLE = frozenset(b"iUIlL")
_CONSTANTS = {ord("Z"): None, ord("T"): True, ord("F"): False}
_DEEPEST = 32


def decode_ubjson(data: bytes) -> Any:
    """
    Decode UBJSON bytes; typed arrays of numbers become NumPy arrays.

    Raises:
        ValueError: They are no UBJSON, or truncated; the error names the byte.
    """
    reader = _Reader(data)
    try:
        found = reader.value(reader.byte(), depth=0)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise ValueError(f"UBJSON is cut off or damaged at byte {reader.at}") from error
    if reader.at != len(data):
        raise ValueError(f"UBJSON ends at byte {reader.at} of {len(data)}")
    return found


class _Reader:
    """A position in the bytes."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def byte(self) -> int:
        found = self.data[self.at]
        self.at += 1
        return found

    def value(self, marker: int, *, depth: int) -> Any:
        if depth > _DEEPEST:
            raise ValueError(f"UBJSON is nested over {_DEEPEST} deep")
        if marker in _NUMBERS:
            return self._number(marker)
        if marker in _CONSTANTS:
            return _CONSTANTS[marker]
        if marker == ord("S"):
            return self._text()
        if marker == ord("["):
            return self._array(depth=depth)
        if marker == ord("{"):
            return self._object(depth=depth)
        raise ValueError(f"UBJSON has the type {marker:#04x} at byte {self.at - 1}")

    def _number(self, marker: int) -> Any:
        layout = _NUMBERS[marker]
        (found,) = layout.unpack_from(self.data, self.at)
        self.at += layout.size
        return found

    def _length(self) -> int:
        marker = self.byte()
        found = self._number(marker) if marker in _WHOLE else -1
        if not 0 <= found <= len(self.data):
            raise ValueError(f"UBJSON has no length at byte {self.at}")
        return int(found)

    def _text(self) -> str:
        size = self._length()
        part = self.data[self.at : self.at + size]
        if len(part) != size:
            raise IndexError
        self.at += size
        return part.decode()

    def _count(self) -> tuple[int, int]:
        """Read the optional type and count after a bracket; -1 if there is neither."""
        kind = count = -1
        if self.data[self.at] == ord("$"):
            self.at += 1
            kind = self.byte()
            if self.data[self.at] != ord("#"):
                raise ValueError(f"UBJSON has a type without a count at {self.at}")
        if self.data[self.at] == ord("#"):
            self.at += 1
            count = self._length()
        return kind, count

    def _array(self, *, depth: int) -> Any:
        kind, count = self._count()
        if kind in _NUMBERS:
            layout = np.dtype(_NUMBERS[kind].format)
            found = np.frombuffer(self.data, layout, count, self.at)
            self.at += count * layout.itemsize
            return found.astype(layout.newbyteorder("="))
        values: list[Any] = []
        while count != len(values):
            marker = self.byte() if kind < 0 else kind
            if count < 0 and marker == ord("]"):
                break
            values.append(self.value(marker, depth=depth + 1))
        return values

    def _object(self, *, depth: int) -> dict[str, Any]:
        kind, count = self._count()
        found: dict[str, Any] = {}
        while count != len(found):
            if count < 0 and self.data[self.at] == ord("}"):
                self.at += 1
                break
            name = self._text()
            if name in found:
                raise ValueError(f"the field {name!r} stands twice in one object")
            marker = self.byte() if kind < 0 else kind
            found[name] = self.value(marker, depth=depth + 1)
        return found

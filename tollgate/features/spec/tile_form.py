"""
Plan the tiles of an entity with a hop: their widths, their fields, their size.

Definition: docs/adr/0020-head-and-tiles.md. Bytes: docs/contract.md, entity values.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import msgspec
import numpy as np

_S, _M, _H = 10**6, 60 * 10**6, 3600 * 10**6
# Each is a multiple of the one before it.
HOPS_US = {
    "1s": _S,
    "10s": 10 * _S,
    "1m": _M,
    "5m": 5 * _M,
    "15m": 15 * _M,
    "1h": _H,
    "6h": 6 * _H,
    "1d": 24 * _H,
}
AUTO = "auto"
_SHARE = 24  # a window is rounded by at most this part of it, or by the hop

# The head gets what tiles leave of the first; no value may exceed the second.
AIM_BYTES, MAX_VALUE_BYTES = 4096, 16_384
MAX_LABELS = 4  # labels of folded purchases that a value holds one by one
MOST_HEAD, LEAST_HEAD = 64, 8

# Fixed part of a value: the header, and what follows it before the newest values.
PREFIX_BYTES = 160
NEWEST_BYTES = 16  # newest folded value of the amount, and of each column
LABEL_BYTES = 32
COUNT_AT = 4  # byte of a tile's count, after its index
_RECORD_BYTES = 8

# A sketch of different values; tollgate/features/windows/distinct_values.py defines it.
REGISTERS = 128
SKETCH_BYTES = REGISTERS // 2  # two registers in a byte, the lower first


class FieldKind(enum.IntEnum):
    """Number that a tile holds of one source; apply.lua knows them by value."""

    FLAGGED = 1  # u32
    KNOWN = 2  # u32
    SUM = 3  # i64
    MIN = 4  # i64
    MAX = 5  # i64
    SQUARES = 6  # i128
    TIMES = 7  # i128, µs
    TIME_SQUARES = 8  # i128, µs²
    TIME_PRODUCTS = 9  # i128: times, in µs, multiplied by the values
    SKETCH = 10  # 128 registers of 4 bits, of the different values

    @property
    def size_bytes(self) -> int:
        """Return the size of the number."""
        if self <= FieldKind.KNOWN:
            return 4
        if self == FieldKind.SKETCH:
            return SKETCH_BYTES
        return 8 if self < FieldKind.SQUARES else 16


# Numbers of a tile that each aggregate needs. One that is not named needs every event.
AGGREGATE_FIELDS: Mapping[str, tuple[FieldKind, ...]] = MappingProxyType(
    {
        "count": (),
        "sum": (FieldKind.SUM, FieldKind.KNOWN),
        "mean": (FieldKind.SUM, FieldKind.KNOWN),
        "min": (FieldKind.MIN,),
        "max": (FieldKind.MAX,),
        "flagged": (FieldKind.FLAGGED,),
        "share": (FieldKind.FLAGGED,),
        "std": (FieldKind.SQUARES, FieldKind.SUM, FieldKind.KNOWN),
        "slope": (
            FieldKind.TIMES,
            FieldKind.TIME_SQUARES,
            FieldKind.TIME_PRODUCTS,
            FieldKind.SUM,
            FieldKind.KNOWN,
        ),
        "approx_distinct": (FieldKind.SKETCH,),
        "last": (),
        "change": (),
        "time_since_last": (),
    }
)
# These read the newest events alone, which are in the head unless there is a delay.
NEWEST_EVENTS = ("last", "change", "time_since_last")


class TileField(msgspec.Struct, frozen=True):
    """
    One number of a tile.

    `column` is the position of its source among the columns of the entity; -1 for the
    amount. `offset` is its first byte in the record of a tile.
    """

    kind: FieldKind
    column: int
    offset: int


class TileForm(msgspec.Struct, frozen=True):
    """
    The tiles of one entity.

    Attributes:
        edge_us: Width to which the new edge of a window is rounded; 1 without a delay.
        window_us: Width to which the old edge of each window is rounded.
        levels: Widths of tiles, the finest first, each with the age at which its tiles
            are merged to the next width; µs.
        fields: Numbers of a tile after its index and its count.
        record_bytes: Size of a tile.
        labels: Labels of folded purchases that a value holds; 0 without FLAGGED.
        most_tiles: Upper bound of the number of tiles.
        reads_back: True if features read more than the newest value: then rows are
            read from the head as it is before purchases are folded.
    """

    edge_us: int
    window_us: tuple[int, ...]
    levels: tuple[tuple[int, int], ...]
    fields: tuple[TileField, ...]
    record_bytes: int
    labels: int
    most_tiles: int
    reads_back: bool = False

    @property
    def width_us(self) -> int:
        """Return the width of the finest tiles, the unit of their indices."""
        return self.levels[0][0]

    def value_bytes(self, cap: int, columns: int) -> int:
        """Bound the size of a stored value with `cap` events of so many columns."""
        tiles = self.most_tiles * self.record_bytes
        return (
            PREFIX_BYTES
            + NEWEST_BYTES * (1 + columns)
            + tiles
            + -tiles % 8
            + self.labels * LABEL_BYTES
            + cap * (48 + 8 * columns)
        )

    def pack(self) -> bytes:
        """
        Pack the form for apply.lua: five u32, the levels, the fields; u32 1 if it reads
        back.
        """
        sizes = (self.record_bytes, self.labels, self.most_tiles)
        counts = (len(self.levels), len(self.fields), *sizes)
        fields = [(int(one.kind), one.column) for one in self.fields]
        return (
            np.array(counts, "<u4").tobytes()
            + np.array(self.levels, "<i8").tobytes()
            + np.array(fields, "<i4").tobytes()
            + np.ones(int(self.reads_back), "<u4").tobytes()
        )


class HopFit(msgspec.Struct, frozen=True):
    """
    The hop that an entity with `hop: 0` would take.

    Attributes:
        hop: The smallest hop whose values are small enough; empty if there is none.
        without_cap: True if the file's cap leaves no room for tiles.
        obstacle: Reason why there is no hop.
    """

    hop: str = ""
    without_cap: bool = False
    obstacle: str = ""

    @property
    def remedy(self) -> str:
        """Say how to take the hop; empty if there is none."""
        cap = " without a cap" if self.without_cap else ""
        return f"set hop: {self.hop}{cap}" if self.hop else ""


def hop_us(hop: int | str) -> int | None:
    """Convert a hop to microseconds; 0 for exact windows, None for an invalid one."""
    return 0 if hop in (0, "0", "0s", AUTO) else HOPS_US.get(str(hop))


def rounding_us(window_us: int, hop_us: int) -> int:
    """Return the width to which the old edge of a window is rounded."""
    fitting = [width for width in HOPS_US.values() if width * _SHARE <= window_us]
    return max([hop_us, *fitting])


def tile_form(
    *,
    hop_us: int,
    delay_us: int,
    lateness_us: int,
    windows_us: Sequence[int],
    needs: Sequence[tuple[FieldKind, int]],
    reads_back: bool = False,
) -> TileForm:
    """
    Plan the tiles of an entity.

    Args:
        hop_us: The smallest rounding; one of HOPS_US.
        delay_us: Time from the end of its windows to the row.
        lateness_us: Longest time that an event may be behind the newest.
        windows_us: Widths of its windows, ascending.
        needs: Numbers that its features need, each with its source: a column, or -1.
        reads_back: True if its features read more than the newest value.
    """
    rounded = tuple(rounding_us(one, hop_us) for one in windows_us)
    reach: dict[int, int] = {hop_us: delay_us + lateness_us} if delay_us else {}
    for window, width in zip(windows_us, rounded, strict=True):
        reach[width] = delay_us + lateness_us + window
    levels = tuple(sorted(reach.items()))
    # Near this number, apply.lua merges tiles once for every 4 that were added.
    kept_us, most = 0, 4
    for (width, until), (coarser, _) in zip(
        levels, (*levels[1:], levels[-1]), strict=True
    ):
        # The newest tile is being filled, and the oldest may be cut.
        most += -(-(until - kept_us + coarser) // width) + 2
        kept_us = until
    fields, offset = [], _RECORD_BYTES
    for kind, column in sorted(set(needs), key=lambda one: (one[0] > 2, one)):
        fields.append(TileField(kind=kind, column=column, offset=offset))
        offset += kind.size_bytes
    flagged = any(kind == FieldKind.FLAGGED for kind, _ in needs)
    return TileForm(
        edge_us=hop_us if delay_us else 1,
        window_us=rounded,
        levels=levels,
        fields=tuple(fields),
        record_bytes=offset,
        labels=MAX_LABELS if flagged else 0,
        most_tiles=most,
        reads_back=reads_back,
    )


def least_cap(nth: int) -> int:
    """
    Return the least cap of a head that always holds the n-th newest event.

    When a head is full, events are folded until cap - 8 are left, or half of cap if
    that is more.
    """
    return max(LEAST_HEAD, min(2 * nth - 1, nth + 8))


def head_size(form: TileForm, columns: int) -> int:
    """Return how many events of so many columns a value holds one by one."""
    fitting = most_events(form, columns, most_bytes=AIM_BYTES)
    return max(LEAST_HEAD, min(MOST_HEAD, fitting))


def most_events(form: TileForm, columns: int, *, most_bytes: int) -> int:
    """Return how many events fit next to the tiles into so many bytes."""
    return (most_bytes - form.value_bytes(0, columns)) // (48 + 8 * columns)

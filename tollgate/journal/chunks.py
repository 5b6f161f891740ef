"""Pack what the decision step handed over into chunks."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import msgspec

from tollgate.journal.record import Records, encode_chunk
from tollgate.journal.rows import Heading, Rows, to_records
from tollgate.store.connection import Command

CHUNK_ROWS = 512
_MOST_FLOATS = 128 << 10  # of a chunk, 512 KB: a frame of a segment holds 1 MB

# Makes commands to send beside records, of them and the clock in µs.
Beside = Callable[[Records, int], Sequence[Command]]
Numbered = tuple[int, Rows]  # number of the first row, and the rows


class Chunk(msgspec.Struct, frozen=True, eq=False):
    """
    A chunk that is to be written.

    Attributes:
        first: Number of its first record.
        rows: How many it holds.
        decided_us: When the oldest was decided.
        raw: The chunk.
        beside: Commands to send with it.
    """

    first: int
    rows: int
    decided_us: int
    raw: bytes
    beside: Sequence[Command]


def runs(taken: Sequence[Numbered]) -> list[list[Numbered]]:
    """Cut batches into runs for a chunk each; a gap in the numbers ends one."""
    found: list[list[Numbered]] = []
    begin = end = 0
    for first, rows in taken:
        width = rows.features.shape[1] + rows.probabilities.shape[1]
        most = min(CHUNK_ROWS, _MOST_FLOATS // width)
        if not found or first != end or first + len(rows) - begin > most:
            found.append([])
            begin = first
        found[-1].append((first, rows))
        end = first + len(rows)
    return found


def pack(
    run: Sequence[Numbered], heading: Heading, *, writer: str, beside: Beside
) -> Chunk:
    """Pack one run."""
    batches = [rows for _, rows in run]
    records = to_records(batches, heading, writer=writer, first_sequence=run[0][0])
    return Chunk(
        first=run[0][0],
        rows=len(records),
        decided_us=batches[0].decided_us,
        raw=encode_chunk(records),
        beside=beside(records, time.time_ns() // 1000),
    )

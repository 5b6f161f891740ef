"""Pack rows from the decision step into chunks for the stream."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import msgspec

from tollgate.journal.decision_record import Records, encode_chunk
from tollgate.journal.journal_rows import Heading, Rows, to_records
from tollgate.store.redis.redis_store import Command

CHUNK_ROWS = 512
_MOST_FLOATS = 128 << 10  # per chunk: 512 KB; a segment's frame holds 1 MB

# Builds the commands to send with records, from the records and the clock in µs.
CommandBuilder = Callable[[Records, int], Sequence[Command]]
Numbered = tuple[int, Rows]  # sequence number of the first row, rows


class Chunk(msgspec.Struct, frozen=True, eq=False):
    """
    A chunk to be written.

    Attributes:
        first: Sequence number of its first record.
        rows: Number of records.
        decided_us: Time of its oldest decision, µs since the epoch.
        raw: Encoded chunk.
        extra_commands: Commands to send with it.
    """

    first: int
    rows: int
    decided_us: int
    raw: bytes
    extra_commands: Sequence[Command]


def runs(taken: Sequence[Numbered]) -> list[list[Numbered]]:
    """Split batches into runs of one chunk each; a gap in the numbers ends a run."""
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
    run: Sequence[Numbered],
    heading: Heading,
    *,
    writer: str,
    extra_commands: CommandBuilder,
) -> Chunk:
    """Pack one run into a chunk."""
    batches = [rows for _, rows in run]
    records = to_records(batches, heading, writer=writer, first_sequence=run[0][0])
    return Chunk(
        first=run[0][0],
        rows=len(records),
        decided_us=batches[0].decided_us,
        raw=encode_chunk(records),
        extra_commands=extra_commands(records, time.time_ns() // 1000),
    )

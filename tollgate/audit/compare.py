"""Find records of a table that were changed, removed, added or moved after sealing."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

import polars as pl

from tollgate.audit.links import Link
from tollgate.audit.rows import SEQUENCE, WRITER

MOST_NAMED = 20  # per kind of change; the rest are counted

_Key = tuple[str, int]


class RecordKeys:
    """
    Identities of a link's records: writer and sequence number in a segment, row number
    in other tables.
    """

    def __init__(self, link: Link) -> None:
        self._by_number = link.kind == "segment"
        self._rows = link.rows
        self._writers = link.writers

    def sealed(self) -> list[_Key]:
        """List the identities of the records as sealed, in order."""
        if not self._by_number:
            return [("", row) for row in range(self._rows)]
        return [
            (one.writer, number)
            for one in self._writers
            for number in range(one.first, one.last + 1)
        ]

    def found(self, table: pl.DataFrame) -> list[_Key]:
        """List the identities of the records in a file's table, in order."""
        if not self._by_number:
            return [("", row) for row in range(len(table))]
        return list(
            zip(table[WRITER].to_list(), table[SEQUENCE].to_list(), strict=True)
        )

    def named(self, key: _Key) -> str:
        """Return the name of a record for messages."""
        writer, number = key
        return f"record {number} of writer {writer}" if writer else f"row {number}"


def compare_rows(
    table: pl.DataFrame,
    found: Sequence[bytes],
    sealed: Sequence[bytes],
    *,
    keys: RecordKeys,
) -> Iterator[tuple[str, str]]:
    """
    Find the records that were changed, removed, added or moved.

    Args:
        table: Table read from the file.
        found: Digests of its rows.
        sealed: Digests of the rows as they were sealed.
        keys: Identities of the link's records.

    Yields:
        Name of a record, and its change; above MOST_NAMED of one kind, a count of the
            rest.
    """
    if list(found) == list(sealed):
        return
    counts = dict.fromkeys(("was changed", "was removed", "was added", "was moved"), 0)
    for key, problem in _differences(
        keys.found(table), found, sealed_keys=keys.sealed(), sealed=sealed
    ):
        kind = " ".join(problem.split()[:2]).rstrip(":")
        counts[kind] += 1
        if counts[kind] <= MOST_NAMED:
            yield keys.named(key), problem
    for kind, number in counts.items():
        if number > MOST_NAMED:
            yield f"{number - MOST_NAMED} more", kind.replace("was", "were")


def _differences(
    found_keys: Sequence[_Key],
    found: Sequence[bytes],
    *,
    sealed_keys: Sequence[_Key],
    sealed: Sequence[bytes],
) -> Iterator[tuple[_Key, str]]:
    left = Counter(sealed)
    extra: dict[_Key, list[int]] = defaultdict(list)
    for row, (key, digest) in enumerate(zip(found_keys, found, strict=True)):
        if left[digest]:
            left[digest] -= 1
        else:
            extra[key].append(row)
    exact = not extra and not +left
    for key, digest in zip(sealed_keys, sealed, strict=False):
        if not left[digest]:
            continue
        left[digest] -= 1
        if extra.get(key):
            extra[key].pop()
            yield key, "was changed"
        else:
            yield key, "was removed"
    copies = Counter(found_keys)
    for key, rows in extra.items():
        for row in rows:
            again = ": it is there twice" if copies[key] > 1 else ""
            yield key, f"was added: row {row} of the file{again}"
    if exact:
        yield from _moves(found_keys, found, sealed)


def _moves(
    found_keys: Sequence[_Key], found: Sequence[bytes], sealed: Sequence[bytes]
) -> Iterator[tuple[_Key, str]]:
    place = {digest: row for row, digest in enumerate(sealed)}
    for row, digest in enumerate(found):
        if place[digest] != row:
            yield found_keys[row], f"was moved: from row {place[digest]} to row {row}"

"""Seal decisions: each once, pseudonymised, in a segment of the chain."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl

from tollgate.audit.chain.chain import Chain
from tollgate.audit.chain.links import Link, LinkContent, Numbers, WriterEnd
from tollgate.audit.releases.archive import ReleaseArchive
from tollgate.audit.releases.record_rows import SEQUENCE, WRITER, keys_of, table_of
from tollgate.audit.worker.pseudonyms import Subjects
from tollgate.audit.worker.sequence_ranges import SequenceNumbers, Span, count, spans_of
from tollgate.errors import JournalError
from tollgate.journal.decision_record import Records


class Sealer:
    """Seal records into one chain; `doubled` counts those sealed before, left out."""

    def __init__(
        self, chain: Chain, *, subjects: Subjects, releases: ReleaseArchive
    ) -> None:
        self._chain = chain
        self._subjects = subjects
        self._releases = releases
        self._seen = sequence_numbers_in(chain.links)
        self.doubled = 0

    def seal(
        self, batch: Sequence[Records], *, ends: Sequence[WriterEnd] = ()
    ) -> list[Link]:
        """
        Seal the new records of a batch; they are on disk when this returns.

        Records with different columns go into separate segments. The ends of writers go
        into a link after the segments.

        Raises:
            JournalError: Something cannot be written. Some segments may be sealed; it
                is safe to seal the whole batch again.
        """
        for link in self._chain.refresh():
            _note(self._seen, link)
        for records in batch:
            self._releases.archive(records)
        in_batch = SequenceNumbers()
        groups: dict[Any, list[Records]] = {}
        for records in batch:
            fresh = self._fresh(records, in_batch)
            self.doubled += len(records) - sum(map(len, fresh))
            for one in fresh:
                groups.setdefault(_layout(one), []).append(one)
        try:
            links = [self._seal_group(group) for group in groups.values()]
            return links + self._seal_ends(ends)
        except JournalError:
            self._seen = sequence_numbers_in(self._chain.links)
            raise

    def _seal_ends(self, ends: Sequence[WriterEnd]) -> list[Link]:
        """Seal the ends that go beyond those in the chain."""
        known = ends_in(self._chain.links)
        new = {
            one.writer: one for one in ends if one.sequence > known.get(one.writer, -1)
        }
        if not new:
            return []
        lost = [
            Numbers(writer=writer, first=first, last=last)
            for writer, one in new.items()
            for first, last in self._seen.gaps(writer, below=one.sequence)
        ]
        content = LinkContent(kind="ends", ends=list(new.values()), gaps=lost)
        return [self._chain.add(content)]

    def _fresh(self, records: Records, in_batch: SequenceNumbers) -> list[Records]:
        """Leave out records that are sealed already or came earlier in the batch."""
        writer, first = records.writer, records.first_sequence
        last = first + len(records) - 1
        new = [
            span
            for low, high in self._seen.new(writer, first, last=last)
            for span in in_batch.add(writer, low, last=high)
        ]
        if count(new) == len(records):
            return [records]
        return [
            slice_records(records, slice(low - first, high + 1 - first))
            for low, high in new
        ]

    def _seal_group(self, group: list[Records]) -> Link:
        """Seal records that have the same columns."""
        consents = [self._releases.consent(records) for records in group]
        keys = keys_of(list(zip(group, consents, strict=True)), subjects=self._subjects)
        tables = [
            table_of(
                records,
                feature_names=self._releases.feature_names(records),
                consent=consent,
                keys=keys,
                outcomes=self._releases.outcomes(records.release),
            )
            for records, consent in zip(group, consents, strict=True)
        ]
        table = pl.concat(tables).sort(WRITER, SEQUENCE)
        writers = numbers_of(table)
        return self._chain.add(
            LinkContent(
                kind="segment",
                table=table,
                writers=writers,
                gaps=self._skipped(writers),
                until_us=max(int(one.decided_us.max()) for one in group),
                facts=_facts(table),
            )
        )

    def _skipped(self, writers: Sequence[Numbers]) -> list[Numbers]:
        """List the numbers before a segment's that are missing for the first time."""
        before = {one.writer: self._seen.gaps(one.writer) for one in writers}
        for one in writers:
            self._seen.add(one.writer, one.first, last=one.last)
        return [
            Numbers(writer=writer, first=first, last=last)
            for writer, known in before.items()
            for first, last in self._seen.gaps(writer)
            if not _inside((first, last), known)
        ]


def sequence_numbers_in(links: Sequence[Link]) -> SequenceNumbers:
    """Return the records that a chain holds or held, as sequence numbers."""
    seen = SequenceNumbers()
    for link in links:
        _note(seen, link)
    return seen


def _note(seen: SequenceNumbers, link: Link) -> None:
    for one in link.writers:
        seen.add(one.writer, one.first, last=one.last)


def missing_in(links: Sequence[Link]) -> dict[str, int]:
    """Count by writer the records that were numbered and never arrived."""
    seen = sequence_numbers_in(links)
    ends = ends_in(links)
    counts = {
        writer: count(seen.gaps(writer, below=ends.get(writer, 0)))
        for writer in {*seen.writers(), *ends}
    }
    return {writer: number for writer, number in sorted(counts.items()) if number}


def ends_in(links: Sequence[Link]) -> dict[str, int]:
    """Return by stopped writer how many numbers it gave out."""
    ends: dict[str, int] = {}
    for link in links:
        for one in link.ends:
            ends[one.writer] = max(one.sequence, ends.get(one.writer, 0))
    return ends


def numbers_of(table: pl.DataFrame) -> list[Numbers]:
    """List the writers and number ranges of a sorted table, in its order."""
    return [
        Numbers(writer=writer, first=first, last=last)
        for (writer,), own in table.group_by(WRITER, maintain_order=True)
        for first, last in spans_of(own[SEQUENCE].to_list())
    ]


def slice_records(records: Records, rows: slice) -> Records:
    """Return a contiguous slice of records."""
    picked: dict[str, Any] = {}
    for name in records.__struct_fields__:
        value = getattr(records, name)
        if name == "entity_id":
            value = [column[rows] for column in value]
        elif name == "fields":
            value = {field: column[rows] for field, column in value.items()}
        elif name == "first_sequence":
            value += rows.start
        elif isinstance(value, (list, np.ndarray)):
            value = value[rows]
        picked[name] = value
    return Records(**picked)


def _layout(records: Records) -> Any:
    return (
        records.spec_hash,
        records.entities,
        tuple(records.fields),
        records.features.shape[1],
        records.probabilities.shape[1],
        bool(records.details),
    )


def _inside(span: Span, known: Sequence[Span]) -> bool:
    return any(low <= span[0] and span[1] <= high for low, high in known)


def _facts(table: pl.DataFrame) -> dict[str, str]:
    """Summarise a segment, for readers of its link."""
    decisions = table["decision"].value_counts().sort("decision").rows()
    return {
        "first_decided": str(table["decided_at"].min()),
        "last_decided": str(table["decided_at"].max()),
        "releases": ", ".join(table["release"].unique().sort().to_list()),
        "decisions": ", ".join(f"{name} {number}" for name, number in decisions),
        "without_consent": str(int((~table["consent"]).sum())),
    }

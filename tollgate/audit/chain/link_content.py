"""Hold the content of a link before the link is created."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import polars as pl

from tollgate.audit.chain.clock import now_us, utc_text
from tollgate.audit.chain.digests import columns_of
from tollgate.audit.chain.links import File, Kind, Link, Numbers, WriterEnd
from tollgate.audit.chain.merkle import root


class LinkContent(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """
    Content of a link that is to be added.

    Attributes:
        kind: Kind of the link.
        table: Records of the link; None for a link without a table.
        files: Content of other files, by the part of their name after the link number.
        writers, gaps, ends, until_us, covers, facts: Same as in `Link`.
    """

    kind: Kind
    table: pl.DataFrame | None = None
    files: Mapping[str, bytes] = {}
    writers: Sequence[Numbers] = ()
    gaps: Sequence[Numbers] = ()
    ends: Sequence[WriterEnd] = ()
    until_us: int = 0
    covers: Sequence[int] = ()
    facts: Mapping[str, str] = {}

    def link(
        self,
        number: int,
        *,
        chain: str,
        product: str,
        previous: str,
        files: Sequence[File],
        leaves: Sequence[bytes],
    ) -> Link:
        """Return the link of this content, sealed at the current time."""
        table = self.table
        return Link(
            chain=chain,
            product=product,
            number=number,
            kind=self.kind,
            previous=previous,
            sealed=utc_text(now_us()),
            files=tuple(files),
            rows=0 if table is None else len(table),
            root="" if table is None else root(leaves).hex(),
            columns=() if table is None else columns_of(table),
            writers=tuple(self.writers),
            gaps=tuple(self.gaps),
            ends=tuple(self.ends),
            until_us=self.until_us,
            covers=tuple(self.covers),
            facts=dict(self.facts),
        )

"""
Seal the reasons of decisions: the features that raised the score.

The mildest decision, an approval for example, needs no reasons.

The contributions are exact. They are computed from the explain.npz of the release's
model after a segment is sealed, because that is too slow for the request path. The
reasons are stored next to the segment, in a separate link of the chain.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from tollgate.audit.chain.chain import Chain
from tollgate.audit.chain.links import Link, LinkContent
from tollgate.audit.releases.archive import ReleaseArchive
from tollgate.audit.releases.journal_replay import facts_of
from tollgate.audit.releases.past_release import open_release
from tollgate.audit.releases.record_rows import (
    SEQUENCE,
    WRITER,
    levels_of,
    read_table,
)
from tollgate.audit.review.reason_text import ReleaseExplainer
from tollgate.errors import TollgateError
from tollgate.repository.releases.release_file import spec_hash_text
from tollgate.schema import REASON_SEPARATOR, Decision

NOT_EXPLAINED = "not_explained"  # key in a link's facts

F64 = npt.NDArray[np.float64]

_SCHEMA: dict[str, pl.DataType] = {
    WRITER: pl.String(),
    SEQUENCE: pl.Int64(),
    "place": pl.UInt8(),
    "code": pl.String(),
    "text": pl.String(),
    "feature": pl.String(),
    "contribution": pl.Float32(),
}


class ReasonSealer:
    """Find and seal reasons of decisions, with a model repository for missing files."""

    def __init__(
        self, chain: Chain, releases: ReleaseArchive, *, repository: Path | None
    ) -> None:
        self._chain = chain
        self._releases = releases
        self._repository = repository
        self._explainers: dict[str, ReleaseExplainer | str] = {}

    def seal_new(self) -> list[Link]:
        """
        Seal the reasons of segments that have none; return one new link for each.

        Raises:
            JournalError: A segment cannot be read, or a link cannot be written.
        """
        done = {number for one in self._chain.alive("reasons") for number in one.covers}
        return [
            self._find(link)
            for link in self._chain.alive("segment")
            if link.number not in done
        ]

    def explainer(self, release: str) -> ReleaseExplainer | str:
        """Open a release to explain its decisions, or return why it cannot."""
        if release not in self._explainers:
            try:
                opened = open_release(
                    release,
                    archived=self._releases.get(release),
                    repository=self._repository,
                    product=self._chain.links[0].product,
                )
                self._explainers[release] = ReleaseExplainer(opened)
            except TollgateError as exc:
                self._explainers[release] = str(exc)
        return self._explainers[release]

    def _find(self, link: Link) -> Link:
        table = read_table(self._chain.folder, link)
        parts, problems = [], {}
        consented = table.filter(pl.col("consent"))
        for (name,), rows in consented.group_by("release", maintain_order=True):
            outcomes = self._releases.outcomes(str(name))
            own = rows.filter(levels_of(rows["decision"], outcomes) > Decision.APPROVE)
            if own.is_empty():
                continue
            explainer = self.explainer(str(name))
            if isinstance(explainer, str):
                problems[str(name)] = explainer
                continue
            found, strange = _reasons(own, explainer)
            parts.append(found)
            if strange:
                problems[str(name)] = f"{strange} decisions are not its model's"
        reasons = pl.concat(parts).sort(WRITER, SEQUENCE, "place") if parts else None
        if reasons is not None and reasons.is_empty():
            reasons = None
        facts = {
            "decisions": str(0 if reasons is None else reasons["place"].eq(1).sum())
        }
        if problems:
            words = (f"{name}: {text}" for name, text in sorted(problems.items()))
            facts[NOT_EXPLAINED] = "; ".join(words)
        return self._chain.add(
            LinkContent(
                kind="reasons",
                table=reasons,
                covers=[link.number],
                until_us=link.until_us,
                facts=facts,
            )
        )


def _reasons(
    own: pl.DataFrame, explainer: ReleaseExplainer
) -> tuple[pl.DataFrame, int]:
    """Return the reasons of rows, and the number of rows not explained exactly."""
    rows = own.filter(pl.col("spec") == spec_hash_text(explainer.spec.spec_hash))
    lines: list[tuple[object, ...]] = []
    if len(rows):
        try:
            facts = facts_of(rows, explainer.spec)
        except KeyError:  # columns do not fit the spec
            return pl.DataFrame(schema=_SCHEMA), len(own)
        exact, amounts = explainer.explain(facts)
        rows = rows.filter(pl.Series(exact))
        lines = list(_lines(rows, amounts[exact], explainer))
    table = pl.DataFrame(lines, schema=_SCHEMA, orient="row")
    return table, len(own) - len(rows)


def _lines(
    rows: pl.DataFrame, amounts: F64, explainer: ReleaseExplainer
) -> Iterator[tuple[object, ...]]:
    columns = (rows[name].to_list() for name in (WRITER, SEQUENCE, "reason_codes"))
    for writer, sequence, codes, own in zip(*columns, amounts, strict=True):
        answer = [one for one in codes.split(REASON_SEPARATOR) if one]
        for place, one in enumerate(explainer.reasons(answer, own), start=1):
            amount = one.contribution if one.feature else None
            yield writer, sequence, place, one.code, one.text, one.feature, amount


class SealedReason(msgspec.Struct, frozen=True):
    """A sealed reason; the contribution is None for a reason code of the answer."""

    code: str
    text: str
    feature: str
    contribution: float | None


def sealed_reasons(
    folder: Path, links: Sequence[Link], link: Link, *, writer: str, sequence: int
) -> tuple[list[SealedReason], str]:
    """
    Read the sealed reasons of one record.

    Returns:
        The reasons, principal reason first. If there are none, also the cause; it is
            empty if the segment was not examined yet.

    Raises:
        JournalError: A table cannot be read.
    """
    for one in links:
        if one.kind != "reasons" or link.number not in one.covers:
            continue
        if one.table:
            table = read_table(folder, one).filter(
                (pl.col(WRITER) == writer) & (pl.col(SEQUENCE) == sequence)
            )
            names = SealedReason.__struct_fields__
            if len(table):
                rows = table.sort("place").select(names).rows()
                return [SealedReason(*row) for row in rows], ""
        return [], one.facts.get(NOT_EXPLAINED, "its decision needs no reasons")
    return [], ""

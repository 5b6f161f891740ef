"""Read a sealed journal segment by segment, and prepare its rows for counting."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from tollgate.audit.gathering import read_release_files
from tollgate.audit.kept import NAME, read_archived_release, spec_of
from tollgate.audit.links import Link, path_of
from tollgate.audit.rows import DECIDED, EVENT, FEATURE, PROBABILITY, SUBJECT
from tollgate.audit.subjects import TRANSACTION
from tollgate.audit.tables import read_table
from tollgate.errors import InputError
from tollgate.features.spec import FeatureSpec
from tollgate.monitor.tallies import CLUSTERS, DECISIONS, MonitoredRows
from tollgate.monitor.training import Reference
from tollgate.schema import Degraded

# With one of these bits, the vector or the score differs from normal operation. That is
# an operational problem, not a change in the customers' behaviour. A new customer, a
# field that was not sent and a table without a row are normal inputs.
APART = (
    Degraded.STORE_UNAVAILABLE
    | Degraded.LAST_KNOWN_VECTOR
    | Degraded.EVENT_TOO_LATE
    | Degraded.WINDOW_OVERFLOW
    | Degraded.STATE_CORRUPT
    | Degraded.MODEL_OUTPUT
    | Degraded.ESSENTIAL_MISSING
    | Degraded.FEED_STALE
    | Degraded.HOOK_FAILED
)
_PLAIN = ("release", "spec", "decision", "degraded", "consent", DECIDED, EVENT)
_SCORE = f"{PROBABILITY}1"  # training's score is the model's P(1)


class KnownRelease(msgspec.Struct, frozen=True, eq=False):
    """Files of a release, and its feature spec if it can be read."""

    files: Mapping[str, bytes]
    spec: FeatureSpec | None


def known_release(
    name: str,
    *,
    folder: Path,
    links: list[Link],
    repository: Path | None,
    product: str,
) -> KnownRelease:
    """
    Find the files of a release: in the journal, otherwise in the repository.

    Raises:
        JournalError: An archived file cannot be read.
    """
    archives = [
        one for one in links if one.kind == "release" and one.facts[NAME] == name
    ]
    if archives:
        found = read_archived_release(folder, archives[-1])
        return KnownRelease(found.files, found.spec)
    files = read_release_files(repository, name, product=product) if repository else {}
    return KnownRelease(files, spec_of(files))


def read_segment(folder: Path, link: Link) -> pl.DataFrame | None:
    """
    Read a segment, ordered by decision time; None if it was removed meanwhile.

    Raises:
        JournalError: The file exists and cannot be read.
    """
    names = [name for name, _ in link.columns]
    wanted = [
        *(name for name in (*_PLAIN, TRANSACTION) if name in names),
        *(name for name in names if name.startswith((FEATURE, PROBABILITY))),
        *[name for name in names if name.startswith(SUBJECT)][:1],
    ]
    if not path_of(folder, link.table).exists():
        return None
    table = read_table(folder, link, columns=wanted)
    missing = [name for name in _PLAIN if name not in table.columns]
    if missing:
        raise InputError(folder / link.table, "is not in the segment", where=missing[0])
    return table.sort(DECIDED, maintain_order=True)


def by_release(table: pl.DataFrame) -> Iterator[tuple[str, pl.DataFrame]]:
    """Split a segment by release."""
    for (name,), own in table.group_by("release", maintain_order=True):
        yield str(name), own


def rows_of(own: pl.DataFrame, reference: Reference | None) -> MonitoredRows:
    """
    Prepare the decisions of one release for counting.

    Args:
        own: Decisions of the release.
        reference: Training distribution to compare with; None for none.
    """
    consent = own["consent"].to_numpy()
    degraded = own["degraded"].to_numpy().astype(np.uint32)
    columns = reference.columns if reference is not None else ()
    names = [_SCORE if one.kind == "score" else FEATURE + one.name for one in columns]
    fits = all(name in own.columns for name in names)
    values = np.full((len(own), len(columns)), np.nan, np.float32)
    if fits:
        for at, name in enumerate(names):
            values[:, at] = own[name].fill_null(np.nan).to_numpy()
    valid = consent & ((degraded & np.uint32(APART)) == 0) & fits
    event_us = own[EVENT].dt.epoch("us").fill_null(0).to_numpy()
    order = pl.Series(list(DECISIONS))
    decision = own["decision"].replace_strict(
        order, pl.Series(range(len(order)), dtype=pl.UInt8), return_dtype=pl.UInt8
    )
    return MonitoredRows(
        values=values,
        cluster=_clusters(own),
        valid=valid,
        decision=decision.to_numpy(),
        degraded=degraded,
        withheld=~consent,
        foreign=consent & (not fits),
        confidence=_confidence(own),
        decided_us=own[DECIDED].dt.epoch("us").to_numpy(),
        event_us=event_us,
    )


def _clusters(own: pl.DataFrame) -> npt.NDArray[np.int64]:
    """Assign customers to clusters by their pseudonyms, which are random hex digits."""
    subjects = [name for name in own.columns if name.startswith(SUBJECT)]
    name = subjects[0] if subjects else TRANSACTION
    number = own[name].str.slice(0, 4).str.to_integer(base=16, strict=False)
    clusters: npt.NDArray[np.int64] = (number.fill_null(0) % CLUSTERS).to_numpy()
    return clusters.astype(np.int64)


def _confidence(own: pl.DataFrame) -> npt.NDArray[np.float32]:
    names = [name for name in own.columns if name.startswith(PROBABILITY)]
    if not names:
        return np.full(len(own), np.nan, np.float32)
    largest = own.select(pl.max_horizontal(names)).to_series().fill_null(np.nan)
    return np.asarray(largest.to_numpy(), np.float32)

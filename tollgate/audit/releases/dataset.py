"""
Build training rows from the journal: served feature vectors, joined with labels.

A row holds only what was known at its decision, because its vector is the one that the
model received then. Only the label became known later: it counts from its `label_time`
on.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import polars as pl

from tollgate.audit.chain.chain import Chain
from tollgate.audit.chain.links import Link
from tollgate.audit.releases.record_rows import (
    DECIDED,
    EVENT,
    FEATURE,
    MOMENT,
    SUBJECT,
    read_table,
)
from tollgate.audit.worker.label_journal import newest, sealed_labels
from tollgate.audit.worker.pseudonyms import TRANSACTION
from tollgate.errors import InputError
from tollgate.features.spec.spec_document import LABEL, LABEL_TIME
from tollgate.schema import REASON_SEPARATOR, Degraded

_DECISION_COLUMNS = ("release", "decision", "degraded", DECIDED, EVENT)


class Dataset(msgspec.Struct, frozen=True, eq=False):
    """
    Rows to train a model on.

    Attributes:
        table: Pseudonyms, times, release and decision, then the features, then label
            and label_time. Every numeric column is a feature or the label.
        spec: Hash of the feature spec, 16 hexadecimal digits.
        decisions: Number of decisions up to the given time.
        withheld: Number of these without consent.
        foreign: Number of these with other features, or of releases that were not
            requested.
        repeated: Number of these whose transaction was decided before.
        unlabelled: Number of these without a label.
    """

    table: pl.DataFrame
    spec: str
    decisions: int
    withheld: int
    foreign: int
    repeated: int
    unlabelled: int

    @property
    def frauds(self) -> int:
        """Return the number of rows that were fraud."""
        return int(self.table[LABEL].sum())


def dataset(
    chain: Chain,
    *,
    as_of_us: int,
    more_labels: pl.DataFrame | None = None,
    legitimate_after_us: int | None = None,
    releases: Sequence[str] = (),
) -> Dataset:
    """
    Build training rows as they could have been built at a given time.

    Args:
        chain: Journal to read.
        as_of_us: The time, µs since the epoch; newer decisions and labels are left out.
        more_labels: Labels in addition to the sealed ones, in the same layout.
        legitimate_after_us: Age in µs from which an unlabelled decision counts as
            legitimate; use it where only frauds are reported. None leaves these out.
        releases: Names of the releases to include; empty for all. If they have several
            feature specs, only rows with the spec of the newest decision are included.

    Raises:
        InputError: No rows are left to train on.
        JournalError: A segment or a labels file cannot be read.
    """
    moment = pl.lit(as_of_us).cast(MOMENT)
    parts = [_read(chain, link) for link in chain.alive("segment")]
    parts = [part.filter(pl.col(DECIDED) <= moment) for part in parts]
    decisions = sum(map(len, parts))
    wanted = [_wanted(part, releases) for part in parts]
    consented = [part.filter(pl.col("consent")) for part in wanted if len(part)]
    consented = [part for part in consented if len(part)]
    if not consented:
        raise InputError(chain.folder, "holds no decision to learn from")
    latest = max(consented, key=lambda part: part[DECIDED].to_physical().max())  # type: ignore[arg-type, return-value]
    spec = str(latest["spec"][0])  # a segment has records of the same features
    own = pl.concat(
        [
            part
            for part in consented
            if part["spec"][0] == spec and part.columns == latest.columns
        ]
    )
    once = own.sort(DECIDED, maintain_order=True).unique(
        TRANSACTION, keep="first", maintain_order=True
    )
    labelled = _labelled(
        once,
        _labels(chain, more_labels).filter(pl.col(LABEL_TIME) <= moment),
        legitimate_before_us=None
        if legitimate_after_us is None
        else as_of_us - legitimate_after_us,
    )
    with_consent = sum(int(part["consent"].sum()) for part in parts)
    return Dataset(
        table=_laid_out(labelled, str(chain.folder)),
        spec=spec,
        decisions=decisions,
        withheld=decisions - with_consent,
        foreign=with_consent - len(own),
        repeated=len(own) - len(once),
        unlabelled=len(once) - len(labelled),
    )


def _read(chain: Chain, link: Link) -> pl.DataFrame:
    names = [name for name, _ in link.columns]
    columns = [
        *(TRANSACTION, "spec", "consent", *_DECISION_COLUMNS),
        *(name for name in names if name.startswith((SUBJECT, FEATURE))),
    ]
    return read_table(chain.folder, link, columns=columns)


def _wanted(part: pl.DataFrame, releases: Sequence[str]) -> pl.DataFrame:
    if not releases:
        return part
    return part.filter(pl.col("release").is_in(list(releases)))


def _labels(chain: Chain, more: pl.DataFrame | None) -> pl.DataFrame:
    sealed = sealed_labels(chain)
    return sealed if more is None else pl.concat([sealed, more])


def _labelled(
    rows: pl.DataFrame, labels: pl.DataFrame, *, legitimate_before_us: int | None
) -> pl.DataFrame:
    """Join rows with their labels; leave out rows that stay unlabelled."""
    known = newest(labels).select(TRANSACTION, LABEL, LABEL_TIME)
    joined = rows.join(known, on=TRANSACTION, how="left", maintain_order="left")
    if legitimate_before_us is not None:
        before = pl.lit(legitimate_before_us).cast(MOMENT)
        old = pl.col(LABEL).is_null() & (pl.col(DECIDED) <= before)
        label = pl.when(old).then(0).otherwise(pl.col(LABEL)).cast(pl.UInt8)
        joined = joined.with_columns(label.alias(LABEL))
    return joined.filter(pl.col(LABEL).is_not_null())


def _laid_out(rows: pl.DataFrame, source: str) -> pl.DataFrame:
    """Rename features as training names them, and write degraded bits as names."""
    subjects = [name for name in rows.columns if name.startswith(SUBJECT)]
    features = [name for name in rows.columns if name.startswith(FEATURE)]
    leading = [TRANSACTION, *subjects, *_DECISION_COLUMNS]
    reserved = {*leading, LABEL, LABEL_TIME}
    for name in features:
        if name[len(FEATURE) :] in reserved:
            raise InputError(source, "is a column of the dataset, too", where=name)
    words = [_words(bits) for bits in rows["degraded"].to_list()]
    return (
        rows.with_columns(pl.Series("degraded", words, pl.String))
        .sort(EVENT, DECIDED, maintain_order=True)
        .select(
            *leading,
            *(pl.col(name).alias(name[len(FEATURE) :]) for name in features),
            LABEL,
            LABEL_TIME,
        )
    )


def _words(bits: int) -> str:
    return REASON_SEPARATOR.join(one.name or "" for one in Degraded if bits & one)

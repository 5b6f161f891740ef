"""
Training rows out of the journal: vectors as they were served, and what came of them.

What is in a row was known when it was decided, because it is what the model was given
then; only the label came later, and counts from the time at which it was known.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import polars as pl

from tollgate.audit.chain import Chain
from tollgate.audit.labels import newest, sealed_labels
from tollgate.audit.links import Link
from tollgate.audit.rows import DECIDED, EVENT, FEATURE, MOMENT, SUBJECT
from tollgate.audit.subjects import TRANSACTION
from tollgate.audit.tables import read_table
from tollgate.errors import InputError
from tollgate.features.document import LABEL, LABEL_TIME
from tollgate.schema import REASON_SEPARATOR, Degraded

_TOLD = ("release", "decision", "degraded", DECIDED, EVENT)


class Dataset(msgspec.Struct, frozen=True, eq=False):
    """
    Rows to learn from.

    Attributes:
        table: Pseudonyms and times, release and decision, then features, then label
            and label_time. Every column of numbers is a feature or the label.
        spec: Hash of the features, 16 hexadecimal digits.
        decisions: How many decisions there were up to that time.
        withheld: How many of them without consent.
        foreign: How many of other features, or of other releases than asked for.
        repeated: How many of transactions that were decided before.
        unlabelled: How many of which is not known what they were.
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
        """Rows that were fraud."""
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
    Make training rows as they could have been made at a time.

    Args:
        chain: The journal.
        as_of_us: The time: no decision and no label that is newer.
        more_labels: Beside those that are sealed, laid out as they are.
        legitimate_after_us: Age from which a decision without a label counts as
            legitimate: where only frauds are reported. None leaves those out.
        releases: Of which; of all of them when empty. Of several kinds of features,
            those of the newest decision are taken.

    Raises:
        InputError: There is nothing to learn from.
        JournalError: A segment or labels cannot be read.
    """
    moment = pl.lit(as_of_us).cast(MOMENT)
    parts = [_read(chain, link) for link in chain.alive("segment")]
    parts = [part.filter(pl.col(DECIDED) <= moment) for part in parts]
    decisions = sum(map(len, parts))
    wanted = [_wanted(part, releases) for part in parts]
    kept = [part.filter(pl.col("consent")) for part in wanted if len(part)]
    kept = [part for part in kept if len(part)]
    if not kept:
        raise InputError(chain.folder, "holds no decision to learn from")
    latest = max(kept, key=lambda part: part[DECIDED].to_physical().max())  # type: ignore[arg-type, return-value]
    spec = str(latest["spec"][0])  # a segment has records of the same features
    own = pl.concat(
        [
            part
            for part in kept
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
        *(TRANSACTION, "spec", "consent", *_TOLD),
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
    """Join what rows turned out to be; leave out what is not known."""
    known = newest(labels).select(TRANSACTION, LABEL, LABEL_TIME)
    joined = rows.join(known, on=TRANSACTION, how="left", maintain_order="left")
    if legitimate_before_us is not None:
        before = pl.lit(legitimate_before_us).cast(MOMENT)
        old = pl.col(LABEL).is_null() & (pl.col(DECIDED) <= before)
        label = pl.when(old).then(0).otherwise(pl.col(LABEL)).cast(pl.UInt8)
        joined = joined.with_columns(label.alias(LABEL))
    return joined.filter(pl.col(LABEL).is_not_null())


def _laid_out(rows: pl.DataFrame, source: str) -> pl.DataFrame:
    """Name features as they are trained on, and write bits as words."""
    subjects = [name for name in rows.columns if name.startswith(SUBJECT)]
    features = [name for name in rows.columns if name.startswith(FEATURE)]
    told = [TRANSACTION, *subjects, *_TOLD]
    taken = {*told, LABEL, LABEL_TIME}
    for name in features:
        if name[len(FEATURE) :] in taken:
            raise InputError(source, "is a column of the dataset, too", where=name)
    words = [_words(bits) for bits in rows["degraded"].to_list()]
    return (
        rows.with_columns(pl.Series("degraded", words, pl.String))
        .sort(EVENT, DECIDED, maintain_order=True)
        .select(
            *told,
            *(pl.col(name).alias(name[len(FEATURE) :]) for name in features),
            LABEL,
            LABEL_TIME,
        )
    )


def _words(bits: int) -> str:
    return REASON_SEPARATOR.join(one.name or "" for one in Degraded if bits & one)

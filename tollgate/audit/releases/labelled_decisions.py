"""
Join sealed decisions with labels: rows to train on, and the accuracy of each release.

A training row holds only what was known at its decision, because its vector is the one
that the model received then. Only the label became known later: it counts from its
`label_time` on.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from tollgate.audit.chain.chain import Chain
from tollgate.audit.chain.links import Link
from tollgate.audit.releases.archive import ReleaseArchive
from tollgate.audit.releases.record_rows import (
    DECIDED,
    EVENT,
    FEATURE,
    MOMENT,
    SUBJECT,
    levels_of,
    read_table,
)
from tollgate.audit.worker.label_journal import newest, sealed_labels
from tollgate.audit.worker.pseudonyms import TRANSACTION
from tollgate.errors import InputError
from tollgate.evaluation import average_precision, roc_auc
from tollgate.features.spec.spec_document import LABEL, LABEL_TIME
from tollgate.schema import REASON_SEPARATOR, Decision, Degraded, Outcomes

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
    legitimate_before_us = None
    if legitimate_after_us is not None:
        legitimate_before_us = as_of_us - legitimate_after_us + 1
    labelled = _with_labels(
        once,
        _labels(chain, more_labels).filter(pl.col(LABEL_TIME) <= moment),
        legitimate_before_us=legitimate_before_us,
    ).filter(pl.col(LABEL).is_not_null())
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


def _with_labels(
    rows: pl.DataFrame, labels: pl.DataFrame, *, legitimate_before_us: int | None
) -> pl.DataFrame:
    """Join rows with their labels; unlabelled ones before a time are legitimate."""
    joined = rows.join(
        newest(labels).select(TRANSACTION, LABEL, LABEL_TIME),
        on=TRANSACTION,
        how="left",
        maintain_order="left",
    )
    if legitimate_before_us is None:
        return joined
    old = pl.col(DECIDED).dt.epoch("us") < legitimate_before_us
    label = pl.when(pl.col(LABEL).is_null() & old).then(0).otherwise(pl.col(LABEL))
    return joined.with_columns(label.cast(pl.UInt8).alias(LABEL))


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


Bool = npt.NDArray[np.bool_]

_COLUMNS = (TRANSACTION, DECIDED, "release", "decision", "score")


class ReleaseAccuracy(msgspec.Struct, frozen=True):
    """
    Accuracy of one release on its labelled decisions.

    Attributes:
        decisions: Number of its decisions in the journal with consent.
        labelled: Number of these decisions that have a label.
        frauds: Number of labelled decisions that were fraud.
        declined: Share of frauds among the labelled decisions of the severest level;
            NaN without any.
        flagged: Share of frauds among those of the two severer levels.
        caught_declined: Share of the frauds that got the severest level.
        caught: Share of the frauds that got one of the two severer levels.
        outcomes: Words of its decisions, the mildest first.
        roc_auc, average_precision: Of the scores; NaN unless both classes occur.
    """

    release: str
    decisions: int
    labelled: int
    frauds: int
    declined: float
    flagged: float
    caught_declined: float
    caught: float
    roc_auc: float
    average_precision: float
    outcomes: tuple[str, str, str]


def accuracy_by_release(
    chain: Chain, *, legitimate_before_us: int | None = None
) -> list[ReleaseAccuracy]:
    """
    Measure the accuracy of every release on its labelled decisions.

    Args:
        chain: Journal to read; its content is not verified here.
        legitimate_before_us: Unlabelled decisions before this time, µs since the epoch,
            count as legitimate; use it where only frauds are reported. None leaves them
            out.

    Raises:
        JournalError: A segment or a labels file cannot be read.
    """
    parts = [
        read_table(chain.folder, link, columns=_COLUMNS)
        for link in chain.alive("segment")
    ]
    if not parts:
        return []
    known = pl.concat(parts).filter(pl.col(TRANSACTION).is_not_null())
    # Of repeated decisions of a transaction, only the first one counts.
    once = known.sort(DECIDED).unique(TRANSACTION, keep="first")
    whole = _with_labels(
        once, sealed_labels(chain), legitimate_before_us=legitimate_before_us
    )
    releases = ReleaseArchive(chain)
    return [
        _judged(str(name), own, outcomes=releases.outcomes(str(name)))
        for (name,), own in sorted(whole.group_by("release"), key=lambda one: one[0])
    ]


def _judged(release: str, own: pl.DataFrame, *, outcomes: Outcomes) -> ReleaseAccuracy:
    known = own.filter(pl.col(LABEL).is_not_null())
    fraud = known[LABEL].to_numpy() == 1
    level = levels_of(known["decision"], outcomes)
    declined = level == Decision.DECLINE
    flagged = level != Decision.APPROVE
    return ReleaseAccuracy(
        release=release,
        decisions=len(own),
        labelled=len(known),
        frauds=int(fraud.sum()),
        declined=_share(fraud[declined]),
        flagged=_share(fraud[flagged]),
        caught_declined=_share(declined[fraud]),
        caught=_share(flagged[fraud]),
        outcomes=outcomes.words,
        **_ranked(known, fraud),
    )


def _ranked(known: pl.DataFrame, fraud: Bool) -> dict[str, float]:
    """Compute the ranking metrics; rows without a finite score are left out."""
    score = known["score"].to_numpy()
    there = np.isfinite(score)
    try:
        return {
            "roc_auc": roc_auc(fraud[there], score[there]),
            "average_precision": average_precision(fraud[there], score[there]),
        }
    except InputError:  # one class only
        return {"roc_auc": np.nan, "average_precision": np.nan}


def _share(hits: Bool) -> float:
    return float(hits.mean()) if len(hits) else np.nan

"""Measure the accuracy of each release on the decisions that have labels."""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from tollgate.audit.chain.chain import Chain
from tollgate.audit.releases.record_rows import DECIDED, read_table
from tollgate.audit.worker.label_journal import newest, sealed_labels
from tollgate.audit.worker.pseudonyms import TRANSACTION
from tollgate.errors import InputError
from tollgate.evaluation import average_precision, roc_auc
from tollgate.features.spec.spec_document import LABEL

Bool = npt.NDArray[np.bool_]

_COLUMNS = (TRANSACTION, DECIDED, "release", "decision", "score")


class ReleaseAccuracy(msgspec.Struct, frozen=True):
    """
    Accuracy of one release on its labelled decisions.

    Attributes:
        release: Name of the release.
        decisions: Number of its decisions in the journal with consent.
        labelled: Number of these decisions that have a label.
        frauds: Number of labelled decisions that were fraud.
        declined: Share of frauds among the labelled declines; NaN without any.
        flagged: Share of frauds among the labelled reviews and declines.
        caught_declined: Share of the frauds that were declined.
        caught: Share of the frauds that were reviewed or declined.
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
    labels = newest(sealed_labels(chain)).select(TRANSACTION, LABEL)
    parts = []
    for link in chain.alive("segment"):
        table = read_table(chain.folder, link, columns=_COLUMNS)
        table = table.filter(pl.col(TRANSACTION).is_not_null())
        parts.append(table.join(labels, on=TRANSACTION, how="left"))
    if not parts:
        return []
    # Of repeated decisions of a transaction, only the first one counts.
    whole = pl.concat(parts).sort(DECIDED).unique(TRANSACTION, keep="first")
    if legitimate_before_us is not None:
        old = pl.col(DECIDED).dt.epoch("us") < legitimate_before_us
        unknown = pl.col(LABEL).is_null() & old
        whole = whole.with_columns(
            pl.when(unknown)
            .then(0)
            .otherwise(pl.col(LABEL))
            .cast(pl.UInt8)
            .alias(LABEL)
        )
    return [
        _judged(str(name), own)
        for (name,), own in sorted(whole.group_by("release"), key=lambda one: one[0])
    ]


def _judged(release: str, own: pl.DataFrame) -> ReleaseAccuracy:
    known = own.filter(pl.col(LABEL).is_not_null())
    fraud = known[LABEL].to_numpy() == 1
    declined = (known["decision"] == "decline").to_numpy()
    flagged = (known["decision"] != "approve").to_numpy()
    return ReleaseAccuracy(
        release=release,
        decisions=len(own),
        labelled=len(known),
        frauds=int(fraud.sum()),
        declined=_share(fraud[declined]),
        flagged=_share(fraud[flagged]),
        caught_declined=_share(declined[fraud]),
        caught=_share(flagged[fraud]),
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

"""How right each release was, now that some purchases are known for what they were."""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from tollgate.audit.chain import Chain
from tollgate.audit.labels import newest, sealed_labels
from tollgate.audit.rows import DECIDED
from tollgate.audit.subjects import TRANSACTION
from tollgate.audit.tables import read_table
from tollgate.errors import InputError
from tollgate.evaluation import average_precision, roc_auc
from tollgate.features.document import LABEL

Bool = npt.NDArray[np.bool_]

_COLUMNS = (TRANSACTION, DECIDED, "release", "decision", "score")


class Accuracy(msgspec.Struct, frozen=True):
    """
    How right one release was on what is known.

    Attributes:
        release: Its name.
        decisions: How many are in the journal, with consent.
        labelled: Of how many it is known what they were.
        frauds: How many of those were fraud.
        declined: Share of the known declined that were fraud; NaN when there is none.
        flagged: The same of the known reviewed or declined.
        caught_declined: Share of the frauds that was declined.
        caught: Share of the frauds that was reviewed or declined.
        roc_auc, average_precision: Of the scores; NaN without both classes.
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


def accuracy(
    chain: Chain, *, legitimate_before_us: int | None = None
) -> list[Accuracy]:
    """
    Judge every release on its labelled decisions.

    Args:
        chain: The journal; nothing in it is proven here.
        legitimate_before_us: Decisions before this time that have no label count as
            legitimate: where only frauds are reported. None leaves them out.

    Raises:
        JournalError: A segment or labels cannot be read.
    """
    labels = newest(sealed_labels(chain)).select(TRANSACTION, LABEL)
    parts = []
    for link in chain.alive("segment"):
        table = read_table(chain.folder, link, columns=_COLUMNS)
        table = table.filter(pl.col(TRANSACTION).is_not_null())
        parts.append(table.join(labels, on=TRANSACTION, how="left"))
    if not parts:
        return []
    # Of twins the first is the one that counted.
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


def _judged(release: str, own: pl.DataFrame) -> Accuracy:
    known = own.filter(pl.col(LABEL).is_not_null())
    fraud = known[LABEL].to_numpy() == 1
    declined = (known["decision"] == "decline").to_numpy()
    flagged = (known["decision"] != "approve").to_numpy()
    return Accuracy(
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
    """Judge the scores' order; those that are none are left out."""
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

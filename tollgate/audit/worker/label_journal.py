"""Read labels (fraud or not), and seal them into the journal next to the decisions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl

from tollgate.audit.chain.chain import Chain
from tollgate.audit.chain.links import Link, LinkContent
from tollgate.audit.releases.record_rows import MOMENT, read_table
from tollgate.audit.worker.pseudonyms import TRANSACTION, Subjects, pseudonym
from tollgate.errors import InputError
from tollgate.features.spec.feature_spec import FeatureSpec
from tollgate.features.spec.spec_document import LABEL, LABEL_TIME
from tollgate.history import columns, rename_aliases
from tollgate.history import read_table as read_file
from tollgate.schema import EVENT_TIME, TRANSACTION_ID
from tollgate.store.store_events import MAX_REVISION, Labels

REVISION = "revision"


def read_labels(path: Path, *, spec: FeatureSpec) -> Labels:
    """
    Read labels from a Parquet, CSV or JSON-lines file.

    Columns: transaction_id, the entities' ids, event_time of the purchase, label (0 or
    1) and label_time. In the optional column revision (default 0) a higher number
    replaces earlier labels of the transaction.

    Raises:
        InputError: A column is missing or a value is invalid; names file and row.
    """
    source = str(path)
    frame = rename_aliases(read_file(path), spec)
    keys = [entity.key for entity in spec.entities]
    for name in (TRANSACTION_ID, *keys, EVENT_TIME, LABEL, LABEL_TIME):
        if name not in frame.columns:
            problem = f"column missing; the file has {', '.join(frame.columns)}"
            raise InputError(source, problem, where=name)
        columns.refuse(frame[name].is_null(), frame[name], "is null", source)
    ids = [columns.ids(frame[name], source=source) for name in (TRANSACTION_ID, *keys)]
    event_time_us = columns.times_us(frame[EVENT_TIME], source=source)
    label = columns.labels(frame, source=source)
    encoded = [[one.encode() for one in column.to_list()] for column in ids]
    return Labels(
        transaction_id=encoded[0],
        entity_id=encoded[1:],
        event_time_us=event_time_us,
        label=label,
        label_time_us=columns.label_times_us(
            frame, label=label, event_time_us=event_time_us, source=source
        ),
        revision=_revisions(frame, source=source),
    )


def _revisions(frame: pl.DataFrame, *, source: str) -> npt.NDArray[np.int64]:
    if REVISION not in frame.columns:
        return np.zeros(len(frame), np.int64)
    column = frame[REVISION]
    whole = column.cast(pl.Int64, strict=False)
    wrong = (whole.is_null() | (whole < 0) | (whole > MAX_REVISION)).fill_null(True)
    columns.refuse(wrong, column, f"is not a number 0 … {MAX_REVISION}", source)
    return np.asarray(whole.to_numpy(), np.int64)


def labels_for_store(labels: Labels) -> Labels:
    """
    Pick the labels that the online store needs.

    The store treats unlabelled purchases as legitimate. So it needs only frauds, and
    labels that revise an earlier one.
    """
    rows = np.flatnonzero((labels.label == 1) | (labels.revision > 0))
    return Labels(
        transaction_id=[labels.transaction_id[row] for row in rows],
        entity_id=[[ids[row] for row in rows] for ids in labels.entity_id],
        event_time_us=labels.event_time_us[rows],
        label=labels.label[rows],
        label_time_us=labels.label_time_us[rows],
        revision=labels.revision[rows],
    )


def seal_labels(
    chain: Chain, labels: Labels, *, spec: FeatureSpec, subjects: Subjects
) -> Link | None:
    """
    Seal labels next to the decisions that they belong to; None if none is new.

    Labels of subjects without a key in the journal (unknown, erased, without consent)
    are left out, and so are labels that are sealed already.

    Raises:
        JournalError: The journal or the keys cannot be read or written.
    """
    table = pseudonymised(labels, spec=spec, subjects=subjects)
    new = table.unique(maintain_order=True).join(
        sealed_labels(chain), on=table.columns, how="anti", maintain_order="left"
    )
    if new.is_empty():
        return None
    return chain.add(
        LinkContent(
            kind="labels",
            table=new,
            until_us=int(table[LABEL_TIME].to_physical().max()),  # type: ignore[arg-type]
            facts={"frauds": str(int(new[LABEL].sum()))},
        )
    )


def pseudonymised(
    labels: Labels, *, spec: FeatureSpec, subjects: Subjects
) -> pl.DataFrame:
    """
    Return labels in their sealed layout, only those of subjects that have a key.

    Raises:
        JournalError: The keys cannot be read.
    """
    owner, owners = TRANSACTION, labels.transaction_id
    if spec.entities:
        owner, owners = spec.entities[0].name, labels.entity_id[0]
    keys = subjects.known(owner, list(set(owners)))
    rows = [row for row, one in enumerate(owners) if one in keys]
    return pl.DataFrame(
        {
            TRANSACTION: pl.Series(
                [
                    pseudonym(
                        keys[owners[row]],
                        TRANSACTION,
                        labels.transaction_id[row],
                    )
                    for row in rows
                ],
                dtype=pl.String,
            ),
            LABEL: pl.Series(labels.label[rows].astype(np.uint8)),
            LABEL_TIME: pl.Series(labels.label_time_us[rows]).cast(MOMENT),
            REVISION: pl.Series(labels.revision[rows]),
        }
    )


def sealed_labels(chain: Chain) -> pl.DataFrame:
    """Read all labels of a journal, in the order in which they were sealed."""
    schema: dict[str, pl.DataType] = {
        TRANSACTION: pl.String(),
        LABEL: pl.UInt8(),
        LABEL_TIME: MOMENT,
        REVISION: pl.Int64(),
    }
    tables = [read_table(chain.folder, link) for link in chain.alive("labels")]
    return pl.concat([pl.DataFrame(schema=schema), *tables])


def newest(labels: pl.DataFrame) -> pl.DataFrame:
    """Pick one label per transaction: the highest revision, and the newest of these."""
    return labels.sort(REVISION, LABEL_TIME, maintain_order=True).unique(
        TRANSACTION, keep="last", maintain_order=True
    )

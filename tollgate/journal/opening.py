"""Open the journal of a step that starts."""

from __future__ import annotations

import logging
from pathlib import Path

from tollgate.journal.chunks import Beside
from tollgate.journal.mark import Mark
from tollgate.journal.rows import Heading
from tollgate.journal.spool import JournalSpool
from tollgate.journal.stream import JournalStream
from tollgate.journal.writer import JournalWriter, Told
from tollgate.store.line import open_line

log = logging.getLogger(__name__)

# How long one addition may take. Nothing waits for it but newer records, in memory;
# after it they go to the disk.
DEADLINE_S = 0.1


def open_writer(
    url: str,
    heading: Heading,
    *,
    folder: str,
    beside: Beside | None = None,
    beside_url: str = "",
    told: Told | None = None,
    deadline_s: float = DEADLINE_S,
) -> JournalWriter:
    """
    Open a writer; without a spool if there can be none.

    Args:
        url: Address of the Redis, or the cluster, that holds the stream.
        heading: What its records share.
        folder: The spool's; empty for none. Each product gets a folder in it.
        beside: As JournalWriter takes it.
        beside_url: Where its commands go; empty for where the stream is.
        told: Likewise.
        deadline_s: How long one addition to the stream may take.

    Raises:
        InputError: The address is none.
    """
    line = open_line(url, deadline_s=deadline_s)
    elsewhere = None
    if beside_url not in ("", url):
        elsewhere = open_line(beside_url, deadline_s=deadline_s)
    spool = mark = None
    if folder:
        path = Path(folder) / heading.product
        try:
            spool = JournalSpool(path, product=heading.product)
            mark = Mark(path)
        except OSError as error:
            text = "records that the stream cannot take wait in memory: %s: %s"
            log.warning(text, path, error.strerror)
    return JournalWriter(
        heading,
        JournalStream(heading.product, line, beside=elsewhere),
        spool=spool,
        mark=mark,
        beside=beside,
        told=told,
    )

"""Open the journal writer of a decision step that starts."""

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

# Deadline of one addition to the stream. Only newer records wait for it, in memory;
# after the deadline records go to the disk.
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
    Open a writer; without a spool if the folder cannot be used.

    Args:
        url: Address of the Redis, or the cluster, that holds the stream.
        heading: Values that all its records share.
        folder: Folder of the spools, with one subfolder per product; empty for none.
        beside: See JournalWriter.
        beside_url: Address for the commands of `beside`; empty for the stream's.
        told: See JournalWriter.
        deadline_s: Deadline in seconds of one addition to the stream.

    Raises:
        InputError: The address is invalid.
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

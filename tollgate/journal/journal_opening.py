"""Open the journal writer of a decision step that starts."""

from __future__ import annotations

import logging
from pathlib import Path

from tollgate.journal.journal_rows import CommandBuilder, Heading
from tollgate.journal.journal_spool import JournalSpool
from tollgate.journal.journal_stream import JournalStream
from tollgate.journal.journal_writer import JournalWriter, ReportCallback
from tollgate.journal.mark import Mark
from tollgate.store.redis.pipelined_connection import open_pipeline

log = logging.getLogger(__name__)

# Deadline of one addition to the stream. Only newer records wait for it, in memory;
# after the deadline records go to the disk.
DEADLINE_S = 0.1


def open_writer(
    url: str,
    heading: Heading,
    *,
    folder: str,
    extra_commands: CommandBuilder | None = None,
    extra_commands_url: str = "",
    on_report: ReportCallback | None = None,
    deadline_s: float = DEADLINE_S,
) -> JournalWriter:
    """
    Open a writer; without a spool if the folder cannot be used.

    Args:
        url: Address of the Redis, or the cluster, that holds the stream.
        folder: Folder of the spools, with one subfolder per product; empty for none.
        extra_commands: See JournalWriter.
        extra_commands_url: Address for these commands; empty for the stream's.
        on_report: See JournalWriter.
        deadline_s: Deadline in seconds of one addition to the stream.

    Raises:
        InputError: The address is invalid.
    """
    line = open_pipeline(url, deadline_s=deadline_s)
    store = None
    if extra_commands_url not in ("", url):
        store = open_pipeline(extra_commands_url, deadline_s=deadline_s)
    spool = mark = None
    if folder:
        path = Path(folder) / heading.product
        try:
            spool = JournalSpool(path, product=heading.product)
            mark = Mark(path, heading)
        except OSError as error:
            text = "records that the stream cannot take wait in memory: %s: %s"
            log.warning(text, path, error.strerror)
    return JournalWriter(
        heading,
        JournalStream(heading.product, line, store=store),
        spool=spool,
        mark=mark,
        extra_commands=extra_commands,
        on_report=on_report,
    )

"""Remove segments that are past their retention; the chain records the removal."""

from __future__ import annotations

import contextlib

from tollgate.audit.chain.chain import Chain
from tollgate.audit.chain.links import (
    LEAVES_SUFFIX,
    Link,
    LinkContent,
    file_name,
    path_of,
    utc_text,
)
from tollgate.repository.atomic import sync_directory

_AGING = ("segment", "flags", "reasons", "labels")  # other kinds hold no personal data


def retain(chain: Chain, *, before_us: int) -> Link | None:
    """
    Remove the files of links whose records are all older than a given time.

    First a tombstone is added to the chain, then the files are deleted. If the process
    is interrupted, the next call deletes the remaining files. The links stay: they hold
    counts and hashes.

    Returns:
        The tombstone; None if nothing was old enough.

    Raises:
        JournalError: The chain cannot be written.
    """
    chain.refresh()
    old = [
        link
        for kind in _AGING
        for link in chain.alive(kind)  # type: ignore[arg-type]
        if link.until_us < before_us
    ]
    tombstone = None
    if old:
        tombstone = chain.add(
            LinkContent(
                kind="tombstone",
                covers=sorted(link.number for link in old),
                facts={
                    "older_than": utc_text(before_us),
                    "records": str(sum(one.rows for one in old if one.writers)),
                },
            )
        )
    _remove(chain)
    return tombstone


def _remove(chain: Chain) -> None:
    removed = {
        number
        for link in chain.links
        if link.kind == "tombstone"
        for number in link.covers
    }
    for number in removed:
        link = chain.links[number - 1]
        names = [one.name for one in link.files]
        for name in (*names, file_name(number, LEAVES_SUFFIX[1:])):
            with contextlib.suppress(FileNotFoundError):
                path_of(chain.folder, name).unlink()
    sync_directory(chain.folder)

"""Remove what is older than it may be kept; the chain says that it was, and when."""

from __future__ import annotations

import contextlib

from tollgate.audit.chain import Chain
from tollgate.audit.content import Content
from tollgate.audit.links import LEAVES_SUFFIX, Link, file_name, path_of
from tollgate.audit.times import utc_text
from tollgate.repository.atomic import sync_directory

_AGING = ("segment", "flags", "reasons", "labels")  # the rest holds nothing of a person


def retain(chain: Chain, *, before_us: int) -> Link | None:
    """
    Remove the files of links all of whose records are older than a time.

    First a tombstone joins the chain, then the files go; if that is cut short, the
    next call removes what is left. Links stay: they hold counts and hashes.

    Returns:
        The tombstone; None when nothing was old enough.

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
            Content(
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

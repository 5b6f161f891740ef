"""Follow the chain of a journal as it grows, without storing links already handled."""

from __future__ import annotations

from pathlib import Path

from tollgate.audit.links import Link, link_name, links_after, removed_links
from tollgate.errors import JournalError


class ChainReader:
    """
    Reads the new links of a journal.

    Args:
        folder: Folder of the journal.
        since_us: Segments whose newest time is before this are left out, µs since the
            epoch.

    Attributes:
        product: Product of the journal; empty before the first link is read.
        pending: Links of unread segments, by number; the reader of a segment removes
            its link.
        releases: Links that archive releases.
        label_changes: Number of links that change the result of labels: labels and
            tombstones.
    """

    def __init__(self, folder: Path, *, since_us: int) -> None:
        self.product = ""
        self.pending: dict[int, Link] = {}
        self.releases: list[Link] = []
        self.label_changes = 0
        self._folder = folder
        self._since_us = since_us
        self._number = 0  # number of the last link
        self._hash = ""

    def follow(self) -> None:
        """
        Read the links that were added.

        Raises:
            JournalError: A link cannot be read or does not follow the previous one, or
                links that were read before are gone.
        """
        if self._number and not (self._folder / link_name(self._number)).exists():
            raise JournalError(self._folder, f"link {self._number} is gone")
        for link, found in links_after(self._folder, self._number):
            if self._number and link.previous != self._hash:
                problem = f"link {link.number} does not follow the one before"
                raise JournalError(self._folder, problem)
            self._take(link)
            self._number, self._hash = link.number, found
        if not self._number:
            raise JournalError(self._folder, "its first link is missing")

    def _take(self, link: Link) -> None:
        self.product = link.product
        if link.kind == "segment" and link.until_us >= self._since_us:
            self.pending[link.number] = link
        elif link.kind == "release":
            self.releases.append(link)
        for number in removed_links([link]):
            self.pending.pop(number, None)
        self.label_changes += link.kind in ("labels", "tombstone")

"""Follow the chain of a journal as it grows; nothing is kept of what is done with."""

from __future__ import annotations

from pathlib import Path

from tollgate.audit.links import Link, link_name, links_after, removed_links
from tollgate.errors import JournalError


class Following:
    """
    What is new in a journal.

    Args:
        folder: The journal.
        since_us: Segments that end before are left out.

    Attributes:
        product: Whose journal it is; empty before the first link was read.
        waiting: Segments that were not read yet, by number; who read one takes it out.
        releases: The links that keep releases.
        turns: How many links there were that change what is known by labels.
    """

    def __init__(self, folder: Path, *, since_us: int) -> None:
        self.product = ""
        self.waiting: dict[int, Link] = {}
        self.releases: list[Link] = []
        self.turns = 0
        self._folder = folder
        self._since_us = since_us
        self._number = 0  # of the last link
        self._hash = ""

    def follow(self) -> None:
        """
        Read the links that were added.

        Raises:
            JournalError: One cannot be read or does not follow the one before, or
                those that were read are gone.
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
            self.waiting[link.number] = link
        elif link.kind == "release":
            self.releases.append(link)
        for number in removed_links([link]):
            self.waiting.pop(number, None)
        self.turns += link.kind in ("labels", "tombstone")

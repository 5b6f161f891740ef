"""
Append links to a chain, so that a killed process leaves a complete chain.

The files of a link are written into a hidden folder first. Then the link itself is
renamed into the journal's folder: from this moment on the link and its files count.
Then the files are renamed, too. The process that adds the next link finishes renames
that a killed process left undone.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from tollgate.audit.chain.anchor import AnchorFile, AnchorMark
from tollgate.audit.chain.digests import digests
from tollgate.audit.chain.links import (
    LEAVES_SUFFIX,
    NEW,
    NOTHING,
    PART,
    File,
    Kind,
    Link,
    LinkContent,
    encode_link,
    file_name,
    hidden_path,
    link_hash,
    link_name,
    links_after,
    read_links,
    removed_links,
)
from tollgate.audit.chain.segment_files import lock, write_hidden, write_hidden_table
from tollgate.errors import InputError, JournalError, os_errors
from tollgate.repository.atomic import sync_directory

LOCK = ".lock"
_PARQUET = ".parquet"


class Chain:
    """
    A journal's folder: reads its links and appends new ones, from many processes.

    Args:
        folder: Folder of the journal; created if missing, with access for this user
            only.
        anchor: Anchor outside the folder that records every link; None for none.
        on_step: Called with the name of each step of an append; tests stop there.

    Raises:
        InputError: The folder holds the journal of another product.
        JournalError: The chain cannot be read, or lacks links that the anchor has.
    """

    def __init__(
        self,
        folder: Path,
        *,
        product: str,
        anchor: AnchorFile | None = None,
        on_step: Callable[[str], None] = lambda step: None,
    ) -> None:
        self.folder = folder
        self.links: list[Link] = []
        self.hashes: list[str] = []
        self._anchor = anchor
        self._on_step = on_step
        with os_errors(InputError, folder, "cannot be created"):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            (folder / NEW).mkdir(exist_ok=True, mode=0o700)
        with self.locked():
            self._follow(read_links(folder))  # a listing shows missing links
            self._require_anchored()
            if not self.links:
                self._begin(product)
            found = self.links[0].product
            if found != product:
                raise InputError(folder, f"is the journal of {found}, not of {product}")
            self._finish()

    @property
    def id(self) -> str:
        """Return the id of the chain: 32 hexadecimal digits."""
        return self.links[0].chain

    @property
    def head(self) -> str:
        """Return the hash of the last link."""
        return self.hashes[-1] if self.hashes else NOTHING

    def mark(self) -> AnchorMark:
        """Return the chain id with the number and the hash of the last link."""
        return AnchorMark(chain=self.id, number=len(self.links), hash=self.head)

    def refresh(self) -> list[Link]:
        """
        Read the links that other processes added, and return them.

        Raises:
            JournalError: A link cannot be read, or does not follow the previous one.
        """
        return self._follow(links_after(self.folder, len(self.links)))

    def _follow(self, found_links: Iterable[tuple[Link, str]]) -> list[Link]:
        new = []
        for link, found in found_links:
            number = len(self.links) + 1
            if link.number != number or link.previous != self.head:
                problem = f"does not follow link {number - 1}; run `journal verify`"
                raise JournalError(self.folder / link_name(link.number), problem)
            self.links.append(link)
            self.hashes.append(found)
            new.append(link)
        return new

    def alive(self, kind: Kind) -> list[Link]:
        """List the links of a kind whose files retention has not removed."""
        removed = removed_links(self.links)
        return [
            one for one in self.links if one.kind == kind and one.number not in removed
        ]

    def add(self, content: LinkContent) -> Link:
        """
        Seal content in a new link; it is on disk when this returns.

        Raises:
            JournalError: The link cannot be written; the chain is unchanged.
        """
        with self.locked():
            self.refresh()
            self._finish()
            return self._add(content)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock of the chain, so that no other process appends to it."""
        with lock(self.folder / LOCK):
            yield

    def _require_anchored(self) -> None:
        if self._anchor is None:
            return
        self._anchor.refresh()
        last = self._anchor.last
        if last is None:
            return
        if [last.hash] != self.hashes[last.number - 1 : last.number]:
            problem = (
                f"its anchor has a link {last.number} that is not here: links were "
                "removed or rebuilt; run `journal verify`"
            )
            raise JournalError(self.folder, problem)
        # A process that is killed before it notes its link in the anchor leaves one
        # link that the anchor does not have. There are never more.
        if len(self.links) > last.number + 1:
            problem = (
                f"its anchor ends at link {last.number}, and {len(self.links)} are "
                "here: links were added; run `journal verify`"
            )
            raise JournalError(self.folder, problem)

    def _begin(self, product: str) -> None:
        self._add(
            LinkContent(kind="begin"), product=product, chain=secrets.token_hex(16)
        )

    def _add(self, content: LinkContent, *, product: str = "", chain: str = "") -> Link:
        number = len(self.links) + 1
        try:
            files, leaves = self._write_files(number, content)
            link = content.link(
                number,
                chain=chain or self.id,
                product=product or self.links[0].product,
                previous=self.head,
                files=files,
                leaves=leaves,
            )
            encoded = encode_link(link)
            name = link_name(number)
            write_hidden(self.folder, name, encoded)
            sync_directory(self.folder / NEW)
            self._on_step("written")
            self._rename(name)
            self._on_step("linked")
        except OSError as exc:
            if not (self.folder / link_name(number)).exists():
                self._clear()
            problem = f"cannot be written: {exc.strerror or exc}"
            raise JournalError(self.folder, problem) from exc
        self.links.append(link)
        self.hashes.append(link_hash(encoded))
        try:
            self._finish()
        except OSError as exc:
            problem = f"link {number} is not finished: {exc.strerror}"
            raise JournalError(self.folder, problem) from exc
        self._on_step("finished")
        return link

    def _write_files(
        self, number: int, content: LinkContent
    ) -> tuple[list[File], list[bytes]]:
        files, leaves = [], []
        if content.table is not None:
            name = file_name(number, content.kind + _PARQUET)
            files.append(write_hidden_table(self.folder, name, content.table))
            self._on_step("table")
            leaves = digests(content.table)
            raw = b"".join(leaves)
            write_hidden(self.folder, file_name(number, LEAVES_SUFFIX[1:]), raw)
        for rest, raw in content.files.items():
            files.append(write_hidden(self.folder, file_name(number, rest), raw))
        return files, leaves

    def _rename(self, name: str) -> None:
        hidden_path(self.folder, name).rename(self.folder / name)
        sync_directory(self.folder)

    def _finish(self) -> None:
        """Move the last link's files into place, and delete files that got no link."""
        last = self.links[-1]
        own = {one.name for one in last.files}
        if last.table:
            own.add(file_name(last.number, LEAVES_SUFFIX[1:]))
        there = (hidden_path(self.folder, name) for name in sorted(own))
        unmoved = [path for path in there if path.exists()]
        for path in unmoved:
            path.rename(self.folder / path.name.removesuffix(PART))
        if unmoved:
            sync_directory(self.folder)
        self._clear()
        if self._anchor is not None:
            self._anchor.note(self.mark())

    def _clear(self) -> None:
        for path in (self.folder / NEW).iterdir():
            path.unlink(missing_ok=True)

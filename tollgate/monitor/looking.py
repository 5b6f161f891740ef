"""Look at one product's journal, again and again; each segment is read once."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
import polars as pl

from tollgate.audit.links import Link, link_paths, links_after, path_of, removed_links
from tollgate.audit.tables import read_table
from tollgate.errors import InputError, JournalError
from tollgate.features.spec import FeatureSpec
from tollgate.monitor.accuracy import COLUMNS, Accuracy, Rule, default_lag_us, known_by
from tollgate.monitor.judging import Limits
from tollgate.monitor.reading import by_release, known_release, read_segment, rows_of
from tollgate.monitor.training import reference_of
from tollgate.monitor.windows import Stream

_DAY_US = 86_400_000_000


class Options(msgspec.Struct, frozen=True):
    """
    How a journal is looked at.

    Attributes:
        window: Sound decisions in a window.
        limits: What is not accepted.
        since_us: Decisions sealed in segments that end before are not read.
        lag_us: Age at which decisions are judged by their labels; 0 for what
            features.yaml waits.
        legitimate: Whether a decision without a label by then was legitimate.
    """

    window: int = 2_500
    limits: Limits = Limits()
    since_us: int = 0
    lag_us: int = 0
    legitimate: bool = False


class ProductMonitor:
    """
    What the journal of one product shows.

    Args:
        folder: Its journal.
        repository: Model repository, for releases that the journal did not keep; None
            for none.
        options: How to look.

    Attributes:
        product: Whose journal it is.
        streams: By release.
        spec: Features of the newest release whose features are known.
        accuracy: As of the last look; None before labels were looked for.
        decided_us: Newest decision that was read; 0 for none.
        looked_us: When the last look began; 0 before one.
        took_s: How long that took.

    Raises:
        InputError: There is no journal.
    """

    def __init__(
        self, folder: Path, *, repository: Path | None, options: Options
    ) -> None:
        if not link_paths(folder):
            raise InputError(folder, "holds no journal")
        self.folder = folder
        self.options = options
        self.product = ""
        self.streams: dict[str, Stream] = {}
        self.accuracy: Accuracy | None = None
        self.decided_us = 0
        self.looked_us = 0
        self.took_s = 0.0
        self._repository = repository
        self._links: list[Link] = []
        self._hash = ""
        self.spec: FeatureSpec | None = None
        self._accuracy_of: tuple[object, ...] = ()

    def look(self, now_us: int) -> None:
        """
        Read what was sealed since the last look, and judge what is complete.

        Args:
            now_us: The time.

        Raises:
            InputError: The journal is damaged, or is another one than before.
        """
        began_s = time.monotonic()
        try:
            for link in self._new_links():
                if link.kind == "segment" and link.until_us >= self.options.since_us:
                    self._read(link)
            for stream in self.streams.values():
                stream.settle(now_us)
        except JournalError as exc:
            raise InputError(self.folder, f"cannot be monitored: {exc}") from exc
        self.looked_us = now_us
        self.took_s = time.monotonic() - began_s

    @property
    def drifted(self) -> bool:
        """Tell whether any window that was judged drifted."""
        return any(sum(one.drifted.values()) for one in self.streams.values())

    def _new_links(self) -> list[Link]:
        new = []
        for link, found in links_after(self.folder, len(self._links)):
            if self._links and link.previous != self._hash:
                problem = f"link {link.number} does not follow the one before"
                raise JournalError(self.folder, problem)
            self._links.append(link)
            self._hash = found
            new.append(link)
        if not self._links:
            raise JournalError(self.folder, "its first link is missing")
        self.product = self._links[0].product
        removed = removed_links(self._links)
        return [link for link in new if link.number not in removed]

    def _read(self, link: Link) -> None:
        table = read_segment(self.folder, link)
        if table is None:
            return
        self.decided_us = max(self.decided_us, link.until_us)
        for name, own in by_release(table):
            stream = self.streams.get(name)
            if stream is None:
                stream = self.streams[name] = self._stream(name)
            stream.add(rows_of(own, stream.reference))

    def _stream(self, name: str) -> Stream:
        known = known_release(
            name,
            folder=self.folder,
            links=self._links,
            repository=self._repository,
            product=self.product,
        )
        if known.spec is not None:
            self.spec = known.spec
        return Stream(
            name,
            reference_of(known.files, known.spec),
            size=self.options.window,
            limits=self.options.limits,
        )

    @property
    def lag_us(self) -> int:
        """Age at which decisions are judged by their labels."""
        entities = self.spec.entities if self.spec is not None else ()
        return self.options.lag_us or default_lag_us(one.delay_us for one in entities)

    def judge(self, now_us: int, *, more: pl.DataFrame | None = None) -> None:
        """
        Judge by labels, if any of them or a day is new: this reads all decisions.

        Args:
            now_us: The time.
            more: Labels beside those that are sealed, laid out as they are.

        Raises:
            InputError: The journal is damaged.
        """
        try:
            self._judge(now_us, more)
        except JournalError as exc:
            raise InputError(self.folder, f"cannot be monitored: {exc}") from exc

    def _judge(self, now_us: int, more: pl.DataFrame | None) -> None:
        removed = removed_links(self._links)
        alive = [one for one in self._links if one.number not in removed]
        sealed = [one for one in alive if one.kind == "labels"]
        state = (
            now_us // _DAY_US,
            [one.number for one in sealed],
            None if more is None else more.hash_rows(seed=1).sum(),
        )
        if state == self._accuracy_of or (not sealed and more is None):
            return
        tables = [read_table(self.folder, link) for link in sealed]
        if more is not None:
            tables.append(more)
        labels = known_by(pl.concat(tables), now_us)
        rule = Rule(
            as_of_us=now_us,
            lag_us=self.lag_us,
            legitimate=self.options.legitimate,
        )
        found = Accuracy(rule)
        for link in alive:
            if link.kind != "segment" or link.until_us < self.options.since_us:
                continue
            if path_of(self.folder, link.table).exists():
                found.add(read_table(self.folder, link, columns=COLUMNS), labels)
        self.accuracy = found
        self._accuracy_of = state

"""
Look at one product's journal, again and again; each segment is read once.

What cannot be read is told and tried again at the next look; what comes after it is
read meanwhile. Nothing is kept of a link that was read, so memory does not grow with
the chain.
"""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
import polars as pl

from tollgate.audit.links import Link, link_paths, path_of, read_links, removed_links
from tollgate.audit.tables import read_table
from tollgate.errors import InputError, JournalError
from tollgate.features.spec import FeatureSpec
from tollgate.monitor.accuracy import COLUMNS, Accuracy, Rule, default_lag_us, known_by
from tollgate.monitor.following import Following
from tollgate.monitor.judging import Limits
from tollgate.monitor.reading import by_release, known_release, read_segment, rows_of
from tollgate.monitor.training import reference_of
from tollgate.monitor.windows import Stream

RELEASES = 10  # that decided last; of older ones nothing is kept
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
        streams: By release, of those that decided last.
        unread: Segments that could not be read at the last look, by number, and why.
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
            raise InputError(
                folder, "holds no journal; `tollgate journal run` makes one"
            )
        self.folder = folder
        self.options = options
        self.product = ""
        self.streams: dict[str, Stream] = {}
        self.accuracy: Accuracy | None = None
        self.decided_us = 0
        self.looked_us = 0
        self.took_s = 0.0
        self.unread: dict[int, str] = {}
        self._repository = repository
        self._chain = Following(folder, since_us=options.since_us)
        self.spec: FeatureSpec | None = None
        self._accuracy_of: tuple[object, ...] = ()
        self._drifted = False  # one of which nothing else is kept

    def look(self, now_us: int) -> None:
        """
        Read what was sealed since the last look, and judge what is complete.

        Args:
            now_us: The time.

        Raises:
            InputError: Its chain is damaged, is away, or is another one than before.
        """
        began_s = time.monotonic()
        try:
            try:
                self._chain.follow()
            finally:  # what comes before a link that is damaged counts
                self.product = self._chain.product
                self._read_waiting()
            for stream in self.streams.values():
                stream.settle(now_us)
        except (JournalError, OSError) as exc:
            raise InputError(self.folder, f"cannot be monitored: {exc}") from exc
        self.looked_us = now_us
        self.took_s = time.monotonic() - began_s

    def require_read(self) -> None:
        """
        Demand that everything was read.

        Raises:
            InputError: A segment could not be.
        """
        for problem in self.unread.values():
            raise InputError(self.folder, f"cannot be monitored: {problem}")

    @property
    def drifted(self) -> bool:
        """Tell whether any window that was judged drifted, of any release."""
        return self._drifted or any(map(_drifted, self.streams.values()))

    @property
    def deciding(self) -> dict[str, Stream]:
        """The releases that decide: whose last decision is within a day of any's."""
        newest_us = max((one.mix.last_us for one in self.streams.values()), default=0)
        return {
            name: one
            for name, one in self.streams.items()
            if one.mix.last_us > newest_us - _DAY_US
        }

    def _read_waiting(self) -> None:
        self.unread = {}
        for number, link in list(self._chain.waiting.items()):
            try:
                self._read(link)
            except (JournalError, InputError, OSError) as exc:
                self.unread[number] = str(exc)
            except pl.exceptions.PolarsError as exc:
                problem = f"is no segment: {str(exc).splitlines()[0]}"
                self.unread[number] = str(JournalError(link.table, problem))
            else:
                self._chain.waiting.pop(number, None)

    def _read(self, link: Link) -> None:
        table = read_segment(self.folder, link)
        if table is None:
            self._chain.follow()
            if link.number in self._chain.waiting:  # retention did not remove it
                raise JournalError(self.folder / link.table, "is gone")
            return
        # What may fail comes first: a segment is counted as a whole or not at all.
        counted = []
        for name, own in by_release(table):
            stream = self.streams.get(name) or self._stream(name)
            counted.append((stream, rows_of(own, stream.reference)))
        for stream, rows in counted:
            self.streams[stream.release] = stream
            stream.add(rows)
        self.decided_us = max(self.decided_us, link.until_us)
        while len(self.streams) > RELEASES:
            oldest = min(self.streams.values(), key=lambda one: one.mix.last_us)
            self._drifted |= _drifted(self.streams.pop(oldest.release))

    def _stream(self, name: str) -> Stream:
        known = known_release(
            name,
            folder=self.folder,
            links=self._chain.releases,
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
        Judge by labels, if any of them, a day or what can be read is new: this reads
        all decisions.

        Args:
            now_us: The time.
            more: Labels beside those that are sealed, laid out as they are.

        Raises:
            InputError: The journal is damaged.
        """
        try:
            self._judge(now_us, more)
        except (JournalError, OSError) as exc:
            raise InputError(self.folder, f"cannot be monitored: {exc}") from exc

    def _judge(self, now_us: int, more: pl.DataFrame | None) -> None:
        state = (
            now_us // _DAY_US,
            self._chain.turns,
            tuple(self.unread),
            None if more is None else more.hash_rows(seed=1).sum(),
        )
        if state == self._accuracy_of:
            return
        links = [link for link, _ in read_links(self.folder)]
        removed = removed_links(links)
        alive = [one for one in links if one.number not in removed]
        sealed = [one for one in alive if one.kind == "labels"]
        if not sealed and more is None:
            self._accuracy_of = state
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
            if link.number in self.unread:
                continue
            if path_of(self.folder, link.table).exists():
                found.add(read_table(self.folder, link, columns=COLUMNS), labels)
        self.accuracy = found
        self._accuracy_of = state


def _drifted(stream: Stream) -> bool:
    return any(stream.drifted.values())

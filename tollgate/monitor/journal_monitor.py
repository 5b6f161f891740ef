"""
Monitor one product's journal in repeated passes that read each segment once.

A segment that cannot be read is reported and tried again in the next pass; later
segments are read meanwhile. Links are not stored after they are read, so memory does
not grow with the chain.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from tollgate.audit.chain.links import (
    Link,
    link_name,
    link_paths,
    links_after,
    no_journal,
    path_of,
    read_links,
    removed_links,
)
from tollgate.audit.releases.archive import read_release_files
from tollgate.audit.releases.archived_release import (
    NAME,
    outcomes_of,
    read_archived_release,
    spec_of,
)
from tollgate.audit.releases.record_rows import (
    DECIDED,
    DETAILS,
    EVENT,
    FEATURE,
    NO_LEVEL,
    PROBABILITY,
    SUBJECT,
    levels_of,
    read_table,
)
from tollgate.audit.worker.pseudonyms import TRANSACTION
from tollgate.errors import InputError, JournalError
from tollgate.features.spec.feature_spec import FeatureSpec
from tollgate.monitor.accuracy import (
    COLUMNS,
    DailyAccuracy,
    LabelRule,
    default_lag_us,
    known_by,
)
from tollgate.monitor.decision_windows import ReleaseWindows
from tollgate.monitor.drift import DriftLimits
from tollgate.monitor.shown_lists import SCORE, ListReader, list_reader
from tollgate.monitor.tallies import CLUSTERS, MonitoredRows
from tollgate.monitor.training_baseline import Reference, reference_of
from tollgate.schema import DEFAULT_OUTCOMES, Degraded, Outcomes

# Follow the chain of a journal as it grows, without storing links already handled.


class ChainReader:
    """
    Reads the new links of a journal.

    Args:
        since_us: Segments whose newest time is before this are left out, µs since the
            epoch.

    Attributes:
        product: Product of the journal; empty before the first link is read.
        pending: Links of unread segments, by number; the reader of a segment removes
            its link.
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


# Read a sealed journal segment by segment, and prepare its rows for counting.

# With one of these bits, the vector or the score differs from normal operation. That is
# an operational problem, not a change in the customers' behaviour. A new customer, a
# field that was not sent and a table without a row are normal inputs.
APART = (
    Degraded.STORE_UNAVAILABLE
    | Degraded.LAST_KNOWN_VECTOR
    | Degraded.EVENT_TOO_LATE
    | Degraded.WINDOW_OVERFLOW
    | Degraded.STATE_CORRUPT
    | Degraded.MODEL_OUTPUT
    | Degraded.ESSENTIAL_MISSING
    | Degraded.FEED_STALE
    | Degraded.HOOK_FAILED
)
_PLAIN = ("release", "spec", "decision", "degraded", "consent", DECIDED, EVENT)
_SCORE = f"{PROBABILITY}1"  # training's score is the model's P(1)


class KnownRelease(msgspec.Struct, frozen=True, eq=False):
    """Files of a release, and its feature spec if it can be read."""

    files: Mapping[str, bytes]
    spec: FeatureSpec | None

    @property
    def outcomes(self) -> Outcomes:
        """Return the words of its decisions; the default ones if it has no policy."""
        return outcomes_of(self.files) or DEFAULT_OUTCOMES


def known_release(
    name: str,
    *,
    folder: Path,
    links: list[Link],
    repository: Path | None,
    product: str,
) -> KnownRelease:
    """
    Find the files of a release: in the journal, otherwise in the repository.

    Raises:
        JournalError: An archived file cannot be read.
    """
    archives = [
        one for one in links if one.kind == "release" and one.facts[NAME] == name
    ]
    if archives:
        found = read_archived_release(folder, archives[-1])
        return KnownRelease(found.files, found.spec)
    files = read_release_files(repository, name, product=product) if repository else {}
    return KnownRelease(files, spec_of(files))


def read_segment(folder: Path, link: Link) -> pl.DataFrame | None:
    """
    Read a segment, ordered by decision time; None if it was removed meanwhile.

    Raises:
        JournalError: The file exists and cannot be read.
    """
    names = [name for name, _ in link.columns]
    wanted = [
        *(name for name in (*_PLAIN, TRANSACTION) if name in names),
        *(name for name in names if name.startswith((FEATURE, PROBABILITY))),
        *[name for name in names if name.startswith(SUBJECT)][:1],
        *((SCORE, DETAILS) if DETAILS in names else ()),
    ]
    if not path_of(folder, link.table).exists():
        return None
    table = read_table(folder, link, columns=wanted)
    missing = [name for name in _PLAIN if name not in table.columns]
    if missing:
        raise InputError(folder / link.table, "is not in the segment", where=missing[0])
    return table.sort(DECIDED, maintain_order=True)


def by_release(table: pl.DataFrame) -> Iterator[tuple[str, pl.DataFrame]]:
    """Split a segment by release."""
    for (name,), own in table.group_by("release", maintain_order=True):
        yield str(name), own


def rows_of(
    own: pl.DataFrame,
    reference: Reference | None,
    *,
    outcomes: Outcomes,
    source: str,
    reader: ListReader | None = None,
) -> MonitoredRows:
    """
    Prepare one release's decisions for counting against a reference, if any.

    Args:
        outcomes: Words of the release's decisions.
        source: Name of the segment, for errors.
        reader: Reads the lists of a product that ranks; None for another product.

    Raises:
        InputError: A decision is none of these words.
    """
    consent = own["consent"].to_numpy()
    degraded = own["degraded"].to_numpy().astype(np.uint32)
    lists = None
    if reader is not None and DETAILS in own.columns:
        values, lists, fits = reader.read(own)
    else:
        values, fits = _values(own, reference)
    valid = consent & ((degraded & np.uint32(APART)) == 0) & fits
    event_us = own[EVENT].dt.epoch("us").fill_null(0).to_numpy()
    decision = levels_of(own["decision"], outcomes)
    unknown = own["decision"].filter(pl.Series(decision == NO_LEVEL))
    if len(unknown):
        problem = f"{unknown[0]!r} is none of {', '.join(outcomes.words)}"
        raise InputError(source, problem, where="column decision")
    return MonitoredRows(
        values=values,
        cluster=_clusters(own),
        valid=valid,
        decision=decision,
        degraded=degraded,
        withheld=~consent,
        foreign=consent & ~fits,
        confidence=_confidence(own, lists=lists is not None),
        decided_us=own[DECIDED].dt.epoch("us").to_numpy(),
        event_us=event_us,
        lists=lists,
    )


def _values(
    own: pl.DataFrame, reference: Reference | None
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.bool_]]:
    """Return the values of a reference's columns, and which rows have the columns."""
    columns = reference.columns if reference is not None else ()
    names = [_SCORE if one.kind == "score" else FEATURE + one.name for one in columns]
    fits = all(name in own.columns for name in names)
    values = np.full((len(own), len(columns)), np.nan, np.float32)
    if fits:
        for at, name in enumerate(names):
            values[:, at] = own[name].fill_null(np.nan).to_numpy()
    return values, np.full(len(own), fits)


def _clusters(own: pl.DataFrame) -> npt.NDArray[np.int64]:
    """Assign customers to clusters by their pseudonyms, which are random hex digits."""
    subjects = [name for name in own.columns if name.startswith(SUBJECT)]
    name = subjects[0] if subjects else TRANSACTION
    number = own[name].str.slice(0, 4).str.to_integer(base=16, strict=False)
    clusters: npt.NDArray[np.int64] = (number.fill_null(0) % CLUSTERS).to_numpy()
    return clusters.astype(np.int64)


def _confidence(own: pl.DataFrame, *, lists: bool) -> npt.NDArray[np.float32]:
    """Return the largest probability; NaN for none, as in lists."""
    names = [name for name in own.columns if name.startswith(PROBABILITY) and not lists]
    if not names:
        return np.full(len(own), np.nan, np.float32)
    largest = own.select(pl.max_horizontal(names)).to_series().fill_null(np.nan)
    return np.asarray(largest.to_numpy(), np.float32)


RELEASES = 10  # monitored: those that decided last
_DAY_US = 86_400_000_000


class MonitorOptions(msgspec.Struct, frozen=True):
    """
    Options of the monitor of a journal.

    Attributes:
        window: Number of valid decisions in a window.
        since_us: Segments whose newest decision is before this are not read, µs since
            the epoch.
        lag_us: Age at which decisions are judged by their labels, µs; 0 for the label
            delay of features.yaml.
        legitimate: True if a decision that is unlabelled at that age counts as
            legitimate.
    """

    window: int = 2_500
    limits: DriftLimits = DriftLimits()
    since_us: int = 0
    lag_us: int = 0
    legitimate: bool = False


class ProductMonitor:
    """
    Monitor of the journal of one product.

    Args:
        repository: Model repository, for releases that the journal did not archive;
            None for none.

    Attributes:
        streams: Decisions by release, for the releases that decided last.
        unread: Segments that the last look could not read, by number, with the cause.
        spec: Feature spec of the newest release whose spec is known.
        accuracy: Result of the last look; None before labels were read.
        decided_us: Time of the newest decision read, µs since the epoch; 0 for none.
        looked_us: Start of the last look, µs since the epoch; 0 before one.
        took_s: Duration of the last look in seconds.

    Raises:
        InputError: The folder holds no journal.
    """

    def __init__(
        self, folder: Path, *, repository: Path | None, options: MonitorOptions
    ) -> None:
        if not link_paths(folder):
            raise no_journal(folder)
        self.folder = folder
        self.options = options
        self.product = ""
        self.streams: dict[str, ReleaseWindows] = {}
        self.accuracy: DailyAccuracy | None = None
        self.decided_us = 0
        self.looked_us = 0
        self.took_s = 0.0
        self.unread: dict[int, str] = {}
        self._repository = repository
        self._chain = ChainReader(folder, since_us=options.since_us)
        self.spec: FeatureSpec | None = None
        self._accuracy_of: tuple[object, ...] = ()
        self._drifted = False  # drift of a release that is not monitored any more

    def look(self, now_us: int) -> None:
        """
        Read the segments sealed since the last look, and judge complete windows.

        Raises:
            InputError: The chain is damaged, missing, or a different one than before.
        """
        began_s = time.monotonic()
        try:
            try:
                self._chain.follow()
            finally:  # segments before a damaged link count
                self.product = self._chain.product
                self._read_pending()
            for stream in self.streams.values():
                stream.settle(now_us)
        except (JournalError, OSError) as exc:
            raise InputError(self.folder, f"cannot be monitored: {exc}") from exc
        self.looked_us = now_us
        self.took_s = time.monotonic() - began_s

    def require_read(self) -> None:
        """
        Check that the last look read every segment.

        Raises:
            InputError: A segment could not be read.
        """
        for problem in self.unread.values():
            raise InputError(self.folder, f"cannot be monitored: {problem}")

    @property
    def drifted(self) -> bool:
        """Return whether any judged window of any release drifted."""
        return self._drifted or any(map(_drifted, self.streams.values()))

    @property
    def deciding(self) -> dict[str, ReleaseWindows]:
        """Return the releases whose last decision is within a day of the newest one."""
        newest_us = max((one.mix.last_us for one in self.streams.values()), default=0)
        return {
            name: one
            for name, one in self.streams.items()
            if one.mix.last_us > newest_us - _DAY_US
        }

    def _read_pending(self) -> None:
        self.unread = {}
        for number, link in list(self._chain.pending.items()):
            try:
                self._read(link)
            except (JournalError, InputError, OSError) as exc:
                self.unread[number] = str(exc)
            except pl.exceptions.PolarsError as exc:
                problem = f"is not a segment: {str(exc).splitlines()[0]}"
                self.unread[number] = str(JournalError(link.table, problem))
            else:
                self._chain.pending.pop(number, None)

    def _read(self, link: Link) -> None:
        table = read_segment(self.folder, link)
        if table is None:
            self._chain.follow()
            if link.number in self._chain.pending:  # not removed by retention
                raise JournalError(self.folder / link.table, "is gone")
            return
        # Do first what may fail: a segment is counted completely or not at all.
        counted = []
        for name, own in by_release(table):
            stream = self.streams.get(name) or self._stream(name)
            rows = rows_of(
                own,
                stream.reference,
                outcomes=stream.outcomes,
                source=link.table,
                reader=stream.reader,
            )
            counted.append((stream, rows))
        for stream, rows in counted:
            self.streams[stream.release] = stream
            stream.add(rows)
        self.decided_us = max(self.decided_us, link.until_us)
        while len(self.streams) > RELEASES:
            oldest = min(self.streams.values(), key=lambda one: one.mix.last_us)
            self._drifted |= _drifted(self.streams.pop(oldest.release))

    def _known(self, name: str) -> KnownRelease:
        return known_release(
            name,
            folder=self.folder,
            links=self._chain.releases,
            repository=self._repository,
            product=self.product,
        )

    def _outcomes(self, name: str) -> Outcomes:
        """Return the words of a release's decisions, monitored now or before."""
        stream = self.streams.get(name)
        return stream.outcomes if stream else self._known(name).outcomes

    def _stream(self, name: str) -> ReleaseWindows:
        known = self._known(name)
        if known.spec is not None:
            self.spec = known.spec
        reader = list_reader(known.files, known.spec)
        reference: Reference | str
        if isinstance(reader, ListReader):
            reference = reader.reference
        else:
            reference = reader or reference_of(known.files, known.spec)
        return ReleaseWindows(
            name,
            reference,
            size=self.options.window,
            limits=self.options.limits,
            outcomes=known.outcomes,
            reader=reader if isinstance(reader, ListReader) else None,
        )

    @property
    def lag_us(self) -> int:
        """Return the age at which decisions are judged by their labels, µs."""
        entities = self.spec.entities if self.spec is not None else ()
        return self.options.lag_us or default_lag_us(one.delay_us for one in entities)

    def judge(self, now_us: int, *, more: pl.DataFrame | None = None) -> None:
        """
        Judge decisions by their labels, if labels, the day or the readable segments
        changed.

        This reads all decisions.

        Args:
            now_us: Current time, µs since the epoch.
            more: Labels in addition to the sealed ones, in the same layout.

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
            self._chain.label_changes,
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
        rule = LabelRule(
            as_of_us=now_us,
            lag_us=self.lag_us,
            legitimate=self.options.legitimate,
        )
        found = DailyAccuracy(rule, functools.cache(self._outcomes))
        for link in alive:
            if link.kind != "segment" or link.until_us < self.options.since_us:
                continue
            if link.number in self.unread:
                continue
            if path_of(self.folder, link.table).exists():
                found.add(read_table(self.folder, link, columns=COLUMNS), labels)
        self.accuracy = found
        self._accuracy_of = state


def _drifted(stream: ReleaseWindows) -> bool:
    return any(stream.drifted.values())


class Journals:
    """
    Monitors of several journals.

    Args:
        named: Folders of the journals; empty for all in `home`.
        home: Folder with one journal per product.

    Attributes:
        monitors: Monitors of the journals that exist, in the order in which they were
            found.
    """

    def __init__(
        self,
        named: Sequence[Path],
        *,
        home: Path,
        repository: Path | None,
        options: MonitorOptions,
    ) -> None:
        self.monitors: list[ProductMonitor] = []
        self._named = tuple(dict.fromkeys(named))
        self._home = home
        self._repository = repository
        self._options = options

    def open(self) -> None:
        """
        Start to monitor the journals that were created since the last call.

        Raises:
            InputError: A named journal does not exist yet, or there is none; the others
                are opened.
        """
        known = {one.folder for one in self.monitors}
        missing = []
        for folder in self._named or self._found():
            if folder in known:
                continue
            if link_paths(folder):
                self.monitors.append(
                    ProductMonitor(
                        folder, repository=self._repository, options=self._options
                    )
                )
            else:
                missing.append(folder)
        if missing:
            raise no_journal(missing[0])
        if not self.monitors:
            raise no_journal(self._home)

    def _found(self) -> list[Path]:
        try:
            there = sorted(self._home.iterdir())
        except OSError:
            return []
        return [one for one in there if one.is_dir() and link_paths(one)]

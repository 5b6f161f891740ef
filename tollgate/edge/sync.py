"""
Exchange bundles and records between a device and the centre, over an object store.

The device pulls the bundle that its group's signed file names, and pushes the sealed
segments of its journal and its aggregates. `tollgate edge run` watches the file that
names the active bundle, and decides by it. A bundle or a group file that is refused
changes nothing: the device goes on with the active one.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import math
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from tollgate.edge.aggregates import Aggregate, count, merge
from tollgate.edge.bundle import MOST_BYTES, read_bundle, read_public_key
from tollgate.edge.device_store import JOURNAL
from tollgate.edge.group import (
    BUNDLES,
    DEVICES,
    GROUP_FILE,
    BundleReference,
    Group,
    decode_group,
    open_objects,
)
from tollgate.errors import (
    ArgumentError,
    InputError,
    JournalError,
    ObjectStoreError,
    SetupError,
    TollgateError,
    os_errors,
)
from tollgate.journal.decision_record import decode_chunk
from tollgate.journal.journal_spool import UNREADABLE
from tollgate.policy.policy_document import read_document
from tollgate.repair.spool_segments import SUFFIX, read_segment, segments
from tollgate.repository.atomic import replace_file
from tollgate.repository.field_types import Name
from tollgate.schema import DEFAULT_OUTCOMES
from tollgate.server.processes.state_lock import FolderLock, make_private_folder
from tollgate.worker import backoff_s

log = logging.getLogger(__name__)

FLEET = "fleet"  # of a state folder
ACTIVE_FILE, REPORT_FILE, OUTGOING = "active.json", "report.json", "outgoing"
DIGEST_DIGITS = 16  # of the SHA-256 in the name of a pushed segment
_OWNER_ONLY = 0o600
_FIRST_RETRY_S, _MOST_RETRY_S = 5.0, 600.0
_REPORT_EVERY_S = 3_600.0


class ActiveBundle(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """
    Name the bundle that a device shall run.

    Attributes:
        device: Name of the device in its group.
        group: Name of its group.
        signed: The group's signed file, which names the bundle.
        outcomes: Words of the product, by level.
    """

    device: Name
    group: Name
    signed: str
    outcomes: tuple[str, ...]


class Report(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """
    Describe a device to the centre.

    Attributes:
        at_s: When it was written, seconds since the epoch.
        release: Release of the active bundle; empty for none.
        group_number: Number of the group file that named it; 0 for none.
        refused: Why the latest group file or its bundle was refused; empty if it is
            active.
        counted: By writer, the number after the last record in `aggregates`.
    """

    device: str
    at_s: int = 0
    release: str = ""
    group_number: int = 0
    refused: str = ""
    counted: dict[str, int] = {}
    aggregates: list[Aggregate] = []


def read_active(folder: Path, key: Path) -> tuple[Path, Group, BundleReference] | None:
    """
    Return the active bundle's file, group and reference; None before the first one.

    Args:
        folder: State folder of the device.
        key: The public key of those who sign bundles; PEM.

    Raises:
        InputError: The file is damaged, or not signed with that key.
    """
    path = folder / FLEET / ACTIVE_FILE
    with os_errors(InputError, path, "cannot be read"):
        try:
            raw = path.read_bytes()
        except FileNotFoundError:
            return None
    try:
        active = msgspec.json.decode(raw, type=ActiveBundle)
    except msgspec.MsgspecError as error:
        raise InputError(path, f"is damaged: {error}") from error
    group = decode_group(
        active.signed.encode(), read_public_key(key), source=path, name=active.group
    )
    reference = group.bundle_for(active.device)
    return bundle_path(folder, reference), group, reference


def bundle_path(folder: Path, reference: BundleReference) -> Path:
    """Return the file of a bundle in a state folder."""
    return folder / FLEET / f"{reference.sha256}.bundle"


class Sync:
    """
    Exchange bundles and records for one device; a context manager.

    Args:
        url: Address of the object store: a folder, or such as s3://bucket/edge.
        group: Group of the device.
        device: Name of the device in its group.
        folder: State folder of the device; created if missing.
        key: The public key of those who sign bundles; PEM.

    Raises:
        InputError: A name, the key or a file of the folder cannot be used.
        SetupError: Another process syncs the folder, or it cannot be written.
    """

    def __init__(
        self, url: str, *, group: str, device: str, folder: Path, key: Path
    ) -> None:
        for argument, name in (("group", group), ("device", device)):
            try:
                msgspec.convert(name, Name)
            except msgspec.ValidationError as error:
                problem = f"{name!r} is not 1 to 64 letters, digits, dots, _ and -"
                raise ArgumentError(argument, problem) from error
        self._public_key = read_public_key(key)
        self._key = key
        self._group, self._device, self._folder = group, device, folder
        self._objects = open_objects(url)
        self._fleet = folder / FLEET
        make_private_folder(folder)
        make_private_folder(self._fleet)
        self._lock = FolderLock(self._fleet, name="sync.lock", patience_s=0)
        self._stamp, self._pull_due_s = "", 0.0  # of the group file
        self._refusals = self._push_failures = 0
        self._push_due_s = 0.0
        self._answered = True
        self._place = f"{group}/{DEVICES}/{device}"
        self._aggregated: set[tuple[Path, int]] = set()  # segments, with their size
        self._pushed = b""  # the report without its time
        self._pushed_s = 0
        with contextlib.ExitStack() as stack:
            stack.callback(self._lock.release)
            self._report = self._read_report()
            active = self._read_active()
            if active is not None:
                self._report.release = active[2].release
                self._report.group_number = active[1].number
            stack.pop_all()

    def __enter__(self) -> Sync:
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def step(self) -> bool:
        """
        Pull, then push; return whether both worked.

        A failure is logged, and tried again at a later step. A push that failed waits
        5 s, then twice as long after each failure in a row, up to 10 minutes; it is
        tried at once when the store answers again. A group file that is refused is read
        again after the same times, and at once when it was changed.
        """
        answers = self._try_pull()
        if answers and not self._answered:
            self._push_due_s = 0.0
        self._answered = answers
        pushes = self._push_failures == 0
        if time.monotonic() >= self._push_due_s:
            pushes = self._try_push()
        return answers and pushes and not self._report.refused

    def _try_pull(self) -> bool:
        """Pull; return whether the store answered."""
        try:
            self.pull()
        except ObjectStoreError as error:
            log.warning("not pulled: %s", error)
            return False
        except TollgateError as error:
            if self._report.refused != str(error):
                log.error("refused: %s", error)
            self._report.refused = str(error)
            self._refusals += 1
            self._pull_due_s = time.monotonic() + _pause_s(self._refusals)
        return True

    def _try_push(self) -> bool:
        try:
            self.aggregate()
            self.push()
        except TollgateError as error:
            self._push_failures += 1
            pause_s = _pause_s(self._push_failures)
            self._push_due_s = time.monotonic() + pause_s
            log.warning("not pushed, next try in %.0f s: %s", pause_s, error)
            return False
        self._push_failures = 0
        return True

    def pull(self) -> bool:
        """
        Activate the bundle that the group names; return whether it is another one.

        Raises:
            InputError: The group file or the bundle is refused; the active one stays.
            SetupError: The state folder cannot be written.
            ObjectStoreError: The store does not answer, or has no such group.
        """
        path = f"{self._group}/{GROUP_FILE}"
        source = self._objects.name(path)
        stamp = self._objects.stamp(path)
        if stamp and stamp == self._stamp and time.monotonic() < self._pull_due_s:
            return False
        found = self._objects.read(path)
        if found is None:
            raise self._no_group()
        raw, self._stamp = found
        self._pull_due_s = 0.0
        group = decode_group(raw, self._public_key, source=source, name=self._group)
        active = self._read_active()
        own = active[2] if active else None
        if active is not None:
            _require_newer(group, active[1], source=source)
        wanted = group.bundle_for(self._device)
        with _disk_errors(self._fleet):
            if wanted != own or not _is_whole(self._folder, wanted):
                self._fetch(wanted, group, own=own)
            self._activate(raw.decode(), wanted)
        self._report.release, self._report.group_number = wanted.release, group.number
        self._report.refused, self._refusals = "", 0
        self._pull_due_s = math.inf
        if wanted != own:
            log.warning("%s is active", wanted.release)
        self._remove_bundles([wanted, own or wanted])
        return wanted != own

    def _fetch(
        self, wanted: BundleReference, group: Group, *, own: BundleReference | None
    ) -> None:
        """Download a bundle, and verify that this device can decide by it."""
        name = f"{self._group}/{BUNDLES}/{wanted.sha256}.bundle"
        source = self._objects.name(name)
        new = self._fleet / f".{wanted.sha256}.new"
        try:
            found = self._objects.fetch(name, new, most_bytes=MOST_BYTES)
            if found is None:
                raise InputError(source, "is missing: the group file names it")
            if found != wanted.sha256:
                problem = (
                    "is damaged, or only a part: it has another SHA-256 than the "
                    "group file names"
                )
                raise InputError(source, problem)
            self._verify(new, wanted, group, own=own, source=source)
            with new.open("rb") as file:
                os.fsync(file.fileno())
            new.rename(bundle_path(self._folder, wanted))
        finally:
            new.unlink(missing_ok=True)

    def _verify(
        self,
        path: Path,
        wanted: BundleReference,
        group: Group,
        *,
        own: BundleReference | None,
        source: str,
    ) -> None:
        # Its libraries take memory, and few polls bring a bundle.
        from tollgate.edge.device import Device

        try:
            bundle = read_bundle(path, key=self._public_key, product=group.product)
            manifest = bundle.manifest
            if (manifest.release, manifest.sequence) != (
                wanted.release,
                wanted.sequence,
            ):
                problem = f"is {manifest.release}, the group file names "
                raise InputError(path, problem + wanted.release)
            if own and wanted.sequence < own.sequence > group.withdrawn:
                problem = (
                    f"has sequence {wanted.sequence}, this device has {own.sequence}: "
                    "it is older, and no rollback orders it"
                )
                raise InputError(path, problem)
            with tempfile.TemporaryDirectory(dir=self._fleet, prefix=".try-") as state:
                Device.open(path, key=self._key, state=state).close()
        except (SetupError, OSError):
            raise
        except InputError as error:
            if error.source == str(path):
                raise InputError(source, error.problem, where=error.where) from error
            raise InputError(source, str(error)) from error
        except Exception as error:
            problem = f"this device cannot decide by it: {type(error).__name__}"
            raise InputError(source, problem) from error

    def _activate(self, signed: str, wanted: BundleReference) -> None:
        bundle = read_bundle(bundle_path(self._folder, wanted), key=self._public_key)
        with tempfile.TemporaryDirectory(dir=self._fleet, prefix=".try-") as folder:
            policy = Path(folder) / "policy.yaml"
            policy.write_bytes(bundle.files[bundle.manifest.policy])
            outcomes = read_document(policy).outcomes.words
        active = ActiveBundle(self._device, self._group, signed, outcomes)
        self._write(ACTIVE_FILE, msgspec.json.encode(active))

    def _remove_bundles(self, kept: list[BundleReference]) -> None:
        names = {f"{one.sha256}.bundle" for one in kept}
        for path in self._fleet.glob("*.bundle"):
            if path.name not in names:
                path.unlink(missing_ok=True)

    def aggregate(self) -> None:
        """
        Add the records of new segments to the aggregates.

        On a full disk they are in memory until a push has freed space.

        Raises:
            InputError: The file that names the active bundle is damaged.
        """
        present = set()
        for path in self._segments():
            with contextlib.suppress(FileNotFoundError):  # the spool was full
                present.add((path, path.stat().st_size))
        fresh = sorted(present - self._aggregated)
        counted, new = dict(self._report.counted), []
        outcomes = self._outcomes() if fresh else ()
        for path, _ in fresh:
            for raw in _read_chunks(path):
                try:
                    records = decode_chunk(raw)
                except JournalError as error:  # of another version; the centre reads it
                    log.error("records of %s are not counted: %s", path, error)
                    continue
                if records.first_sequence >= counted.get(records.writer, 0):
                    end = records.first_sequence + len(records)
                    counted[records.writer] = end
                    new += count(records, outcomes)
        if new:
            self._report.counted = counted
            self._report.aggregates = merge(self._report.aggregates, new)
            try:
                self._write(REPORT_FILE, msgspec.json.encode(self._report))
            except SetupError as error:
                log.warning("the counts are written after the push: %s", error)
        self._aggregated = present

    def push(self) -> int:
        """
        Push sealed segments, and remove them here; return their number.

        A segment is moved to a folder of this process first, because a device that was
        killed may write one of the same name again, with more records. The report
        follows the segments where it changed, and once an hour.

        Raises:
            ObjectStoreError: The store does not answer, or refuses, or has no such
                group: then it is another one, or a folder that is not mounted.
            SetupError: The state folder cannot be written.
        """
        if self._objects.stamp(f"{self._group}/{GROUP_FILE}") is None:
            raise self._no_group()
        outgoing = self._fleet / OUTGOING
        make_private_folder(outgoing)
        pushed = 0
        with _disk_errors(self._fleet):
            for path in segments(outgoing):
                self._push_segment(path)
                pushed += 1
            for path in self._segments():
                claimed = outgoing / path.name
                with contextlib.suppress(FileNotFoundError):  # the spool was full
                    path.rename(claimed)
                    self._push_segment(claimed)
                    pushed += 1
        self._push_report(f"{self._place}/{REPORT_FILE}")
        return pushed

    def _push_segment(self, path: Path) -> None:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()[:DIGEST_DIGITS]
        name = f"{self._place}/{JOURNAL}/{path.stem}-{digest}{SUFFIX}"
        self._objects.write(name, path, was=self._objects.stamp(name))
        path.unlink()

    def _push_report(self, name: str) -> None:
        now_s = int(time.time())
        content = msgspec.json.encode(msgspec.structs.replace(self._report, at_s=0))
        if content == self._pushed and 0 <= now_s - self._pushed_s < _REPORT_EVERY_S:
            return
        self._report.at_s = now_s
        self._write(REPORT_FILE, msgspec.json.encode(self._report))
        self._objects.write(
            name, self._fleet / REPORT_FILE, was=self._objects.stamp(name)
        )
        self._pushed, self._pushed_s = content, now_s

    def _no_group(self) -> ObjectStoreError:
        return ObjectStoreError(self._objects.url, f"has no group {self._group}")

    def _segments(self) -> list[Path]:
        """List the sealed segments, oldest first."""
        return [
            path
            for product in sorted((self._folder / JOURNAL).glob("*/"))
            for path in segments(product)
        ]

    def _read_active(self) -> tuple[Path, Group, BundleReference] | None:
        """Return what `read_active` does; None if the file is refused."""
        try:
            return read_active(self._folder, self._key)
        except InputError as error:  # damaged, or another key is in use now
            log.warning("the active bundle is unknown: %s", error)
            return None

    def _outcomes(self) -> tuple[str, ...]:
        path = self._fleet / ACTIVE_FILE
        if not path.exists():
            return DEFAULT_OUTCOMES.words
        try:
            return msgspec.json.decode(path.read_bytes(), type=ActiveBundle).outcomes
        except msgspec.MsgspecError as error:
            raise InputError(path, f"is damaged: {error}") from error

    def _read_report(self) -> Report:
        path = self._fleet / REPORT_FILE
        try:
            report = msgspec.json.decode(path.read_bytes(), type=Report)
        except FileNotFoundError:
            return Report(device=self._device)
        except msgspec.MsgspecError as error:
            raise InputError(path, f"is damaged: {error}; remove it") from error
        if report.device != self._device:
            problem = (
                f"is of device {report.device}, not {self._device}: two devices on "
                "copies of a folder number their records alike, and the centre keeps "
                "those of one; begin with an empty folder, or remove this file if the "
                "device was renamed"
            )
            raise InputError(path, problem)
        report.refused = ""
        return report

    def _write(self, name: str, content: bytes) -> None:
        path = self._fleet / name
        with _disk_errors(path):
            replace_file(path, content, mode=_OWNER_ONLY)


@contextlib.contextmanager
def _disk_errors(path: Path) -> Iterator[None]:
    """
    Report that a path of the state folder cannot be written.

    Raises:
        SetupError: The block raised an OSError.
    """
    try:
        yield
    except OSError as error:
        raise SetupError(
            f"{path} cannot be written: {error.strerror}", remedy="free space"
        ) from error


def _is_whole(folder: Path, reference: BundleReference) -> bool:
    """Return whether the state folder has a bundle, with all of its bytes."""
    try:
        content = bundle_path(folder, reference).read_bytes()
    except OSError:
        return False
    return hashlib.sha256(content).hexdigest() == reference.sha256


def _pause_s(failures: int) -> float:
    return backoff_s(failures, first_s=_FIRST_RETRY_S, most_s=_MOST_RETRY_S)


def _require_newer(group: Group, own: Group, *, source: str) -> None:
    """
    Refuse a group that is older than the device's, or of another product.

    A device that was moved to another group takes any number of that.

    Raises:
        InputError: It is.
    """
    if group.name == own.name:
        if group.number < own.number:
            problem = f"has number {group.number}, this device had {own.number}"
            raise InputError(source, f"{problem}: it is older")
        if group.number == own.number and group != own:
            raise InputError(source, f"two group files have number {own.number}")
    if group.product != own.product:
        raise InputError(source, f"is of {group.product}, not {own.product}")


def _read_chunks(path: Path) -> list[bytes]:
    """Read a segment; nothing if it is gone, or is set aside because it is damaged."""
    try:
        return read_segment(path, path.read_bytes()).events
    except FileNotFoundError:  # the spool was full
        return []
    except InputError as error:
        log.error("a segment is set aside: %s", error)
        path.rename(path.with_name(path.name + UNREADABLE))
        return []

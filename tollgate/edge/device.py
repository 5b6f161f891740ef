"""Decide rows on a device: a bundle, a database, and no other process."""

from __future__ import annotations

import logging
import math
import shutil
import sqlite3
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy.typing as npt

from tollgate.edge.bundle import Bundle, read_bundle, read_public_key
from tollgate.edge.device_store import DeviceJournal, DeviceStore
from tollgate.edge.limits import Limits
from tollgate.edge.variants import (
    NoModel,
    VariantChoice,
    late_share,
    read_resources,
)
from tollgate.engine.decision_stage import recorded_fields
from tollgate.engine.onnx_session import OnnxSession
from tollgate.engine.scoring_model import ScoringModel
from tollgate.errors import InputError, JournalError, SetupError
from tollgate.features.spec.feature_spec import load_spec
from tollgate.features.spec.spec_definition import FeatureSpec
from tollgate.journal.journal_rows import Heading
from tollgate.journal.stored_decision_commands import StoreCommands
from tollgate.policy import Policy, load_policy
from tollgate.repository.releases.release_file import variant_release
from tollgate.schema import MAX_BATCH_ROWS
from tollgate.server.local_engine import Columns, Engine, EngineModel
from tollgate.steps.step_journal import StepJournal
from tollgate.store.id_lists import LookupList, list_key
from tollgate.worker import Worker

log = logging.getLogger(__name__)

SPOOL_BYTES = 64 << 20
SEAL_AFTER_S = 300.0
_RELEASE_FOLDER = "release"  # of the state folder
_UPKEEP_S, _READING_S = 1.0, 0.2
_SETTLE_S = 1.0  # after a change of the variant
_LATEST = 1024  # requests that a reading looks at
_MOST_REQUESTS = 64  # of one commit
_END_S = 10.0

Array = npt.NDArray[Any]


class Ask:
    """
    Rows that one caller asks to be decided, and what became of them.

    Args:
        columns, dry_run, now_us: As of `Engine.decide`.

    Attributes:
        answer: The outputs; empty after an error.
        error: Why no row was decided; None if they were.
    """

    def __init__(
        self, columns: Columns, *, dry_run: bool = False, now_us: int | None = None
    ) -> None:
        self.columns = columns
        self.dry_run = dry_run
        self.now_us = now_us
        self.rows = max((len(one) for one in columns.values()), default=0)
        self.done = False
        self.answer: dict[str, Array] = {}
        self.error: Exception | None = None


class Device:
    """
    Decide rows with the release of a bundle; a context manager, for any thread.

    A decision is on disk, in windows and journal, before it is answered. Requests that
    arrive while another one is written to disk are written together. `Device.open`
    opens one.
    """

    def __init__(
        self,
        bundle: Bundle,
        spec: FeatureSpec,
        policy: Policy,
        *,
        store: DeviceStore,
        limits: Limits,
    ) -> None:
        self.manifest = bundle.manifest
        self.spec = spec
        self._bundle = bundle
        self.policy = policy
        self._store = store
        self._limits = limits
        names = [one.name for one in bundle.manifest.variants]
        self._choice = VariantChoice(names, limits)
        # The upkeep deletes stored decisions after their window: it remembers no names.
        self._commands = StoreCommands(window_s=policy.idempotency_s, most_bytes=0)
        self.variant: str = names[0]
        self._engine = self._open_engine()
        self._waiting: deque[Ask] = deque()
        # When each of the latest requests ended, and whether it was late.
        self._latest = deque[tuple[float, bool]](maxlen=_LATEST)
        self._changed_s = -math.inf  # the last change of the variant
        self._disk_s = 0.0  # spent in commits so far
        self._closed = False
        self._workers = (
            Worker("edge-upkeep", store.keep_up, pause_s=_UPKEEP_S),
            Worker("edge-variant", self._choose_variant, pause_s=_READING_S),
        )
        for one in self._workers:
            one.start()

    @classmethod
    def open(
        cls,
        bundle: Path | str,
        *,
        key: Path | str,
        state: Path | str,
        product: str | None = None,
        spool_bytes: int = SPOOL_BYTES,
        seal_after_s: float = SEAL_AFTER_S,
        limits: Limits = Limits(),  # noqa: B008  it is frozen
        withdrawn: int = 0,
    ) -> Device:
        """
        Verify a bundle, and open its release on a state folder.

        Args:
            bundle: A file that `tollgate edge pack` wrote.
            key: The public key of those who sign bundles; PEM.
            state: Folder of windows and journal; created if missing.
            product: The product that the bundle must be of; None for any.
            spool_bytes: Most bytes of sealed segments of the journal; beyond that, the
                oldest are deleted.
            seal_after_s: Longest time before a record is sealed, seconds.
            limits: Resources; beyond them it decides by the bundle's next variant.
            withdrawn: Highest sequence that a rollback took back: a folder that had it,
                or a lower one, may go back to an older bundle.

        Raises:
            InputError: The bundle or the key cannot be used, the bundle is older than
                one that the folder had, or the folder is of another product.
            SetupError: The folder is in use, or cannot be written.
        """
        limits.check()
        path, folder = Path(bundle), Path(state)
        read = read_bundle(path, key=read_public_key(Path(key)), product=product)
        manifest = read.manifest
        with ExitStack() as stack:
            store = DeviceStore(
                folder,
                product=manifest.product,
                spool_bytes=spool_bytes,
                seal_after_s=seal_after_s,
            )
            stack.callback(store.close)
            newest = store.number("sequence")
            if manifest.sequence < newest and newest > withdrawn:
                problem = f"has sequence {manifest.sequence}, but {folder} had {newest}"
                raise InputError(path, f"{problem}: it is older")
            spec, policy = _read_rules(read, folder / _RELEASE_FOLDER)
            device = cls(read, spec, policy, store=store, limits=limits)
            stack.pop_all()
        with store.lock:
            store.set_fact("sequence", manifest.sequence)
        return device

    def __enter__(self) -> Device:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Decide the rows in flight, seal the journal, and free the state folder."""
        for one in self._workers:
            one.stop(_END_S)
        with self._store.lock:
            closed, self._closed = self._closed, True
        if not closed:
            self._engine.close()

    def decide(
        self, columns: Columns, *, dry_run: bool = False, now_us: int | None = None
    ) -> dict[str, Array]:
        """
        Decide N rows; see `Engine.decide`. All of them are decided, or none is.

        Raises:
            InputError: A column is wrong, or the device is closed.
            JournalError: The decisions could not be written to disk; nothing changed.
        """
        ask = Ask(columns, dry_run=dry_run, now_us=now_us)
        self.answer([ask])
        if ask.error is not None:
            raise ask.error
        return ask.answer

    def answer(self, asks: Sequence[Ask]) -> None:
        """Decide what several callers ask, each with its own answer or error."""
        began_s, disk_s = time.monotonic(), self._disk_s
        self._waiting.extend(asks)
        with self._store.lock:  # whoever holds it decides for all who wait
            if self._closed:
                self._waiting.clear()
                for one in asks:
                    one.error = InputError("the device", "is closed; open another one")
                return
            while not all(one.done for one in asks):
                self._decide_waiting()
            # A smaller model would not shorten the wait for the disk.
            ended_s = time.monotonic()
            took_s = ended_s - began_s - (self._disk_s - disk_s)
            late = took_s * 1e3 > self._limits.late_ms
            self._latest.extend([(ended_s, late)] * len(asks))

    def _choose_variant(self) -> None:
        """Decide by the variant that resources allow."""
        now_s = time.monotonic()
        if now_s - self._changed_s < _SETTLE_S:  # memory may be that of the one before
            return
        with self._store.lock:
            latest = list(self._latest)
        resources = read_resources(late_share(latest, now_s=now_s) * 100.0)
        name = self._choice.note(resources, now_s=now_s)
        if name != self.variant:
            log.warning("deciding by %s: %s", name, self._choice.reason)
            self.decide_by(name)
            self._latest.clear()  # they tell nothing about this variant
            self._changed_s = time.monotonic()

    def decide_by(self, name: str) -> None:
        """Decide by a variant of the bundle from now on."""
        model = self._open_model(name)
        with self._store.lock:
            self.variant = name
            self._engine.replace_model(
                model, release=self._release, journal=self._open_journal()
            )

    @property
    def _release(self) -> str:
        return variant_release(self.manifest.release, self.variant)

    def _open_model(self, name: str) -> EngineModel:
        (variant,) = (one for one in self.manifest.variants if one.name == name)
        if not variant.model:
            return NoModel(len(self.policy.labels))
        content = self._bundle.files[variant.model]
        return ScoringModel(OnnxSession(content, intra_op_threads=1))

    def _open_journal(self) -> StepJournal:
        heading = Heading(
            product=self.policy.product,
            release=self._release,
            spec_hash=self.spec.spec_hash,
            entities=self.spec.entity_names,
            fields=recorded_fields(self.policy, self.spec.field_names),
        )
        return StepJournal(DeviceJournal(heading, self._store, self._commands))

    def _open_engine(self) -> Engine:
        return Engine(
            self.spec,
            self.policy,
            self._open_model(self.variant),
            release=self._release,
            store=self._store,
            journal=self._open_journal(),
            lists=tuple(
                LookupList(one.name, one.of, list_key(self.policy.product, one.name))
                for one in self.policy.lists
            ),
        )

    def load_lists(self, lists: Iterable[tuple[bytes, Sequence[bytes]]]) -> None:
        """Add ids to lists of the policy: the key of each list, and the ids."""
        commands = [(b"SADD", key, *ids) for key, ids in lists]
        with self._store.lock, self._store.changes():
            self._store.store.flush([], extra_commands=commands)

    def _decide_waiting(self) -> None:
        """Decide what waits, and write all of it to disk at once."""
        taken: list[Ask] = []
        while self._waiting and len(taken) < _MOST_REQUESTS:
            taken.append(self._waiting.popleft())
        try:
            self._store.refresh()
            for batch in _batches(taken):
                self._decide_batch(batch)
            began_s = time.monotonic()
            self._store.commit()
            self._disk_s += time.monotonic() - began_s
        except sqlite3.Error as error:
            self._store.roll_back()
            for one in taken:
                problem = f"the decisions could not be written: {error}"
                one.error = JournalError(str(self._store.folder), problem)
        except BaseException as error:
            self._store.roll_back()
            for one in taken:
                problem = f"the decisions may be written, or not: {error!r}"
                one.error = JournalError(str(self._store.folder), problem)
            raise
        finally:
            for one in taken:
                one.done = True

    def _decide_batch(self, batch: list[Ask]) -> None:
        """
        Decide requests together; if that fails, each alone, so that errors are its own.

        Raises:
            sqlite3.Error: The whole transaction is lost.
        """
        if len(batch) > 1:
            try:
                with self._store.whole():
                    answers = self._engine.decide_together(
                        [one.columns for one in batch],
                        dry_runs=[one.dry_run for one in batch],
                    )
            except sqlite3.Error:
                raise
            except Exception as error:  # noqa: BLE001  one of them is wrong
                log.debug("deciding %d requests alone: %s", len(batch), error)
            else:
                for one, answer in zip(batch, answers, strict=True):
                    one.answer = answer
                return
        for one in batch:
            self._decide_one(one)

    def _decide_one(self, one: Ask) -> None:
        """
        Decide the rows of one request; an error is that request's alone.

        Raises:
            sqlite3.Error: The whole transaction is lost.
        """
        try:
            with self._store.whole():
                one.answer = self._engine.decide(
                    one.columns, dry_run=one.dry_run, now_us=one.now_us
                )
        except sqlite3.Error:
            raise
        except Exception as error:  # noqa: BLE001  the other callers' rows are fine
            one.error = error


def _batches(requests: Sequence[Ask]) -> Iterator[list[Ask]]:
    """Gather requests in their order, 32 rows at most; one with a time is alone."""
    batch: list[Ask] = []
    room = 0
    for one in requests:
        alone = one.now_us is not None
        if batch and (alone or one.rows > room):
            yield batch
            batch = []
        if not batch:
            room = 0 if alone else MAX_BATCH_ROWS
        batch.append(one)
        room -= one.rows
    if batch:
        yield batch


def _read_rules(bundle: Bundle, folder: Path) -> tuple[FeatureSpec, Policy]:
    """Extract a bundle, and read its features and its policy."""
    manifest = bundle.manifest
    try:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o700)
        bundle.extract(folder)
    except OSError as error:
        raise SetupError(
            f"{folder} cannot be written: {error.strerror}",
            remedy="free space, or name another folder",
        ) from error
    spec = load_spec(folder / manifest.features)
    policy = load_policy(
        folder / manifest.policy,
        feature_names=spec.feature_names,
        fields=spec.fields,
        id_names=spec.id_names,
        amount=spec.amount,
    )
    return spec, policy

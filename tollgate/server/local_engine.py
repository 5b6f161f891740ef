"""Decide rows of a released product in this process, without a server."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from tollgate.engine.decision_stage import (
    DecisionBatch,
    DecisionStage,
    recorded_fields,
)
from tollgate.engine.feature_stage import FeatureStage
from tollgate.engine.hysteresis_stage import HysteresisStage
from tollgate.engine.onnx_session import OnnxSession
from tollgate.engine.row_batches import Batch, DryShare, declared_fields
from tollgate.engine.scoring_model import ScoringModel
from tollgate.errors import InputError
from tollgate.features.assemble import exact_features
from tollgate.features.spec.spec_definition import FeatureSpec
from tollgate.journal.journal_rows import Heading
from tollgate.policy import Policy
from tollgate.repository.models.model_files import MODEL_FILE
from tollgate.repository.product_models import read_product
from tollgate.repository.releases.release_file import read_release, verify_active
from tollgate.repository.releases.rendering import lookup_lists
from tollgate.repository.releases.served_versions import load_policy_of, released_spec
from tollgate.schema import AMOUNT, EVENT_TIME, MAX_BATCH_ROWS
from tollgate.server.local_journal import open_local_journal
from tollgate.server.local_store import MEMORY, LocalStore
from tollgate.steps.step_journal import StepJournal
from tollgate.store.id_lists import LookupList
from tollgate.store.redis.cluster_store import open_store
from tollgate.store.store_opening import StoreSettings, chain_over
from tollgate.suggestions import suggest
from tollgate.validation import check_rows

STORE_DEADLINE_S = 1.0  # no payment waits for it

Array = npt.NDArray[Any]
Columns = Mapping[str, Sequence[Any] | Array]


class Engine:
    """
    Decide rows with the stages that the steps of a server run; a context manager.

    One thread at a time may use it. `Engine.open` opens one for a released product.

    Args:
        spec: Feature spec of the release.
        policy: Policy of the release.
        model: Model of the release.
        release: Name of the release.
        store: The store; closed with this object.
        journal: Gets the decisions; closed with this object. None for none.
        lists: Lists that the policy uses, in the order of their bits.
        store_deadline_s: Longest wait of a batch for the store, seconds.
    """

    def __init__(
        self,
        spec: FeatureSpec,
        policy: Policy,
        model: ScoringModel,
        *,
        release: str,
        store: LocalStore,
        journal: StepJournal | None = None,
        lists: Sequence[LookupList] = (),
        store_deadline_s: float = STORE_DEADLINE_S,
    ) -> None:
        self._spec = spec
        self._model = model
        self._labels = len(policy.labels)
        self._store = store
        self._journal = journal
        self._closed = False
        settings = StoreSettings(deadline_s=store_deadline_s)
        if not store.url:  # its values are in this process already
            settings = replace(settings, last_known_bytes=0, appends=False)
        self._chain = chain_over(spec, store.store, settings=settings, lists=lists)
        self._features = FeatureStage(spec, self._chain, share=DryShare(0.0))
        hysteresis = None
        if policy.hysteresis is not None:
            states = store.store
            if store.url:  # while a Redis is away, its prober uses that connection
                states = open_store(store.url, deadline_s=store_deadline_s)
            hysteresis = HysteresisStage(
                policy.hysteresis, product=policy.product, store=states
            )
        self._decision = DecisionStage(
            policy,
            release=release,
            spec_hash=spec.spec_hash,
            fields=spec.field_names,
            hysteresis=hysteresis,
        )

    @classmethod
    def open(
        cls,
        repository: Path | str,
        *,
        product: str,
        store: str = MEMORY,
        journal: str | Path | None = None,
        store_deadline_s: float = STORE_DEADLINE_S,
    ) -> Engine:
        """
        Open the active release of a product.

        Args:
            repository: The model repository.
            product: The ensemble.
            store: `memory` for windows that end with the engine, `memory:FILE` for
                windows that a file holds, `embedded:FOLDER` for the Redis of a state
                folder of `tollgate up`, or the URL of a Redis.
            journal: Place for the decisions: a folder, the URL of a Redis, or `store`
                for the Redis of the store. A transaction id that comes again then gets
                its first decision; without a journal, it is decided again.
            store_deadline_s: Longest wait of a batch for a Redis, seconds. If it takes
                longer, the rows are decided without it and marked as degraded.

        Raises:
            RepositoryError: The release cannot be read, or its files do not fit.
            SpecError: The features.yaml cannot be used.
            PolicyError: The policy.yaml cannot be used.
            InputError: The store is none of these, its file is damaged, the features
                need Redis, or the product ranks items.
            SetupError: The store is in use, or cannot be read or written.
            JournalError: The journal's folder cannot be written, or the store has no
                stream.
        """
        folder = Path(repository)
        release = read_release(folder, product=product)
        verify_active(folder, release)
        models = read_product(folder, product)
        spec = released_spec(release, models)
        version = {
            step: folder / step / str(number)
            for step, number in release.versions.items()
        }
        policy = load_policy_of(version[models.decision_step], spec)
        if policy.ranking is not None:
            raise InputError(product, "ranks items: only a server does that")
        model = version[models.model_step] / MODEL_FILE
        session = OnnxSession(model, intra_op_threads=1)
        with ExitStack() as stack:
            opened = LocalStore(store, spec, deadline_s=store_deadline_s)
            stack.callback(opened.close)
            records = None
            if journal is not None:
                heading = Heading(
                    product=policy.product,
                    release=release.name,
                    spec_hash=spec.spec_hash,
                    entities=spec.entity_names,
                    fields=recorded_fields(policy, spec.field_names),
                )
                records = open_local_journal(
                    str(journal), heading, store=opened, window_s=policy.idempotency_s
                )
                stack.callback(records.close)
            engine = cls(
                spec,
                policy,
                ScoringModel(session),
                release=release.name,
                store=opened,
                journal=records,
                lists=lookup_lists(policy, product),
                store_deadline_s=store_deadline_s,
            )
            stack.pop_all()
        return engine

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """
        Close the journal, save the windows to the store's file, and close the store.

        Raises:
            SetupError: The file cannot be written; the old one is untouched.
        """
        self._closed = True
        with ExitStack() as stack:
            stack.callback(self._store.close)
            stack.callback(self._chain.close)
            stack.callback(self._decision.close)
            if self._journal is not None:
                stack.callback(self._journal.close)
            self._journal = None

    def save(self) -> None:
        """
        Save the windows to the store's file now; do nothing for another store.

        Raises:
            SetupError: The file cannot be written; the old one is untouched.
        """
        self._store.save()

    def decide(
        self, columns: Columns, *, dry_run: bool = False, now_us: int | None = None
    ) -> dict[str, Array]:
        """
        Decide N rows, in batches of at most 32.

        A batch is applied to the windows as a whole, then its rows are read, as in a
        server that receives it as one request.

        Args:
            columns: Inputs of the product's requests by name, N values each: ids and
                words as text or bytes, numbers, and event times in µs since the epoch.
                A declared field may be left out, and may be None in a row.
            dry_run: True to read the store and change nothing in it.
            now_us: Time of the decisions, µs since the epoch; None for now.

        Returns:
            Outputs of the product by name, N values each: `decision`, `reason_codes`
                (joined by |), `error` and `release` as text, `score` as float32 and
                `degraded` as uint32. A bad row has an `error`, and nothing else.

        Raises:
            InputError: A column is missing, unknown, or of another type or length; or
                the engine is closed.
            JournalError: The journal did not take the decisions of a batch. Decide the
                rows again: the windows count a purchase once.
        """
        if self._closed:
            raise InputError("the engine", "is closed; open another one")
        rows = self._check(columns)
        parts = [
            self._decide(
                {
                    name: column[at : at + MAX_BATCH_ROWS]
                    for name, column in columns.items()
                },
                dry_run=dry_run,
                now_us=time.time_ns() // 1000 if now_us is None else now_us,
            )
            for at in range(0, max(rows, 1), MAX_BATCH_ROWS)
        ]
        return {
            name: _text(np.concatenate([part[name] for part in parts])[:, 0])
            for name in parts[0]
        }

    def _check(self, columns: Columns) -> int:
        """Check names and lengths of columns; return the number of rows."""
        needed = self._spec.columns
        known = (*needed, *self._spec.field_names)
        for name in needed:
            if name not in columns:
                problem = f"is missing; needed are {', '.join(needed)}"
                raise InputError("columns", problem, where=name)
        rows = len(columns[EVENT_TIME])
        for name, column in columns.items():
            if name not in known:
                problem = f"is unknown; {suggest(name, known)}"
                raise InputError("columns", problem, where=name)
            if len(column) != rows:
                problem = f"has {len(column)} rows, but {EVENT_TIME} has {rows}"
                raise InputError("columns", problem, where=name)
        return rows

    def _decide(
        self, columns: Columns, *, dry_run: bool, now_us: int
    ) -> dict[str, Array]:
        arrival_us = time.monotonic_ns() // 1000
        batch = self._checked(columns, dry_run=dry_run, now_us=now_us)
        features, context = self._features.score(batch, arrival_us=arrival_us)
        scored = DecisionBatch(
            context=context,
            features=features,
            probabilities=self._probabilities(batch, features, context),
            chosen=None,
            bounds=batch.bounds,
            began_us=time.monotonic_ns() // 1000,
        )
        decided = self._decision.decide(scored)
        marks = self._decision.marks(context)
        if self._journal is not None:
            self._journal.record(
                self._decision.recorded_context(context, decided),
                decided,
                features=scored.features,
                probabilities=self._decision.recorded_probabilities(scored, decided),
                began_us=scored.began_us,
                marks=marks,
            )
        columns = self._decision.columns(scored, decided, marks=marks)
        if len(batch.errors) == len(batch.cents):
            # A server refuses a request of bad rows alone, before a release sees it.
            columns["release"] = np.full_like(columns["release"], b"")
        return columns

    def _probabilities(self, batch: Batch, features: Array, context: Array) -> Array:
        """Run the model, unless no row needs it."""
        if not self._decision.needs_model(context, features):
            return np.zeros((len(context), self._labels), np.float32)
        vectors = features
        if self._model.exact:
            vectors = exact_features(
                self._spec, features, cents=batch.cents, fields=batch.fields
            )
        return self._model.probabilities(vectors)

    def _checked(self, columns: Columns, *, dry_run: bool, now_us: int) -> Batch:
        """Check every row."""
        spec = self._spec
        ids = {
            name: [_bytes(name, one) for one in columns[name]] for name in spec.id_names
        }
        time_us = _integers(columns[EVENT_TIME])
        amount = _numbers(AMOUNT, columns[AMOUNT]) if spec.amount else None
        checked = check_rows(ids, amount=amount, time_us=time_us, now_us=now_us)
        fields: Mapping[str, Array] = {}
        degraded: Array | int = 0
        if spec.fields:
            sent = {
                one.name: _field(one.name, columns[one.name], one.type)
                for one in spec.fields
                if one.name in columns
            }
            fields, degraded = declared_fields(
                spec, sent, rows=len(time_us), errors=checked.errors
            )
        return Batch(
            ids=ids,
            cents=checked.cents,
            time_us=time_us,
            errors=checked.errors,
            bounds=[0, len(time_us)],
            dry=[dry_run],
            degraded=degraded,
            fields=fields,
        )


def _bytes(name: str, value: object) -> bytes:
    """
    Convert an id or a word; None becomes empty.

    Raises:
        InputError: It is something else than text or bytes, or no valid text.
    """
    if isinstance(value, bytes):
        return value
    if value is not None and not isinstance(value, str):
        problem = f"{value!r:.60} is neither text nor bytes"
        raise InputError("columns", problem, where=name)
    try:
        return (value or "").encode()
    except UnicodeEncodeError as error:
        raise InputError("columns", str(error), where=name) from error


def _integers(column: Sequence[Any] | Array) -> Array:
    """
    Convert a column of times.

    Raises:
        InputError: It holds something else than integers.
    """
    found = np.asarray(column)
    if len(found) and found.dtype.kind not in "iu":
        problem = f"{found[0]!r:.60} is not an integer, µs since the epoch"
        raise InputError("columns", problem, where=EVENT_TIME)
    return found.astype(np.int64)


def _numbers(name: str, column: Sequence[Any] | Array) -> Array:
    """
    Convert a column of numbers; None becomes NaN.

    Raises:
        InputError: It holds something else.
    """
    try:
        return np.asarray(column, np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError("columns", str(error), where=name) from error


def _field(name: str, column: Sequence[Any] | Array, kind: str) -> Array:
    if kind == "number":
        return _numbers(name, column)
    words = np.empty(len(column), np.object_)
    words[:] = [_bytes(name, one) for one in column]
    return words


def _text(column: Array) -> Array:
    """Decode texts; leave numbers as they are."""
    if column.dtype != np.object_:
        return column
    words = np.empty(len(column), np.object_)
    words[:] = [one.decode() for one in column.tolist()]
    return words

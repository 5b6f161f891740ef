"""Decide rows of a released product, or rank items, in this process."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from tollgate.engine.candidate_stage import CandidateStage
from tollgate.engine.decision_stage import (
    DecisionBatch,
    DecisionStage,
    recorded_fields,
)
from tollgate.engine.feature_stage import FeatureStage
from tollgate.engine.hysteresis_stage import HysteresisStage
from tollgate.engine.onnx_session import OnnxSession
from tollgate.engine.ranking_stage import RankingBatch, RankingStage
from tollgate.engine.row_batches import (
    Batch,
    DryShare,
    count_rule,
    declared_fields,
    excluded_ids,
)
from tollgate.engine.scoring_model import ScoringModel
from tollgate.errors import InputError, RepositoryError
from tollgate.features.assemble import exact_features
from tollgate.features.spec.feature_spec import SPEC_FILE
from tollgate.features.spec.spec_definition import FeatureSpec, Field
from tollgate.journal.journal_rows import Heading
from tollgate.policy import Policy
from tollgate.ranking.catalogue import RETRIEVAL_FILE, Catalogue
from tollgate.repository.models.model_files import MODEL_FILE
from tollgate.repository.product_models import read_product
from tollgate.repository.releases.release_file import read_release, verify_active
from tollgate.repository.releases.rendering import lookup_lists
from tollgate.repository.releases.served_versions import load_policy_of, released_spec
from tollgate.schema import (
    AMOUNT,
    EVENT_TIME,
    EXCLUDE,
    LIST_OUTPUTS,
    LIST_SIZE,
    MAX_BATCH_ROWS,
    REQUEST_ID,
    TRANSACTION_ID,
    hash_words,
)
from tollgate.server.local_journal import open_local_journal
from tollgate.server.local_store import MEMORY, LocalStore
from tollgate.steps.step_journal import StepJournal
from tollgate.store.event_writer import EventWriter
from tollgate.store.id_lists import LookupList
from tollgate.store.redis.cluster_store import open_store
from tollgate.store.redis.redis_store import RedisStore
from tollgate.store.stock_view import StockView, open_stock
from tollgate.store.store_events import Purchases
from tollgate.store.store_opening import StoreSettings, chain_over
from tollgate.suggestions import suggest
from tollgate.validation import Checked, check_fields, check_rows

STORE_DEADLINE_S = 1.0  # no payment waits for it

Array = npt.NDArray[Any]
Columns = Mapping[str, Sequence[Any] | Array]


class RankingParts(msgspec.Struct, frozen=True, eq=False):
    """
    Hold what a release that ranks has besides spec, policy and model.

    Attributes:
        retrieval: Its retrieval.onnx, opened.
        catalogues: Items of its first and of its last step.
    """

    retrieval: OnnxSession
    catalogues: tuple[Catalogue, Catalogue]


class EngineStore(Protocol):
    """The store of an engine; `url` is the address of a Redis, empty without one."""

    @property
    def store(self) -> RedisStore:
        """Return the store that the stages use."""

    @property
    def url(self) -> str:
        """Return the address of the Redis."""

    def save(self) -> None:
        """Save what is not saved at each decision."""

    def close(self) -> None:
        """Save, and free the store for others."""


class EngineModel(Protocol):
    """The model of an engine; `exact` where it gets features in float64."""

    exact: bool

    def probabilities(self, features: Array) -> Array:
        """Compute probabilities, float32 [N, K], of features [N, F]."""


class Engine:
    """
    Decide rows, or rank items, with the stages that the steps of a server run.

    It is a context manager.

    One thread at a time may use it. `Engine.open` opens one for a released product.

    Args:
        spec: Feature spec of the release.
        policy: Policy of the release.
        model: Model of the release.
        ranking: Items of a release that ranks; None for one that decides.
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
        model: EngineModel,
        *,
        ranking: RankingParts | None = None,
        release: str,
        store: EngineStore,
        journal: StepJournal | None = None,
        lists: Sequence[LookupList] = (),
        store_deadline_s: float = STORE_DEADLINE_S,
    ) -> None:
        self._spec = spec
        self._policy = policy
        self._model = model
        self._store = store
        self._journal = journal
        self._closed = False
        settings = StoreSettings(deadline_s=store_deadline_s)
        if not store.url:  # its values are in this process already
            settings = replace(settings, last_known_bytes=0, appends=False)
        if ranking is not None:  # a request is no event
            settings = replace(settings, updates=False, marks=False)
        self._chain = chain_over(spec, store.store, settings=settings, lists=lists)
        self._features = FeatureStage(spec, self._chain, share=DryShare(0.0))
        self._writer = EventWriter(spec, store.store)
        self._hysteresis = None
        if policy.hysteresis is not None:
            states = store.store
            if store.url:  # while a Redis is away, its prober uses that connection
                states = open_store(store.url, deadline_s=store_deadline_s)
            self._hysteresis = HysteresisStage(
                policy.hysteresis, product=policy.product, store=states
            )
        self._ranker = None
        if ranking is not None:
            self._ranker = _Ranker(spec, policy, ranking, store=store)
        self._decision = self._stage(release)

    def _stage(self, release: str) -> DecisionStage:
        if self._ranker is not None:
            return RankingStage(
                self._policy,
                self._ranker.catalogue,
                available=self._ranker.available,
                release=release,
                spec_hash=self._spec.spec_hash,
                fields=self._spec.field_names,
            )
        return DecisionStage(
            self._policy,
            release=release,
            spec_hash=self._spec.spec_hash,
            fields=self._spec.field_names,
            hysteresis=self._hysteresis,
        )

    def replace_model(
        self, model: EngineModel, *, release: str, journal: StepJournal | None
    ) -> None:
        """
        Decide by another model from now on, with the same features and policy.

        Args:
            release: Name of the release in answers.
            journal: Gets the decisions from now on; the one before is not closed.
        """
        self._model, self._journal = model, journal
        self._decision = self._stage(release)

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
            InputError: The store is none of these, or its file is damaged.
            SetupError: The store is in use, or cannot be read or written; or the
                features have a hop, and there is no Lua.
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
        model = version[models.model_step] / MODEL_FILE
        session = OnnxSession(model, intra_op_threads=1)
        ranking = None
        if policy.ranking is not None:
            first, last = (
                version[one] for one in (models.features_step, models.decision_step)
            )
            if spec.history is None:
                raise RepositoryError(first / SPEC_FILE, "has no history")
            ranking = RankingParts(
                OnnxSession(first / RETRIEVAL_FILE, intra_op_threads=1),
                (Catalogue.load(first), Catalogue.load(last)),
            )
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
                    details=policy.ranking is not None,
                )
                records = open_local_journal(
                    str(journal), heading, store=opened, window_s=policy.idempotency_s
                )
                stack.callback(records.close)
            engine = cls(
                spec,
                policy,
                ScoringModel(session),
                ranking=ranking,
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
            if self._ranker is not None:
                stack.callback(self._ranker.close)
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
            InputError: A column is missing, unknown, or of another type or length; the
                product ranks items; or the engine is closed.
            JournalError: The journal did not take the decisions of a batch. Decide the
                rows again: the windows count a purchase once.
        """
        if self._ranker is not None:
            raise InputError(self._spec.product, "ranks items: use rank, not decide")
        return self._answer(columns, dry_run=dry_run, now_us=now_us)

    def decide_together(
        self, requests: Sequence[Columns], *, dry_runs: Sequence[bool]
    ) -> list[dict[str, Array]]:
        """
        Decide several requests as one batch, as a server's dynamic batch.

        Args:
            requests: Columns of each, as of `decide`; at most 32 rows in all.
            dry_runs: For each request whether it is a dry run.

        Returns:
            The outputs of each request.

        Raises:
            InputError: As of `decide`, for any of them; none is decided.
            JournalError: As of `decide`.
        """
        spec = self._spec
        rows = [
            self._check(one, needed=spec.columns, fields=spec.fields)
            for one in requests
        ]
        bounds = np.cumsum([0, *rows]).tolist()
        names = dict.fromkeys(name for one in requests for name in one)
        found = self._answer_batch(
            {name: _joined(name, requests, rows) for name in names},
            bounds=bounds,
            dry=list(dry_runs),
        )
        texts = {name: _text(column[:, 0]) for name, column in found.items()}
        return [
            {name: column[first:end] for name, column in texts.items()}
            for first, end in pairwise(bounds)
        ]

    def rank(
        self,
        columns: Columns,
        *,
        count: int | None = None,
        out_of_stock: Collection[str | bytes] | None = None,
        dry_run: bool = False,
        now_us: int | None = None,
    ) -> dict[str, Array]:
        """
        Rank items for N requests, in batches of at most 32.

        Args:
            columns: Inputs of the product's requests by name, as for `decide`:
                `request_id`, the user's id, `event_time`, declared fields, and
                optionally `exclude`, ids of items joined by |.
            count: K, the number of items, 1 to 50; None for as many as the policy says.
            out_of_stock: Ids of items that no list may have; None for the list of the
                store, if that is a Redis, and otherwise for none.
            dry_run: True for answers without a record.
            now_us: Time of the answers, µs since the epoch; None for now.

        Returns:
            Outputs of the product by name: `items` and `source` as text and `scores` as
                float32, [N, K] each; `error` and `release` as text and `degraded` as
                uint32, [N] each. A bad row has an `error`, and no items.

        Raises:
            InputError: As of `decide`; the product decides; or `count` is out of range.
            JournalError: The journal did not take the answers of a batch.
        """
        ranker = self._ranker
        if ranker is None:
            raise InputError(self._spec.product, "does not rank: use decide, not rank")
        if count is not None and (rule := count_rule(count)):
            raise InputError(LIST_SIZE, f"{count!r:.40}: {rule}")
        ranker.look_at_stock(out_of_stock)
        return self._answer(columns, count=count or 0, dry_run=dry_run, now_us=now_us)

    def apply(self, events: Columns, *, now_us: int | None = None) -> dict[str, Array]:
        """
        Apply N events to the store, as a stream does: nothing is decided.

        Args:
            events: Columns by name: `transaction_id` (the event's own id),
                the ids of entities, `event_time`, the amount of a product with money,
                and declared fields, those of `use: events` included.
            now_us: The time, µs since the epoch, to refuse events over a day ahead;
                None for now.

        Returns:
            `applied`, bool [N], False for an event that the store had already; and
                `error` as text [N]. A bad event has an `error`, and is not applied.

        Raises:
            InputError: As of `decide`.
            StoreError: The Redis did not answer. Apply all of the events again: the
                store takes each once.
        """
        spec, fields = self._spec, self._spec.event_fields
        rows = self._check(events, needed=spec.columns, fields=fields)
        ids, checked, sent = self._read(events, fields=fields, now_us=now_us)
        values, wrong = check_fields(fields, sent)
        errors = {**wrong, **checked.errors}
        good = [row for row in range(rows) if row not in errors]
        transaction, *entities = ([one[row] for row in good] for one in ids.values())
        outcome = self._writer.purchases(
            Purchases(
                transaction_id=transaction,
                entity_id=entities,
                event_time_us=_integers(events[EVENT_TIME])[good],
                cents=checked.cents[good],
                fields={name: column[good] for name, column in values.items()},
            )
        )
        errors |= {good[at]: reason for at, reason in outcome.refused()}
        applied = np.zeros(rows, np.bool_)
        applied[good] = outcome.applied
        texts = np.array([errors.get(row, "") for row in range(rows)], np.object_)
        return {"applied": applied, "error": texts}

    def _answer(
        self, columns: Columns, *, dry_run: bool, now_us: int | None, count: int = 0
    ) -> dict[str, Array]:
        spec = self._spec
        needed, more = spec.columns, tuple[str, ...]()
        if self._ranker is not None:
            needed = tuple(
                REQUEST_ID if name == TRANSACTION_ID else name for name in needed
            )
            more = (EXCLUDE,)
        rows = self._check(columns, needed=needed, fields=spec.fields, more=more)
        if REQUEST_ID in columns:
            columns = {
                TRANSACTION_ID if name == REQUEST_ID else name: column
                for name, column in columns.items()
            }
        parts = [
            self._answer_batch(
                {
                    name: column[at : at + MAX_BATCH_ROWS]
                    for name, column in columns.items()
                },
                bounds=[0, min(rows - at, MAX_BATCH_ROWS)],
                dry=[dry_run],
                count=count,
                now_us=now_us,
            )
            for at in range(0, max(rows, 1), MAX_BATCH_ROWS)
        ]
        joined = {
            name: np.concatenate([part[name] for part in parts]) for name in parts[0]
        }
        return {
            name: _text(column if name in LIST_OUTPUTS else column[:, 0])
            for name, column in joined.items()
        }

    def _check(
        self,
        columns: Columns,
        *,
        needed: Sequence[str],
        fields: Sequence[Field],
        more: Sequence[str] = (),
    ) -> int:
        """
        Check names and lengths of columns; return the number of rows.

        Raises:
            InputError: One is wrong, or the engine is closed.
        """
        if self._closed:
            raise InputError("the engine", "is closed; open another one")
        known = (*needed, *(one.name for one in fields), *more)
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

    def _answer_batch(
        self,
        columns: Columns,
        *,
        bounds: list[int],
        dry: list[bool],
        count: int = 0,
        now_us: int | None = None,
    ) -> dict[str, Array]:
        """
        Answer the rows of one batch.

        Args:
            bounds: First row of each request, and the number of rows.
            dry: For each request whether it is a dry run.
        """
        arrival_us = time.monotonic_ns() // 1000
        batch = self._checked(
            columns, bounds=bounds, dry=dry, count=count, now_us=now_us
        )
        scored = self._scored(batch, arrival_us=arrival_us)
        context = scored.context
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
                details=self._decision.details(scored, decided),
            )
        columns = self._decision.columns(scored, decided, marks=marks)
        if batch.errors:
            # A server refuses a request of bad rows alone, before a release sees it.
            columns["release"] = columns["release"].copy()
            for first, end in pairwise(bounds):
                if all(row in batch.errors for row in range(first, end)):
                    columns["release"][first:end] = b""
        return columns

    def _scored(self, batch: Batch, *, arrival_us: int) -> DecisionBatch:
        """Run features and model."""
        if self._ranker is None:
            features, context = self._features.score(batch, arrival_us=arrival_us)
            return DecisionBatch(
                context=context,
                features=features,
                probabilities=self._probabilities(batch, features, context),
                chosen=None,
                bounds=batch.bounds,
                began_us=time.monotonic_ns() // 1000,
            )
        features, context, history = self._features.score_with_history(
            batch, arrival_us=arrival_us
        )
        found = self._ranker.candidates.fill(
            batch, history, available=self._ranker.available()
        )
        return RankingBatch(
            context=context,
            features=features,
            probabilities=self._model.probabilities(found.features),
            chosen=None,
            bounds=batch.bounds,
            began_us=time.monotonic_ns() // 1000,
            ranking=found.ranking,
        )

    def _probabilities(self, batch: Batch, features: Array, context: Array) -> Array:
        """Run the model, unless no row needs it."""
        if not self._decision.needs_model(context, features):
            return np.zeros((len(context), len(self._policy.labels)), np.float32)
        vectors = features
        if self._model.exact:
            vectors = exact_features(
                self._spec, features, cents=batch.cents, fields=batch.fields
            )
        return self._model.probabilities(vectors)

    def _read(
        self, columns: Columns, *, fields: Sequence[Field], now_us: int | None
    ) -> tuple[dict[str, list[bytes]], Checked, dict[str, Array]]:
        """Return ids by name, the checked rows, and the fields that were sent."""
        spec = self._spec
        ids = {
            name: [_bytes(name, one) for one in columns[name]] for name in spec.id_names
        }
        checked = check_rows(
            ids,
            amount=_numbers(AMOUNT, columns[AMOUNT]) if spec.amount else None,
            time_us=_integers(columns[EVENT_TIME]),
            now_us=time.time_ns() // 1000 if now_us is None else now_us,
        )
        sent = {
            one.name: _field(one.name, columns[one.name], one.type)
            for one in fields
            if one.name in columns
        }
        return ids, checked, sent

    def _checked(
        self,
        columns: Columns,
        *,
        bounds: list[int],
        dry: list[bool],
        count: int,
        now_us: int | None,
    ) -> Batch:
        """Check every row."""
        spec = self._spec
        ids, checked, sent = self._read(columns, fields=spec.fields, now_us=now_us)
        time_us = _integers(columns[EVENT_TIME])
        fields: Mapping[str, Array] = {}
        degraded: Array | int = 0
        if spec.fields:
            fields, degraded = declared_fields(
                spec, sent, rows=len(time_us), errors=checked.errors
            )
        excluded: Sequence[Sequence[bytes]] = ()
        if EXCLUDE in columns:
            texts = [_bytes(EXCLUDE, one) for one in columns[EXCLUDE]]
            excluded = excluded_ids(texts, errors=checked.errors)
        return Batch(
            ids=ids,
            cents=checked.cents,
            time_us=time_us,
            errors=checked.errors,
            bounds=bounds,
            dry=dry,
            degraded=degraded,
            fields=fields,
            excluded=excluded,
            counts=[count] * len(dry) if self._ranker is not None else (),
        )


class _Ranker:
    """Find the candidates of a product that ranks, and know what is in stock."""

    def __init__(
        self,
        spec: FeatureSpec,
        policy: Policy,
        parts: RankingParts,
        *,
        store: EngineStore,
    ) -> None:
        rules = policy.ranking
        assert rules is not None
        first, last = parts.catalogues
        self.candidates = CandidateStage(first, parts.retrieval, spec)
        self.catalogue = last
        self._view: StockView = open_stock(
            store.url,
            last,
            product=policy.product,
            name=rules.stock,
            settings=StoreSettings(),
        )
        self._available = self._view.available()

    def look_at_stock(self, out_of_stock: Collection[str | bytes] | None) -> None:
        """Set the stock of the next answers: without some ids, or the store's."""
        if out_of_stock is None:
            self._available = self._view.available()
            return
        ids = [_bytes("out_of_stock", one) for one in out_of_stock]
        places = self.catalogue.index_of(hash_words(ids))
        self._available = np.ones(self.catalogue.size, np.bool_)
        self._available[places[places >= 0]] = False

    def available(self) -> Array:
        """Return which items are in stock, by index of the catalogue; bool [I]."""
        return self._available

    def close(self) -> None:
        """Stop watching the list of the store."""
        self._view.close()


def _joined(
    name: str, requests: Sequence[Columns], rows: Sequence[int]
) -> Sequence[Any]:
    """Join the columns of a name; a request without it has no value in its rows."""
    joined: list[Any] = []
    for one, count in zip(requests, rows, strict=True):
        joined.extend(one.get(name, [None] * count))  # += would add arrays
    return joined


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
    words = np.empty(column.size, np.object_)
    words[:] = [one.decode() for one in column.ravel().tolist()]
    return words.reshape(column.shape)
